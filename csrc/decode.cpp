// Decoding and the logits rows it leaves.
#include <algorithm>
#include <chrono>

#include "decode.hpp"
#include "internals.hpp"

namespace {

using csb::error;

// Each sequence's positions must go on from its last one in the memory, one by one.
void check_positions(const llama_context * context, int32_t n_tokens, const int32_t * positions,
                     const int32_t * seq_ids) {
    const int32_t        n_ctx = static_cast<int32_t>(llama_n_ctx_seq(context));
    const int32_t        n_seq = static_cast<int32_t>(llama_n_seq_max(context));
    std::vector<int32_t> next(static_cast<size_t>(n_seq), -1);
    for (int32_t i = 0; i < n_tokens; i++) {
        csb::check(seq_ids[i] >= 0 && seq_ids[i] < n_seq, "seq_ids", seq_ids[i],
                   "must be from 0 to n_seq_max - 1");
        int32_t & expected = next[static_cast<size_t>(seq_ids[i])];
        const bool begins = expected < 0;
        if (begins) {
            int32_t first = 0, last = 0;
            csb::first_and_last(context, seq_ids[i], first, last);
            expected = last + 1;
        }
        if (positions[i] != expected) {
            csb::bad_argument("positions = " + std::to_string(positions[i]) + " at entry " +
                              std::to_string(i) + ": the sequence's next position is " +
                              std::to_string(expected));
        }
        if (positions[i] >= n_ctx) {
            csb::bad_argument("positions = " + std::to_string(positions[i]) +
                              ": the context is full (n_ctx " + std::to_string(n_ctx) + ")");
        }
        const char * why = begins ? csb::out_of_step(context, seq_ids[i], expected) : nullptr;
        if (why) {
            csb::bad_argument("positions = " + std::to_string(positions[i]) + ": " + why);
        }
        expected++;
    }
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Also off again when llama_decode throws.
struct running_flag {
    explicit running_flag(csb_context & context) : c(context) { c.running = true; }
    ~running_flag() { c.running = false; }
    csb_context & c;
};

int32_t decode_status(int32_t status) {
    const std::string why = csb::last_log_error();
    auto              say = [&](const char * what) {
        csb::set_message(std::string(what) + (why.empty() ? "" : ": " + why));
        return status;
    };
    switch (status) {
    case 0:
        return CSB_OK;
    case CSB_NO_SLOT:
        return say("no room in the memory for the batch");
    case CSB_CANCELLED:
        csb::set_message("cancelled"); // the log calls it a failure
        return status;
    case CSB_ERROR_BATCH:
        return say("llama_decode refused the batch");
    case CSB_ERROR_ALLOCATION:
        return say("llama_decode could not allocate memory");
    case CSB_ERROR_COMPUTE:
        return say("the graph's computation failed");
    default:
        throw error(CSB_ERROR_INTERNAL, "llama_decode returned " + std::to_string(status));
    }
}

// One checked llama_decode, waited for; what csb.h says of csb_context_decode.
int32_t decode(csb_context & c, int32_t n_tokens, const int32_t * tokens, const int32_t * positions,
               const int32_t * seq_ids, const int8_t * outputs) {
    llama_context * context  = c.context.get();
    const int32_t   n_batch  = static_cast<int32_t>(llama_n_batch(context));
    const int32_t   n_ubatch = static_cast<int32_t>(llama_n_ubatch(context));
    const int32_t   n_vocab  = llama_vocab_n_tokens(llama_model_get_vocab(c.model.get()));
    csb::check(n_tokens >= 1, "n_tokens", n_tokens, "must be at least 1");
    if (n_tokens > n_batch) {
        csb::bad_argument("n_tokens = " + std::to_string(n_tokens) +
                          ": is more than n_batch = " + std::to_string(n_batch));
    }
    csb::check_ptr(tokens, "tokens");
    csb::check_ptr(positions, "positions");
    csb::check_ptr(seq_ids, "seq_ids");
    csb::check_ptr(outputs, "outputs");
    for (int32_t i = 0; i < n_tokens; i++) {
        csb::check(tokens[i] >= 0 && tokens[i] < n_vocab, "tokens", tokens[i],
                   "is outside the model's vocabulary");
    }
    if (c.target) { // its rows see each other, and its graph leaves none out
        csb::check(n_tokens <= n_ubatch, "n_tokens", n_tokens, "is more than a draft's n_ubatch");
        csb::check(std::count(outputs, outputs + n_tokens, 0) == 0, "outputs", 0,
                   "a draft gives every row");
    }
    csb::check_places(c, n_tokens, positions, seq_ids);

    std::vector<int8_t> flags(outputs, outputs + n_tokens);
    llama_batch         batch = {};
    batch.n_tokens            = n_tokens;
    batch.token               = const_cast<int32_t *>(tokens); // llama_decode reads only
    batch.pos                 = const_cast<int32_t *>(positions);
    batch.logits              = flags.data();
    return csb::submit(c, batch, seq_ids);
}

void copy_row(const csb_context & c, int32_t entry, float * out_row) {
    const float * row = llama_get_logits_ith(c.context.get(), entry);
    if (!row) {
        throw error(CSB_ERROR_INTERNAL, "llama.cpp has no row " + std::to_string(entry));
    }
    std::copy(row, row + llama_vocab_n_tokens(llama_model_get_vocab(c.model.get())), out_row);
}

} // namespace

namespace csb {

void check_places(const csb_context & c, int32_t n_tokens, const int32_t * positions,
                  const int32_t * seq_ids) {
    check_positions(c.context.get(), n_tokens, positions, seq_ids);
    for (int32_t i = 0; i < n_tokens; i++) {
        if (c.torn.count(seq_ids[i])) {
            bad_argument("seq_ids = " + std::to_string(seq_ids[i]) +
                         ": a decode that failed left a part of its tokens in this sequence's "
                         "memory: clear, empty or restore it first");
        }
    }
}

int32_t submit(csb_context & c, llama_batch batch, const int32_t * seq_ids) {
    llama_context *        context  = c.context.get();
    const int32_t          n_tokens = batch.n_tokens;
    std::vector<int32_t>   one(static_cast<size_t>(n_tokens), 1);
    std::vector<int32_t>   seqs(seq_ids, seq_ids + n_tokens);
    std::vector<int32_t *> lists;
    for (int32_t & s : seqs) {
        lists.push_back(&s);
    }
    batch.n_seq_id = one.data();
    batch.seq_id   = lists.data();
    c.outputs.clear(); // whatever happens, the rows of the decode before are gone

    last_log_error();
    c.cancelled = false; // a cancel that came as the decode before ended is not for this one
    const running_flag running(c);
    trace *            recorder = c.trace.flags ? &c.trace : nullptr;
    int32_t            status   = 0;
    {
        const hooks_hold hold(recorder, c.watch.watcher ? &c.watch : nullptr);
        const int64_t    begin = now_ns();
        status                 = llama_decode(context, batch);
        llama_synchronize(context);
        c.decode_ns += now_ns() - begin;
    }
    if (recorder) {
        recorder->end_call(n_tokens);
    }
    c.decode_n += 1;
    if (status != 0) {
        c.tap.clear();
    } else {
        c.outputs.assign(batch.logits, batch.logits + n_tokens);
        if (!c.tap.layers.empty()) {
            c.tap.add(context, batch.pos[0], n_tokens);
        }
    }
    // llama.cpp takes the ubatch that failed out of the memory again, where the memory can.
    const bool begun = status != 0 && status != CSB_NO_SLOT && status != CSB_ERROR_BATCH;
    if (begun && !rolls_back(context)) {
        c.torn.insert(seqs.begin(), seqs.end());
    }
    return decode_status(status);
}

} // namespace csb

int32_t csb_context_decode(csb_context * handle, int32_t n_tokens, const int32_t * tokens,
                           const int32_t * positions, const int32_t * seq_ids,
                           const int8_t * outputs) {
    return csb::guarded([&] {
        const csb::use c(handle);
        return decode(*c, n_tokens, tokens, positions, seq_ids, outputs);
    });
}

int32_t csb_context_steps(csb_context * handle, int32_t n_tokens, const int32_t * tokens,
                          int32_t position, int32_t seq_id, float * out_rows) {
    return csb::guarded([&]() -> int32_t {
        const csb::use c(handle);
        csb::check(n_tokens >= 1, "n_tokens", n_tokens, "must be at least 1");
        csb::check_ptr(tokens, "tokens");
        csb::check_ptr(out_rows, "out_rows");
        const int64_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(c->model.get()));
        const int8_t  output  = 1;
        for (int32_t k = 0; k < n_tokens; k++) {
            const int32_t at     = position + k;
            const int32_t status = decode(*c, 1, tokens + k, &at, &seq_id, &output);
            if (status != CSB_OK) {
                return status;
            }
            copy_row(*c, 0, out_rows + k * n_vocab);
        }
        return CSB_OK;
    });
}

int32_t csb_context_cancel(csb_context * handle) {
    return csb::guarded([&] {
        const auto c = csb::open_context(handle);
        if (c->running) {
            c->cancelled = true;
        }
        return CSB_OK;
    });
}

int32_t csb_context_logits(csb_context * handle, int32_t n_rows, const int32_t * entries,
                           float * out_rows) {
    return csb::guarded([&] {
        const csb::use c(handle);
        const int32_t  n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(c->model.get()));
        const int32_t  n_batch = static_cast<int32_t>(c->outputs.size());
        csb::check(n_rows >= 0, "n_rows", n_rows, "must not be negative");
        csb::check_ptr(entries, "entries");
        csb::check_ptr(out_rows, "out_rows");
        for (int32_t i = 0; i < n_rows; i++) {
            const bool has_row = entries[i] >= 0 && entries[i] < n_batch &&
                                 c->outputs[static_cast<size_t>(entries[i])];
            csb::check(has_row, "entries", entries[i], "the last decode has no logits row there");
        }
        for (int32_t i = 0; i < n_rows; i++) {
            copy_row(*c, entries[i], out_rows + static_cast<int64_t>(i) * n_vocab);
        }
        return CSB_OK;
    });
}

int32_t csb_context_decode_time(csb_context * handle, int64_t * out_ns, int64_t * out_n) {
    return csb::guarded([&] {
        const csb::use c(handle);
        csb::check_ptr(out_ns, "out_ns");
        csb::check_ptr(out_n, "out_n");
        *out_ns = c->decode_ns;
        *out_n  = c->decode_n;
        return CSB_OK;
    });
}
