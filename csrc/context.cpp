// Opening and describing contexts, and the positions in their memory.
#include "context.hpp"
#include "internals.hpp"

namespace {

using csb::error;

// The types llama.cpp's own tools accept for the cache; others would abort inside the graph.
const std::vector<std::pair<const char *, ggml_type>> CACHE_TYPES = {
    {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16},
    {"q8_0", GGML_TYPE_Q8_0}, {"q5_1", GGML_TYPE_Q5_1}, {"q5_0", GGML_TYPE_Q5_0},
    {"q4_1", GGML_TYPE_Q4_1}, {"q4_0", GGML_TYPE_Q4_0}, {"iq4_nl", GGML_TYPE_IQ4_NL},
};

llama_context_params read_options(csb::options options) {
    llama_context_params p = llama_context_default_params();
    options.whole("n_ctx", p.n_ctx, 0, 1 << 24); // beyond, its bookkeeping alone takes gigabytes
    options.whole("n_batch", p.n_batch, 1, 1 << 24);
    options.whole("n_ubatch", p.n_ubatch, 1, 1 << 24);
    options.whole("n_seq_max", p.n_seq_max, 1, static_cast<long long>(llama_max_parallel_sequences()));
    options.whole("n_threads", p.n_threads, 1, 512); // GGML_MAX_N_THREADS
    options.whole("n_threads_batch", p.n_threads_batch, 1, 512);
    options.choice("flash_attn", p.flash_attn_type,
                   {{"on", LLAMA_FLASH_ATTN_TYPE_ENABLED},
                    {"off", LLAMA_FLASH_ATTN_TYPE_DISABLED},
                    {"auto", LLAMA_FLASH_ATTN_TYPE_AUTO}});
    options.choice("type_k", p.type_k, CACHE_TYPES);
    options.choice("type_v", p.type_v, CACHE_TYPES);
    options.flag("offload_kqv", p.offload_kqv);
    options.flag("op_offload", p.op_offload);
    options.flag("swa_full", p.swa_full);
    options.flag("kv_unified", p.kv_unified);
    options.real("rope_freq_base", p.rope_freq_base);
    options.real("rope_freq_scale", p.rope_freq_scale);
    options.finish();
    return p;
}

void check_seq(const llama_context * context, int32_t seq_id) {
    csb::check(seq_id >= 0 && seq_id < static_cast<int32_t>(llama_n_seq_max(context)), "seq_id",
               seq_id, "must be from 0 to n_seq_max - 1");
}

bool is_cancelled(void * data) {
    return static_cast<csb_context *>(data)->cancelled.load(std::memory_order_relaxed);
}

} // namespace

std::shared_ptr<csb_context> csb::make_context(std::shared_ptr<llama_model> model,
                                               csb::options                 options,
                                               std::shared_ptr<csb_context> target) {
    auto handle    = std::make_shared<csb_context>();
    handle->model  = std::move(model);
    handle->target = std::move(target);

    llama_context_params params = read_options(options);
    if (csb::splits_blocks(handle->model.get(), params.type_k)) {
        throw error(CSB_ERROR_UNSUPPORTED,
                    std::string("type_k = ") + ggml_type_name(params.type_k) +
                        ": the model's heads are no multiple of its blocks");
    }
    const std::string too_large = csb::too_large_for_a_device(handle->model.get(), params);
    if (!too_large.empty()) {
        throw error(CSB_ERROR_DEVICE, too_large);
    }
    const std::string too_many = csb::too_many_devices(handle->model.get());
    if (!too_many.empty()) {
        csb::bad_argument(too_many);
    }
    params.abort_callback      = is_cancelled;
    params.abort_callback_data = handle.get();
    params.ctx_other           = handle->target ? handle->target->context.get() : nullptr;
    csb::last_log_error();
    handle->context.reset(llama_init_from_model(handle->model.get(), params));
    if (!handle->context) {
        const std::string why     = csb::last_log_error();
        throw error(csb::says_no_room(why) ? CSB_ERROR_DEVICE : CSB_ERROR_UNSUPPORTED,
                    "llama.cpp can't make this context" +
                        (why.empty() ? std::string() : ": " + why));
    }
    if (!llama_get_memory(handle->context.get())) {
        throw error(CSB_ERROR_UNSUPPORTED, "the model keeps no memory: it is no decoder");
    }
    handle->origin = csb::state_origin(*handle);
    return handle;
}

int32_t csb_context_open(csb_model * model, int32_t n_options, const char * const * keys,
                         const char * const * values, csb_context ** out_context) {
    return csb::guarded([&] {
        csb::check_ptr(out_context, "out_context");
        const auto held = csb::open_model(model);
        if (held->draft) {
            throw error(CSB_ERROR_UNSUPPORTED, "a draft decodes beside its target: csb_draft_open");
        }
        *out_context = csb::register_handle(
            csb::make_context(held->model, csb::options(n_options, keys, values)));
        return CSB_OK;
    });
}

void csb_context_close(csb_context * context) {
    csb::forget_handle(context);
}

int32_t csb_context_describe(csb_context * handle, const char ** out_json) {
    return csb::guarded([&] {
        csb::check_ptr(out_json, "out_json");
        const csb::use  c(handle);
        llama_context * context = c.llama();
        csb::json       j;
        j.open('[');
        auto getter = [&](const char * name, auto value) {
            j.open('{').pair("name", name).pair("value", value).pair("source", "getter").close('}');
        };
        getter("n_ctx", llama_n_ctx(context));
        getter("n_ctx_seq", llama_n_ctx_seq(context));
        getter("n_batch", llama_n_batch(context));
        getter("n_ubatch", llama_n_ubatch(context));
        getter("n_seq_max", llama_n_seq_max(context));
        getter("n_rs_seq", llama_n_rs_seq(context));
        getter("n_threads", llama_n_threads(context));
        getter("n_threads_batch", llama_n_threads_batch(context));
        csb::describe_internal_parameters(context, j);
        j.open('{').pair("name", "memory").pair("value", csb::memory_class(context));
        j.pair("source", "library").close('}');
        *out_json = csb::keep_text(j.close(']').str());
        return CSB_OK;
    });
}

int32_t csb_context_offload(csb_context * handle, const char ** out_json) {
    return csb::guarded([&] {
        csb::check_ptr(out_json, "out_json");
        const csb::use c(handle);
        csb::json      j;
        csb::describe_offload(c.llama(), j);
        *out_json = csb::keep_text(j.str());
        return CSB_OK;
    });
}

int32_t csb_context_seq_rm(csb_context * handle, int32_t seq_id, int32_t p0, int32_t p1,
                           int32_t * out_removed) {
    return csb::guarded([&] {
        const csb::use c(handle);
        check_seq(c.llama(), seq_id);
        csb::check(p0 >= 0, "p0", p0, "must not be negative");
        csb::check(p1 < 0 || p1 >= p0, "p1", p1, "is before p0");
        csb::check_ptr(out_removed, "out_removed");
        *out_removed = llama_memory_seq_rm(llama_get_memory(c.llama()), seq_id, p0, p1);
        if (*out_removed) {
            c->tap.cut(p0);
        }
        if (*out_removed && p0 == 0 && p1 < 0) {
            c->torn.erase(seq_id);
        }
        return CSB_OK;
    });
}

int32_t csb_context_seq_bounds(csb_context * handle, int32_t seq_id, int32_t * out_min,
                               int32_t * out_max) {
    return csb::guarded([&] {
        const csb::use c(handle);
        check_seq(c.llama(), seq_id);
        csb::check_ptr(out_min, "out_min");
        csb::check_ptr(out_max, "out_max");
        csb::first_and_last(c.llama(), seq_id, *out_min, *out_max);
        return CSB_OK;
    });
}

int32_t csb_context_clear(csb_context * handle, int32_t data) {
    return csb::guarded([&] {
        const csb::use c(handle);
        llama_memory_clear(llama_get_memory(c.llama()), data != 0);
        c->tap.clear();
        c->torn.clear();
        return CSB_OK;
    });
}
