// Sequence states as bytes. llama.cpp trusts what it is given, so csb puts a header with the size,
// a hash and its origin before it and takes back only what it finds whole and at home.
#include <cstring>

#include "handles.hpp"
#include "internals.hpp"

namespace {

struct header {
    char     magic[8];
    uint64_t size;
    uint64_t hash;
    uint64_t origin;
    uint64_t partial;
};

const char MAGIC[8] = {'c', 's', 'b', 's', 't', 'a', 't', '2'};

uint64_t mix(uint64_t lane, uint64_t word) { // a round of XXH64: every bit of word reaches many
    lane += word * 0xC2B2AE3D27D4EB4Fu;
    lane = (lane << 31) | (lane >> 33);
    return lane * 0x9E3779B185EBCA87u;
}

uint64_t hash_of(const uint8_t * bytes, size_t size) {
    // Four lanes, so that it keeps up with a memory copy; it guards against damage, not malice.
    uint64_t lane[4] = {1, 2, 3, 4};
    size_t   i       = 0;
    for (; i + 32 <= size; i += 32) {
        for (size_t k = 0; k < 4; k++) {
            uint64_t word;
            std::memcpy(&word, bytes + i + 8 * k, 8);
            lane[k] = mix(lane[k], word);
        }
    }
    for (; i < size; i++) {
        lane[0] = mix(lane[0], bytes[i]);
    }
    return mix(mix(mix(mix(lane[0], lane[1]), lane[2]), lane[3]), size);
}

std::string metadata_of(const llama_model * model) {
    std::string text;
    auto        add = [&](auto call, int32_t i) {
        std::string part(static_cast<size_t>(std::max(0, call(model, i, nullptr, 0))) + 1, '\0');
        call(model, i, part.data(), part.size());
        text += part;
    };
    for (int32_t i = 0; i < llama_model_meta_count(model); i++) {
        add(llama_model_meta_key_by_index, i);
        add(llama_model_meta_val_str_by_index, i);
    }
    return text;
}

llama_state_seq_flags flags_of(int32_t partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

llama_context * checked(const csb::use & c, int32_t seq_id) {
    llama_context * context = c.llama();
    csb::check(seq_id >= 0 && seq_id < static_cast<int32_t>(llama_n_seq_max(context)), "seq_id",
               seq_id, "must be from 0 to n_seq_max - 1");
    return context;
}

} // namespace

// Two models whose metadata, sizes and types are equal can't be told apart.
uint64_t csb::state_origin(const csb_context & c) {
    csb::json j;
    j.open('[').value(metadata_of(c.model.get()));
    j.value(llama_model_size(c.model.get())).value(llama_model_n_params(c.model.get()));
    csb::describe_streams(c.context.get(), j);
    j.value(csb::memory_class(c.context.get()));
    csb::describe_tensor_types(c.model.get(), j);
    csb::describe_state_parameters(c.context.get(), j);
    const std::string & text = j.close(']').str();
    return hash_of(reinterpret_cast<const uint8_t *>(text.data()), text.size());
}

int32_t csb_context_state_size(csb_context * handle, int32_t seq_id, int32_t partial,
                               int64_t * out_size) {
    return csb::guarded([&] {
        const csb::use  c(handle);
        llama_context * context = checked(c, seq_id);
        const size_t    size    = llama_state_seq_get_size_ext(context, seq_id, flags_of(partial));
        *csb::check_ptr(out_size, "out_size") = static_cast<int64_t>(size + sizeof(header));
        return CSB_OK;
    });
}

int32_t csb_context_state_get(csb_context * handle, int32_t seq_id, int32_t partial,
                              int64_t capacity, uint8_t * out_bytes, int64_t * out_size) {
    return csb::guarded([&] {
        const csb::use  c(handle);
        llama_context * context = checked(c, seq_id);
        csb::check_ptr(out_bytes, "out_bytes");
        csb::check_ptr(out_size, "out_size");
        const auto   flags = flags_of(partial);
        const size_t size  = llama_state_seq_get_size_ext(context, seq_id, flags);
        csb::check(capacity >= static_cast<int64_t>(size + sizeof(header)), "capacity", capacity,
                   "is less than csb_context_state_size");
        csb::last_log_error();
        uint8_t *    body    = out_bytes + sizeof(header);
        const size_t written = llama_state_seq_get_data_ext(context, body, size, seq_id, flags);
        if (written == 0 || written > size) {
            throw csb::error(CSB_ERROR_UNSUPPORTED,
                             "llama.cpp can't save this state: " + csb::last_log_error());
        }
        header h = {{}, written, hash_of(body, written), c->origin, partial ? 1u : 0u};
        std::memcpy(h.magic, MAGIC, sizeof(MAGIC));
        std::memcpy(out_bytes, &h, sizeof(h));
        *out_size = static_cast<int64_t>(written + sizeof(header));
        return CSB_OK;
    });
}

int32_t csb_context_state_set(csb_context * handle, int32_t seq_id, int32_t partial,
                              const uint8_t * bytes, int64_t size) {
    return csb::guarded([&] {
        const csb::use  c(handle);
        llama_context * context = checked(c, seq_id);
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
        if (h.origin != c->origin) {
            csb::bad_argument("bytes are a state of another model or of other parameters");
        }
        csb::check((h.partial != 0) == (partial != 0), "partial", partial,
                   "the state is of the other kind");
        if (!partial) { // llama.cpp leaves the sequence alone when the state is an empty one
            llama_memory_seq_rm(llama_get_memory(context), seq_id, 0, -1);
        }
        c->tap.clear(); // of what lies in the memory now nothing was kept
        csb::last_log_error();
        if (llama_state_seq_set_data_ext(context, body, rest, seq_id, flags_of(partial)) != rest) {
            throw csb::error(CSB_ERROR_UNSUPPORTED,
                             "llama.cpp can't restore this state: " + csb::last_log_error());
        }
        c->torn.erase(seq_id);
        return CSB_OK;
    });
}
