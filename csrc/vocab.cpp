// A model's vocabulary: texts to tokens and back.
#include "handles.hpp"

namespace {

using csb::error;

void check_token(const llama_vocab * vocab, int32_t token) {
    csb::check(token >= 0 && token < llama_vocab_n_tokens(vocab), "token", token,
               "is outside the model's vocabulary");
}

// llama.cpp's lookups answer with the negated size when the buffer is too small.
template <typename F> int32_t fill(int32_t capacity, int32_t * out_n, F && call) {
    csb::check(capacity >= 0, "capacity", capacity, "must not be negative");
    csb::check_ptr(out_n, "out_n");
    const int32_t n = call();
    *out_n          = n < 0 ? -n : n;
    return CSB_OK;
}

} // namespace

int32_t csb_model_tokenize(csb_model * handle, const char * text, int32_t n_bytes,
                           int32_t add_special, int32_t parse_special, int32_t capacity,
                           int32_t * out_tokens, int32_t * out_n) {
    return csb::guarded([&] {
        const auto          held  = csb::open_model(handle);
        const llama_vocab * vocab = llama_model_get_vocab(held->model.get());
        csb::check_ptr(text, "text");
        csb::check(n_bytes >= 0, "n_bytes", n_bytes, "must not be negative");
        if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
            throw error(CSB_ERROR_UNSUPPORTED, "the model has no tokenizer: give token ids");
        }
        return fill(capacity, out_n, [&] {
            return llama_tokenize(vocab, text, n_bytes, out_tokens, out_tokens ? capacity : 0,
                                  add_special != 0, parse_special != 0);
        });
    });
}

int32_t csb_model_detokenize(csb_model * handle, const int32_t * tokens, int32_t n_tokens,
                             int32_t special, int32_t capacity, char * out_bytes,
                             int32_t * out_n) {
    return csb::guarded([&] {
        const auto          held  = csb::open_model(handle);
        const llama_vocab * vocab = llama_model_get_vocab(held->model.get());
        csb::check(n_tokens >= 0, "n_tokens", n_tokens, "must not be negative");
        for (int32_t i = 0; i < n_tokens; i++) {
            check_token(vocab, csb::check_ptr(tokens, "tokens")[i]);
        }
        if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
            throw error(CSB_ERROR_UNSUPPORTED, "the model has no tokenizer");
        }
        return fill(capacity, out_n, [&] {
            return llama_detokenize(vocab, tokens, n_tokens, out_bytes, out_bytes ? capacity : 0,
                                    false, special != 0);
        });
    });
}

int32_t csb_model_token_piece(csb_model * handle, int32_t token, int32_t capacity,
                              char * out_bytes, int32_t * out_n) {
    return csb::guarded([&] {
        const auto          held  = csb::open_model(handle);
        const llama_vocab * vocab = llama_model_get_vocab(held->model.get());
        check_token(vocab, token);
        if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
            throw error(CSB_ERROR_UNSUPPORTED, "the model has no tokenizer");
        }
        return fill(capacity, out_n, [&] {
            return llama_token_to_piece(vocab, token, out_bytes, out_bytes ? capacity : 0, 0, true);
        });
    });
}

int32_t csb_model_token_is_eog(csb_model * handle, int32_t token, int32_t * out_is_eog) {
    return csb::guarded([&] {
        const auto          held  = csb::open_model(handle);
        const llama_vocab * vocab = llama_model_get_vocab(held->model.get());
        csb::check_ptr(out_is_eog, "out_is_eog");
        check_token(vocab, token);
        // Without a tokenizer no token means anything.
        *out_is_eog = llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE &&
                      llama_vocab_is_eog(vocab, token);
        return CSB_OK;
    });
}
