// Sequence states as bytes. llama.cpp trusts what it is given, so csb puts a header with the size
// and a hash before it and takes back only what it finds whole.
#include <cstring>

#include "handles.hpp"

namespace {

struct header {
    char     magic[8];
    uint64_t size;
    uint64_t hash;
    uint64_t partial;
};

const char MAGIC[8] = {'c', 's', 'b', 's', 't', 'a', 't', '1'};

uint64_t hash_of(const uint8_t * bytes, size_t size) {
    // Four lanes, so that it keeps up with a memory copy; it guards against damage, not malice.
    uint64_t lane[4] = {1, 2, 3, 4};
    size_t   i       = 0;
    for (; i + 32 <= size; i += 32) {
        for (size_t k = 0; k < 4; k++) {
            uint64_t word;
            std::memcpy(&word, bytes + i + 8 * k, 8);
            lane[k] = (lane[k] ^ word) * 0x9E3779B97F4A7C15u;
        }
    }
    for (; i < size; i++) {
        lane[0] = (lane[0] ^ bytes[i]) * 0x9E3779B97F4A7C15u;
    }
    return lane[0] ^ (lane[1] << 1) ^ (lane[2] << 2) ^ (lane[3] << 3) ^ size;
}

llama_state_seq_flags flags_of(int32_t partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

llama_context * checked(csb_context * handle, int32_t seq_id) {
    llama_context * context = csb::open_context(handle).context.get();
    csb::check(seq_id >= 0 && seq_id < static_cast<int32_t>(llama_n_seq_max(context)), "seq_id",
               seq_id, "must be from 0 to n_seq_max - 1");
    return context;
}

} // namespace

int32_t csb_context_state_size(csb_context * handle, int32_t seq_id, int32_t partial,
                               int64_t * out_size) {
    return csb::guarded([&] {
        llama_context * context = checked(handle, seq_id);
        const size_t    size    = llama_state_seq_get_size_ext(context, seq_id, flags_of(partial));
        *csb::check_ptr(out_size, "out_size") = static_cast<int64_t>(size + sizeof(header));
        return CSB_OK;
    });
}

int32_t csb_context_state_get(csb_context * handle, int32_t seq_id, int32_t partial,
                              int64_t capacity, uint8_t * out_bytes, int64_t * out_size) {
    return csb::guarded([&] {
        llama_context * context = checked(handle, seq_id);
        csb::check_ptr(out_bytes, "out_bytes");
        csb::check_ptr(out_size, "out_size");
        const auto   flags = flags_of(partial);
        const size_t size  = llama_state_seq_get_size_ext(context, seq_id, flags);
        csb::check(capacity >= static_cast<int64_t>(size + sizeof(header)), "capacity", capacity,
                   "is less than csb_context_state_size");
        uint8_t *    body    = out_bytes + sizeof(header);
        const size_t written = llama_state_seq_get_data_ext(context, body, size, seq_id, flags);
        if (written == 0 || written > size) {
            throw csb::error(CSB_ERROR_UNSUPPORTED,
                             "llama.cpp can't save this state: " + csb::last_log_error());
        }
        header h = {{}, written, hash_of(body, written), partial ? 1u : 0u};
        std::memcpy(h.magic, MAGIC, sizeof(MAGIC));
        std::memcpy(out_bytes, &h, sizeof(h));
        *out_size = static_cast<int64_t>(written + sizeof(header));
        return CSB_OK;
    });
}

int32_t csb_context_state_set(csb_context * handle, int32_t seq_id, int32_t partial,
                              const uint8_t * bytes, int64_t size) {
    return csb::guarded([&] {
        llama_context * context = checked(handle, seq_id);
        csb::check_ptr(bytes, "bytes");
        header h = {};
        csb::check(size >= static_cast<int64_t>(sizeof(h)), "size", size, "is less than a header");
        std::memcpy(&h, bytes, sizeof(h));
        const uint8_t * body = bytes + sizeof(h);
        const size_t    rest = static_cast<size_t>(size) - sizeof(h);
        if (std::memcmp(h.magic, MAGIC, sizeof(MAGIC)) != 0 || h.size != rest ||
            h.hash != hash_of(body, rest)) {
            csb::bad_argument("bytes are not a whole state that csb_context_state_get wrote");
        }
        csb::check((h.partial != 0) == (partial != 0), "partial", partial,
                   "the state is of the other kind");
        if (llama_state_seq_set_data_ext(context, body, rest, seq_id, flags_of(partial)) != rest) {
            throw csb::error(CSB_ERROR_UNSUPPORTED,
                             "llama.cpp can't restore this state: " + csb::last_log_error());
        }
        return CSB_OK;
    });
}
