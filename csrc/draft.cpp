// DFlash drafts: models that fill a block of masked tokens, reading a target's layer inputs.
#include "context.hpp"
#include "decode.hpp"
#include "internals.hpp"
#include "llama-ext.h"

namespace {

std::shared_ptr<llama_model> open_draft(csb_model * handle) {
    const auto held = csb::open_model(handle);
    if (!held->draft) {
        csb::bad_argument("model was not opened as a draft");
    }
    return held->model;
}

// Floats of one token's row of layer inputs.
int32_t row_width(const llama_model * draft) {
    return static_cast<int32_t>(llama_model_target_layer_ids_n(draft)) * llama_model_n_embd(draft);
}

} // namespace

int32_t csb_draft_describe(csb_model * handle, const char ** out_json) {
    return csb::guarded([&] {
        csb::check_ptr(out_json, "out_json");
        const auto          held   = open_draft(handle);
        const llama_model * model  = held.get();
        const int32_t *     layers = llama_model_target_layer_ids(model);
        csb::json           j;
        j.open('{').pair("block_size", csb::draft_block_size(model));
        j.pair("mask", llama_vocab_mask(llama_model_get_vocab(model)));
        j.pair("causal", csb::draft_is_causal(model)).key("layers").open('[');
        for (uint32_t i = 0; i < llama_model_target_layer_ids_n(model); i++) {
            j.value(layers[i]);
        }
        *out_json = csb::keep_text(j.close(']').close('}').str());
        return CSB_OK;
    });
}

int32_t csb_draft_open(csb_model * draft, csb_context * target, int32_t n_options,
                       const char * const * keys, const char * const * values,
                       csb_context ** out_context) {
    return csb::guarded([&] {
        csb::check_ptr(out_context, "out_context");
        const auto     model = open_draft(draft);
        const auto     other = csb::open_context(target);
        const csb::use c(target);

        const std::string why = csb::why_not_beside(model.get(), c.llama());
        if (!why.empty()) {
            throw csb::error(CSB_ERROR_UNSUPPORTED, why);
        }
        auto made = csb::make_context(model, csb::options(n_options, keys, values), other);
        llama_context * context = made->context.get();
        csb::check(llama_n_seq_max(context) == 1, "n_seq_max", llama_n_seq_max(context),
                   "a draft follows one sequence");
        llama_set_causal_attn(context, csb::draft_is_causal(model.get()));
        *out_context = csb::register_handle(std::move(made));
        return CSB_OK;
    });
}

int32_t csb_draft_inject(csb_context * handle, int32_t n_tokens, int32_t width, const float * rows,
                         int32_t position) {
    return csb::guarded([&] {
        const csb::use  c(handle);
        llama_context * context = c.llama();
        const int32_t   most =
            static_cast<int32_t>(std::min(llama_n_batch(context), llama_n_ubatch(context)));
        if (!c->target) {
            csb::bad_argument("context is none of a draft");
        }
        csb::check(n_tokens >= 1 && n_tokens <= most, "n_tokens", n_tokens,
                   "must be from 1 to n_batch and n_ubatch");
        csb::check(width == row_width(c->model.get()), "width", width,
                   "is not the draft's number of layers times n_embd");
        csb::check(position >= 0 && position <= INT32_MAX - n_tokens, "position", position,
                   "is no position");
        csb::check_ptr(rows, "rows");
        const size_t         n = static_cast<size_t>(n_tokens);
        std::vector<int32_t> positions(n), seq_ids(n, 0);
        for (int32_t i = 0; i < n_tokens; i++) {
            positions[static_cast<size_t>(i)] = position + i;
        }
        csb::check_places(*c, n_tokens, positions.data(), seq_ids.data());

        std::vector<int8_t> none(n, 0);
        llama_batch         batch = {};
        batch.n_tokens            = n_tokens;
        batch.embd                = const_cast<float *>(rows); // llama_decode reads only
        batch.pos                 = positions.data();
        batch.logits              = none.data();
        return csb::submit(*c, batch, seq_ids.data());
    });
}
