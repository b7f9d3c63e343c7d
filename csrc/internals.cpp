#include "internals.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

namespace {

template <typename T> void parameter(csb::json & j, const char * name, T value) {
    j.open('{').pair("name", name).pair("value", value).pair("source", "library").close('}');
}

bool offloads(ggml_backend_dev_t device) {
    return device && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

// Of the file's metadata, 0 where it has none: unlike the library's own fields, which come and go
// with llama.cpp's versions, its key stays.
uint32_t number_in_file(const llama_model * model, const char * key) {
    char text[32] = {};
    llama_model_meta_val_str(model, key, text, sizeof(text));
    return static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
}

const char * split_mode_name(llama_split_mode mode) {
    switch (mode) {
    case LLAMA_SPLIT_MODE_NONE:
        return "none";
    case LLAMA_SPLIT_MODE_LAYER:
        return "layer";
    case LLAMA_SPLIT_MODE_ROW:
        return "row";
    default:
        return "other";
    }
}

struct caches {
    const llama_kv_cache * base   = nullptr;
    const llama_kv_cache * window = nullptr; // the sliding-window layers' own
    const char *           name   = "other";
};

caches find_caches(const llama_context * context) {
    const auto * memory = context->get_memory();
    auto         iswa   = [](const llama_kv_cache_iswa * m, const char * name) {
        return caches{m->get_base(), m->get_swa(), name};
    };
    if (!memory) {
        return {nullptr, nullptr, "none"};
    }
    if (const auto * m = dynamic_cast<const llama_kv_cache *>(memory)) {
        return {m, nullptr, "attention"};
    }
    if (const auto * m = dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
        return iswa(m, "sliding_window");
    }
    if (const auto * m = dynamic_cast<const llama_memory_hybrid *>(memory)) {
        return {m->get_mem_attn(), nullptr, "hybrid"};
    }
    if (const auto * m = dynamic_cast<const llama_memory_hybrid_iswa *>(memory)) {
        return iswa(m->get_mem_attn(), "hybrid_sliding_window");
    }
    if (dynamic_cast<const llama_memory_recurrent *>(memory)) {
        return {nullptr, nullptr, "recurrent"};
    }
    return {};
}

// Whether graphs on the model's devices and the CPU can use a weight of another model.
bool reaches(const llama_model * model, const ggml_tensor * weight) {
    ggml_backend_buffer_type_t type   = ggml_backend_buffer_get_type(weight->buffer);
    ggml_backend_dev_t         device = ggml_backend_buft_get_device(type);
    if (ggml_backend_buft_is_host(type) || !offloads(device)) {
        return true;
    }
    for (int i = 0; i < llama_model_n_devices(model); i++) {
        if (llama_model_get_device(model, i) == device) {
            return true;
        }
    }
    return false;
}

// Whether each entry of a draft's d2t is a token's id.
bool maps_to_tokens(const llama_model * model) {
    const ggml_tensor * d2t = model->d2t;
    if (d2t->type != GGML_TYPE_I64) {
        return false;
    }
    std::vector<int64_t> ids(static_cast<size_t>(ggml_nelements(d2t)));
    ggml_backend_tensor_get(d2t, ids.data(), 0, ggml_nbytes(d2t));
    return std::all_of(ids.begin(), ids.end(), [&](int64_t id) {
        return id >= 0 && id < static_cast<int64_t>(model->vocab.n_tokens());
    });
}

} // namespace

namespace csb {

void describe_internal_parameters(const llama_context * context, json & j) {
    const llama_model & model = context->get_model();
    int n_offloaded = offloads(model.dev_output());
    for (uint32_t i = 0; i < model.hparams.n_layer(); i++) {
        n_offloaded += offloads(model.dev_layer(static_cast<int>(i)));
    }
    parameter(j, "n_gpu_layers", n_offloaded); // the output counts as one, as in what was asked
    parameter(j, "split_mode", split_mode_name(model.split_mode()));
    parameter(j, "kv_unified", context->get_cparams().kv_unified);
    describe_state_parameters(context, j);
}

void describe_state_parameters(const llama_context * context, json & j) {
    const llama_cparams & c = context->get_cparams();
    parameter(j, "flash_attn", c.flash_attn);
    parameter(j, "offload_kqv", c.offload_kqv);
    parameter(j, "op_offload", c.op_offload);
    parameter(j, "causal_attn", c.causal_attn);
    parameter(j, "pipeline_parallel", c.pipeline_parallel);
    parameter(j, "rope_freq_base", static_cast<double>(c.rope_freq_base));
    parameter(j, "rope_freq_scale", static_cast<double>(c.rope_freq_scale));
    parameter(j, "yarn_ext_factor", static_cast<double>(c.yarn_ext_factor));
    parameter(j, "yarn_attn_factor", static_cast<double>(c.yarn_attn_factor));

    const caches found = find_caches(context);
    if (found.base) {
        parameter(j, "type_k", ggml_type_name(found.base->type_k()));
        parameter(j, "type_v", ggml_type_name(found.base->type_v()));
    }
    if (found.window) {
        // Full size means that the window's cache is as large as the whole one.
        parameter(j, "swa_full", found.window->get_size() == found.base->get_size());
        parameter(j, "swa_cells", found.window->get_size());
    }
}

void describe_offload(const llama_context * context, json & j) {
    const llama_model &        model   = context->get_model();
    const ggml_backend_sched_t sched   = context->get_sched();
    auto                       name_of = [](ggml_backend_dev_t device) {
        return device ? ggml_backend_dev_name(device) : nullptr;
    };
    j.open('{').key("backends").open('[');
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); i++) {
        j.value(ggml_backend_name(ggml_backend_sched_get_backend(sched, i)));
    }
    j.close(']').key("layers").open('[');
    for (uint32_t i = 0; i < model.hparams.n_layer(); i++) {
        j.value(name_of(model.dev_layer(static_cast<int>(i))));
    }
    j.close(']').pair("output", name_of(model.dev_output())).key("buffers").open('[');
    std::map<std::string, std::pair<ggml_backend_buffer_type_t, llama_memory_breakdown_data>> kinds;
    for (const auto & [type, bytes] : llama_get_memory_breakdown(context)) {
        auto & kind = kinds[ggml_backend_buft_name(type)]; // one device may have two of a name
        kind.first  = type;
        kind.second.model += bytes.model;
        kind.second.context += bytes.context;
        kind.second.compute += bytes.compute;
    }
    for (const auto & [name, kind] : kinds) {
        const auto & [type, bytes] = kind;
        if (bytes.total() > 0) {
            const bool         host   = ggml_backend_buft_is_host(type);
            ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
            if (!device && host) { // the CPU's own names none
                device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
            }
            j.open('{').pair("name", name).pair("device", name_of(device));
            j.pair("host", host).pair("model", bytes.model);
            j.pair("memory", bytes.context).pair("compute", bytes.compute).close('}');
        }
    }
    j.close(']').close('}');
}

const char * memory_class(const llama_context * context) {
    return find_caches(context).name;
}

void describe_streams(const llama_context * context, json & j) {
    const uint32_t n_seq_max = llama_n_seq_max(context);
    const bool     unified   = context->get_cparams().kv_unified;
    if (rolls_back(context)) {
        j.value(unified ? 1 : n_seq_max);
    } else {
        j.value(n_seq_max).value(unified);
    }
}

void first_and_last(const llama_context * context, int32_t seq_id, int32_t & first,
                    int32_t & last) {
    const llama_kv_cache * full   = find_caches(context).base;
    const llama_memory_i * memory = context->get_memory();
    first = full ? full->seq_pos_min(seq_id) : memory->seq_pos_min(seq_id);
    last  = full ? full->seq_pos_max(seq_id) : memory->seq_pos_max(seq_id);
}

const char * out_of_step(const llama_context * context, int32_t seq_id, int32_t position) {
    const caches found = find_caches(context);
    if (found.window) {
        const llama_hparams & hparams = context->get_model().hparams;
        const llama_pos       all     = found.base->seq_pos_min(seq_id);
        const llama_pos       kept    = found.window->seq_pos_min(seq_id);
        const llama_pos       first   = kept < 0 ? position : kept;
        if (all >= 0 && first > all &&
            !llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, first - 1, position)) {
            return "the sliding window has lost what comes before it: restore a state, or open the "
                   "context with swa_full";
        }
    }
    if (!rolls_back(context) && context->get_memory()->seq_pos_max(seq_id) != position - 1) {
        return "the memory's recurrent part stands elsewhere: remove what it has not seen, or "
               "restore a whole state";
    }
    return nullptr;
}

bool rolls_back(const llama_context * context) {
    const auto * memory = context->get_memory();
    return dynamic_cast<const llama_kv_cache *>(memory) ||
           dynamic_cast<const llama_kv_cache_iswa *>(memory);
}

bool is_causal(const llama_model * model) {
    return model->hparams.causal_attn;
}

bool splits_blocks(const llama_model * model, ggml_type type_k) {
    for (uint32_t i = 0; i < model->hparams.n_layer(); i++) {
        if (model->hparams.n_embd_head_k(i) % static_cast<uint32_t>(ggml_blck_size(type_k)) != 0) {
            return true;
        }
    }
    return false;
}

std::string too_large_for_a_device(const llama_model * model, const llama_context_params & params) {
    if (!params.offload_kqv) {
        return "";
    }
    const llama_hparams & hparams = model->hparams;
    const int64_t         n_ctx   = params.n_ctx ? params.n_ctx : hparams.n_ctx_train;
    const int64_t         n_cells = GGML_PAD(n_ctx, 256); // as llama_context makes them
    for (uint32_t i = 0; i < hparams.n_layer(); i++) {
        ggml_backend_dev_t device = model->dev_layer(static_cast<int>(i));
        if (!offloads(device) || hparams.is_recr(i) || (hparams.is_swa(i) && !params.swa_full)) {
            continue;
        }
        // values that lie transposed have one width for all layers
        const uint32_t width_v = params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED
                                     ? hparams.n_embd_v_gqa_max()
                                     : hparams.n_embd_v_gqa(i);
        for (const auto & [type, width] : {std::pair(params.type_k, hparams.n_embd_k_gqa(i)),
                                           std::pair(params.type_v, width_v)}) {
            ggml_tensor part = {};
            part.type        = type;
            part.ne[0]       = width;
            part.ne[1]       = n_cells;
            part.ne[2] = part.ne[3] = 1;
            part.nb[0]              = ggml_type_size(type);
            part.nb[1]              = ggml_row_size(type, width);
            part.nb[2] = part.nb[3] = part.nb[1] * static_cast<size_t>(n_cells);
            if (width > 0 && !ggml_backend_dev_supports_op(device, &part)) {
                return "n_ctx = " + std::to_string(n_ctx) + ": a layer's cache of " +
                       std::to_string(ggml_nbytes(&part) >> 20) + " MiB is more than " +
                       ggml_backend_dev_name(device) + " takes in one piece";
            }
        }
    }
    return "";
}

std::string too_many_devices(const llama_model * model) {
    constexpr int most = 16; // GGML_SCHED_MAX_BACKENDS, which ggml-backend.cpp keeps to itself
    int           n    = llama_model_n_devices(model) + 1; // the CPU
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        n += ggml_backend_dev_type(ggml_backend_dev_get(i)) == GGML_BACKEND_DEVICE_TYPE_ACCEL;
    }
    return n <= most ? ""
                     : std::to_string(n) + " devices with the CPU and its helpers: ggml takes " +
                           std::to_string(most) + " at most";
}

bool gives_layer_input(const llama_context * context, int32_t layer) {
    const ggml_tensor * input = context->get_gf_res_reserve()->get_layer_inp(layer);
    return input && input->type == GGML_TYPE_F32 && input->ne[2] == 1 && input->ne[3] == 1 &&
           input->ne[0] == context->get_model().hparams.n_embd && ggml_is_contiguous(input);
}

bool is_dflash(const llama_model * model) {
    return model->arch == LLM_ARCH_DFLASH;
}

std::string why_no_draft(const llama_model * model) {
    const llama_hparams & hparams = model->hparams;
    const int32_t         mask    = llama_vocab_mask(llama_model_get_vocab(model));
    if (!is_dflash(model)) {
        return "is no DFlash draft: its architecture is " + model->arch_name();
    }
    if (model->dspark_markov_w1 || hparams.dsv4_hc_mult > 0) {
        return "is a DSpark draft (a Markov head), which csb does not run";
    }
    if (number_in_file(model, "dflash.selector_top_k") > 0) {
        return "is a DFlash2 draft (a selector), which csb does not run";
    }
    if (model->d2t && !maps_to_tokens(model)) {
        return "maps its own vocabulary (d2t) to what are no tokens";
    }
    if (llama_model_rope_type(model) == LLAMA_ROPE_TYPE_MROPE) {
        return "is a draft for an M-RoPE target, which csb does not run";
    }
    if (draft_block_size(model) < 2) {
        return "says no block size of 2 or more (dflash.block_size)";
    }
    if (mask < 0 || mask >= llama_vocab_n_tokens(llama_model_get_vocab(model))) {
        return "has no mask token";
    }
    if (hparams.n_layer() == 0) {
        return "has no layers";
    }
    if (model->target_layer_ids.empty()) {
        return "names no layers of a target (dflash.target_layers)";
    }
    if (hparams.n_embd_head_k() != hparams.n_embd_head_v()) {
        return "has keys and values of unequal size";
    }
    if (hparams.swa_type != LLAMA_SWA_TYPE_NONE && !hparams.is_swa_any()) {
        return "has a sliding window and no layer that uses it";
    }
    return "";
}

uint32_t draft_block_size(const llama_model * draft) {
    return number_in_file(draft, "dflash.block_size");
}

bool draft_is_causal(const llama_model * draft) {
    char text[8] = {}; // the loader's own flag is true where the file says nothing
    llama_model_meta_val_str(draft, "dflash.attention.causal", text, sizeof(text));
    return std::string(text) == "true";
}

std::string why_not_beside(const llama_model * draft, const llama_context * target) {
    const llama_model & model = target->get_model();
    auto differ = [](const char * what, auto one, auto other) {
        return std::string("its ") + what + " is " + std::to_string(one) + " and the target's " +
               std::to_string(other);
    };
    if (draft->hparams.n_embd != model.hparams.n_embd) {
        return differ("embedding length", draft->hparams.n_embd, model.hparams.n_embd);
    }
    const uint32_t n_vocab = draft->vocab.n_tokens();
    if (n_vocab != model.vocab.n_tokens()) {
        return differ("vocabulary size", n_vocab, model.vocab.n_tokens());
    }
    for (int32_t layer : draft->target_layer_ids) {
        if (layer < 0 || layer > llama_model_n_layer(&model)) {
            return "it reads layer " + std::to_string(layer) + " of a target with " +
                   std::to_string(llama_model_n_layer(&model)) + " layers";
        }
        if (!gives_layer_input(target, layer)) {
            return "llama.cpp's graph of the target's architecture (" + model.arch_name() +
                   ") does not give the input of layer " + std::to_string(layer);
        }
    }
    for (const auto & [own, shared] : {std::pair(draft->tok_embd, model.tok_embd),
                                       std::pair(draft->output, model.output)}) {
        if (!own && !(shared && reaches(draft, shared))) {
            return "it uses the target's embeddings and head, which its devices can't reach";
        }
    }
    return "";
}

void describe_tensor_types(const llama_model * model, json & j) {
    std::map<std::string, int> counts;
    for (const auto & [name, tensor] : model->tensors_by_name) {
        counts[ggml_type_name(tensor->type)]++;
    }
    j.open('{');
    for (const auto & [type, n] : counts) {
        j.pair(type.c_str(), n);
    }
    j.close('}');
}

} // namespace csb
