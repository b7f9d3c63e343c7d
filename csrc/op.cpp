// One op by itself: a graph of one node on one device.
#include <algorithm>
#include <cstring>
#include <vector>

#include "buffers.hpp"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "guard.hpp"
#include "hooks/hooks.hpp"
#include "json.hpp"
#include "op.hpp"
#ifdef CSB_HOOKS
#include "hooks/log.hpp"
#endif

namespace {

using csb::error;

constexpr int64_t FAR = int64_t{1} << 40; // no tensor reaches beyond so many bytes

ggml_backend_dev_t find_device(const std::string & name) {
    std::string known;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (name == ggml_backend_dev_name(device)) {
            return device;
        }
        known += (known.empty() ? "" : ", ") + std::string(ggml_backend_dev_name(device));
    }
    csb::bad_argument("device = " + name + ": must be one of " + known);
}

void check_shape(const std::string & what, ggml_type type, const int64_t * ne) {
    int64_t n = 1;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        csb::check(ne[d] >= 1 && ne[d] < int64_t{1} << 31, (what + "'s ne").c_str(), ne[d],
                   "must be from 1 to 2^31 - 1");
        n = n <= FAR / ne[d] ? n * ne[d] : FAR + 1;
        csb::check(n <= FAR, (what + "'s ne").c_str(), ne[d], "makes too many elements");
    }
    csb::check(n / ne[0] < int64_t{1} << 31, (what + "'s rows").c_str(), n / ne[0], "are too many");
    const int64_t block = ggml_blck_size(type);
    if (ne[0] % block != 0) {
        csb::bad_argument(what + "'s ne = " + std::to_string(ne[0]) + ": is no multiple of " +
                          ggml_type_name(type) + "'s blocks of " + std::to_string(block));
    }
}

// The strides, where they are given, and that the data spans what they reach.
void set_strides(ggml_tensor * t, const std::string & what, const int64_t * nb, int64_t size) {
    const auto element = static_cast<int64_t>(ggml_type_size(t->type));
    if (nb[0] || nb[1] || nb[2] || nb[3]) {
        for (int d = 0; d < GGML_MAX_DIMS; d++) {
            csb::check(nb[d] > 0 && nb[d] <= FAR && nb[d] % element == 0, (what + "'s nb").c_str(),
                       nb[d], "must be a multiple of its type's size");
            csb::check(t->ne[d] == 1 || nb[d] <= FAR / t->ne[d], (what + "'s nb").c_str(), nb[d],
                       "reaches too far");
            t->nb[d] = static_cast<size_t>(nb[d]);
        }
    }
    if (size != static_cast<int64_t>(ggml_nbytes(t))) {
        csb::bad_argument(what + " has " + std::to_string(size) + " bytes: its shape spans " +
                          std::to_string(ggml_nbytes(t)));
    }
}

ggml_context_ptr metadata() { // of a node and its sources; their data lies in buffers
    const ggml_init_params params = {2 * (GGML_MAX_SRC + 1) * ggml_tensor_overhead() +
                                         ggml_graph_overhead_custom(GGML_MAX_SRC + 1, false),
                                     nullptr, true};
    ggml_context_ptr       made(ggml_init(params));
    if (!made) {
        throw std::bad_alloc();
    }
    return made;
}

// Whether a model's loader would lay the product's weight into this type of buffer: it asks with
// 512 rows of activations.
bool loader_takes(ggml_backend_dev_t device, ggml_backend_buffer_type_t type,
                  const ggml_tensor * node) {
    const ggml_context_ptr context = metadata();
    const bool             experts = node->op == GGML_OP_MUL_MAT_ID;
    const int64_t *        w       = node->src[0]->ne;
    const int64_t          used    = experts ? node->src[2]->ne[0] : 1;
    const int64_t in[]  = {w[0], experts ? used : 512, experts ? 512 : w[2], experts ? 1 : w[3]};
    const int64_t out[] = {w[1], in[1], in[2], in[3]};
    const int64_t ids[] = {used, 512};
    ggml_tensor * probe = ggml_new_tensor(context.get(), GGML_TYPE_F32, 4, out);
    probe->op           = node->op;
    probe->src[0]       = ggml_new_tensor(context.get(), node->src[0]->type, 4, w);
    probe->src[1]       = ggml_new_tensor(context.get(), GGML_TYPE_F32, 4, in);
    if (experts) {
        probe->src[2] = ggml_new_tensor(context.get(), GGML_TYPE_I32, 2, ids);
    }
    const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(type, 0));
    probe->src[0]->buffer = empty.get();
    return ggml_backend_dev_supports_op(device, probe);
}

// The buffer type of the device that repacks the product's weight; NULL: none.
ggml_backend_buffer_type_t repacking(ggml_backend_dev_t device, const ggml_tensor * node) {
    ggml_backend_buffer_type_t * types = csb::repacking_types(device);
    for (; types && *types; types++) {
        if (loader_takes(device, *types, node)) {
            return *types;
        }
    }
    return nullptr;
}

ggml_backend_buffer_ptr allocate(ggml_context * context, ggml_backend_buffer_type_t type,
                                 ggml_backend_buffer_usage usage) {
    if (!ggml_get_first_tensor(context)) {
        return nullptr;
    }
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    if (!buffer) {
        throw error(CSB_ERROR_MEMORY, std::string("no room in ") + ggml_backend_buft_name(type));
    }
    ggml_backend_buffer_set_usage(buffer.get(), usage);
    return buffer;
}

ggml_backend_ptr open_backend(ggml_backend_dev_t device, int32_t n_threads) {
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    if (!backend) {
        throw error(CSB_ERROR_UNSUPPORTED,
                    std::string("device = ") + ggml_backend_dev_name(device) + ": does not start");
    }
    const auto set =
        reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"));
    if (set) {
        set(backend.get(), n_threads);
    }
    return backend;
}

// Computes the graph, kernel switches in force; the kernels that ran as JSON, null: not observed.
void compute(ggml_backend_t backend, ggml_cgraph * graph, bool observe, csb::json & j) {
    csb::trace kernels;
    kernels.flags = csb::RECORD_KERNELS;
    const csb::hooks_hold hold(observe ? &kernels : nullptr);
    const ggml_status     status = ggml_backend_graph_compute(backend, graph);
    j.key("kernels");
#ifdef CSB_HOOKS
    if (observe) {
        csb::describe_kernels(j, graph); // also after a failure: the events end here
    } else
#endif
    {
        j.value(static_cast<const char *>(nullptr));
    }
    if (status != GGML_STATUS_SUCCESS) {
        throw error(CSB_ERROR_COMPUTE, "the device could not compute the op");
    }
}

} // namespace

int32_t csb_op_run(const char * op, const char * device_name, int32_t n_threads, int32_t repack,
                   int32_t observe, const int32_t * op_params, const char * out_type,
                   const int64_t * out_ne, int32_t n_sources, const char * const * types,
                   const int64_t * ne, const int64_t * nb, const void * const * data,
                   const int64_t * sizes, const int8_t * is_weight, int64_t capacity,
                   uint8_t * out_bytes, const char ** out_json) {
    return csb::guarded([&] {
        csb::check(n_threads >= 1 && n_threads <= GGML_MAX_N_THREADS, "n_threads", n_threads,
                   "must be from 1 to 512");
        csb::check(n_sources >= 1 && n_sources <= GGML_MAX_SRC, "n_sources", n_sources,
                   "must be from 1 to 10");
        csb::check_ptr(types, "types");
        csb::check_ptr(ne, "ne");
        csb::check_ptr(nb, "nb");
        csb::check_ptr(data, "data");
        csb::check_ptr(sizes, "sizes");
        csb::check_ptr(is_weight, "is_weight");
        csb::check_ptr(out_json, "out_json");
        const ggml_backend_dev_t device = find_device(csb::check_ptr(device_name, "device"));

        int32_t params[GGML_MAX_OP_PARAMS / sizeof(int32_t)];
        std::memcpy(params, csb::check_ptr(op_params, "op_params"), sizeof(params));
        const ggml_op   what = csb::find_op(csb::check_ptr(op, "op"), params);
        const ggml_type type = csb::find_type(csb::check_ptr(out_type, "out_type"));
        check_shape("out", type, csb::check_ptr(out_ne, "out_ne"));

        const bool                 product = what == GGML_OP_MUL_MAT || what == GGML_OP_MUL_MAT_ID;
        const bool                 weight  = product && types[0] && is_weight[0];
        const ggml_context_ptr     weights = metadata(), others = metadata();
        std::vector<ggml_tensor *> sources;
        for (int i = 0; i < n_sources; i++) {
            const std::string name = "source " + std::to_string(i);
            sources.push_back(nullptr);
            if (types[i]) {
                const ggml_type t = csb::find_type(types[i]);
                check_shape(name, t, ne + 4 * i);
                ggml_context * in = weight && i == 0 ? weights.get() : others.get();
                sources[i]        = ggml_new_tensor(in, t, GGML_MAX_DIMS, ne + 4 * i);
                set_strides(sources[i], name, nb + 4 * i, sizes[i]);
                csb::check_ptr(data[i], "data");
            }
        }
        // Last in its buffer: where a kernel reads on past a source's end, it reads here.
        ggml_tensor * node = ggml_new_tensor(others.get(), type, GGML_MAX_DIMS, out_ne);
        node->op           = what;
        std::memcpy(node->op_params, params, sizeof(params));
        std::copy(sources.begin(), sources.end(), node->src);
        ggml_set_name(node, op);
        csb::check_node(node, n_sources > 2 ? data[2] : nullptr);
        csb::check(capacity == static_cast<int64_t>(ggml_nbytes(node)), "capacity", capacity,
                   "is not the output's size");
        csb::check_ptr(out_bytes, "out_bytes");

        const ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(device);
        const ggml_backend_buffer_type_t packed =
            weight && repack ? repacking(device, node) : nullptr;
        if (packed && !ggml_is_contiguous(sources[0])) {
            csb::bad_argument("source 0 is a weight to repack: must be contiguous");
        }
        const ggml_backend_buffer_ptr weight_buffer =
            allocate(weights.get(), packed ? packed : plain, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        const ggml_backend_buffer_ptr buffer =
            allocate(others.get(), plain, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
        // repacked kernels know no fourth dimension
        if (!ggml_backend_dev_supports_op(device, node) || (packed && sources[1]->ne[3] != 1)) {
            throw error(CSB_ERROR_UNSUPPORTED, std::string("op = ") + op + ": " + device_name +
                                                   " does not take these sources" +
                                                   (packed ? ", the first one repacked" : ""));
        }
        csb::json j;
        j.open('{').pair("device", device_name).key("buffers").open('[');
        for (int i = 0; i < n_sources; i++) {
            if (sources[i]) {
                ggml_backend_tensor_set(sources[i], data[i], 0, ggml_nbytes(sources[i]));
            }
            j.value(sources[i] ? ggml_backend_buffer_name(sources[i]->buffer) : nullptr);
        }
        j.close(']');

        const ggml_backend_ptr backend = open_backend(device, n_threads);
        ggml_cgraph *          graph = ggml_new_graph_custom(others.get(), GGML_MAX_SRC + 1, false);
        ggml_build_forward_expand(graph, node);
        const bool observable =
            csb::hooks_built() && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        compute(backend.get(), graph, observe && observable, j);
        ggml_backend_tensor_get(node, out_bytes, 0, ggml_nbytes(node));
        *out_json = csb::keep_text(j.close('}').str());
        return CSB_OK;
    });
}
