// What a watcher can do with a node: read and overwrite what it reads, and run it once more alone.
#include "node.hpp"

#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "buffers.hpp"
#include "ggml-cpp.h"
#include "guard.hpp"
#include "json.hpp"

namespace {

using csb::error;

std::atomic<uintptr_t>              numbers{0};
thread_local const csb::hold_node * in_hand = nullptr;

const csb::hold_node & held(const csb_node * node) {
    if (!in_hand || node != in_hand->name()) {
        csb::bad_argument("node is not the one that is being watched");
    }
    return *in_hand;
}

// The node's output (-1) or one of its sources.
ggml_tensor * tensor_of(csb_node * node, int32_t source) {
    ggml_tensor * t = held(node).tensor;
    csb::check(source >= -1 && source < GGML_MAX_SRC && (source < 0 || t->src[source]), "source",
               source, "the node has no such source");
    return source < 0 ? t : t->src[source];
}

ggml_backend_buffer_t buffer_of(const ggml_tensor * t) {
    return t->view_src ? t->view_src->buffer : t->buffer;
}

// Weights lie in buffers of their own, values of this graph in the scheduler's; what is left is
// the memory: a cache or a state.
const char * kind_of(const ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = buffer_of(t);
    if (!buffer) {
        return "none";
    }
    switch (ggml_backend_buffer_get_usage(buffer)) {
    case GGML_BACKEND_BUFFER_USAGE_WEIGHTS:
        return "weight";
    case GGML_BACKEND_BUFFER_USAGE_COMPUTE:
        return "value";
    default:
        return "memory";
    }
}

void describe_tensor(csb::json & j, const ggml_tensor * t) {
    const ggml_tensor * root = t->view_src ? t->view_src : t;
    j.pair("id", reinterpret_cast<uintptr_t>(t)).pair("name", ggml_get_name(t));
    j.pair("root", ggml_get_name(root)).pair("kind", kind_of(t));
    j.pair("type", ggml_type_name(t->type)).pair("block", ggml_blck_size(t->type));
    j.pair("block_bytes", ggml_type_size(t->type)).key("ne").open('[');
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        j.value(t->ne[d]);
    }
    j.close(']').key("nb").open('[');
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        j.value(t->nb[d]);
    }
    j.close(']').pair("repacked", buffer_of(t) && csb::is_repacked(buffer_of(t)));
}

// Some or all of a tensor: `count` places from `first` on along dimension `dim` (-1: everything).
struct slab {
    ggml_tensor * t;
    int64_t       first[GGML_MAX_DIMS] = {0, 0, 0, 0};
    int64_t       ne[GGML_MAX_DIMS];

    slab(ggml_tensor * tensor, int32_t dim, int64_t from, int64_t count) : t(tensor) {
        std::copy(t->ne, t->ne + GGML_MAX_DIMS, ne);
        csb::check(dim >= -1 && dim < GGML_MAX_DIMS, "dim", dim, "must be from -1 to 3");
        if (dim < 0) {
            return;
        }
        csb::check(from >= 0 && count >= 1 && from <= t->ne[dim] - count, "first", from,
                   "these places are not in the tensor");
        const int64_t block = dim == 0 ? ggml_blck_size(t->type) : 1;
        csb::check(from % block == 0, "first", from, "must be whole blocks of the type");
        csb::check(count % block == 0, "count", count, "must be whole blocks of the type");
        first[dim] = from;
        ne[dim]    = count;
    }

    size_t bytes() const { return ggml_row_size(t->type, ne[0]) * size_t(ne[1] * ne[2] * ne[3]); }

    // Calls copy(offset in the tensor's span, offset in contiguous bytes, length) for each piece.
    void pieces(const std::function<void(size_t, size_t, size_t)> & copy) const {
        const size_t  element = ggml_type_size(t->type);
        const int64_t block   = ggml_blck_size(t->type);
        const bool    rows    = t->nb[0] == element; // a whole row in one piece
        const int64_t n       = rows ? 1 : ne[0] / block;
        const size_t  length  = rows ? ggml_row_size(t->type, ne[0]) : element;
        size_t        at      = 0;
        for (int64_t i3 = first[3]; i3 < first[3] + ne[3]; i3++) {
            for (int64_t i2 = first[2]; i2 < first[2] + ne[2]; i2++) {
                for (int64_t i1 = first[1]; i1 < first[1] + ne[1]; i1++) {
                    size_t from = size_t(first[0] / block) * t->nb[0] + size_t(i1) * t->nb[1] +
                                  size_t(i2) * t->nb[2] + size_t(i3) * t->nb[3];
                    for (int64_t i0 = 0; i0 < n; i0++) {
                        copy(from, at, length);
                        from += t->nb[0];
                        at += length;
                    }
                }
            }
        }
    }
};

// The tensor's span in this process's memory: its own, or a copy that write() puts back.
class span {
  public:
    explicit span(ggml_tensor * tensor) : t(tensor) {
        const ggml_backend_buffer_t buffer = buffer_of(t);
        if (!buffer || !t->data) {
            throw error(CSB_ERROR_UNSUPPORTED, std::string(ggml_get_name(t)) + " has no data");
        }
        if (csb::is_repacked(buffer)) {
            throw error(CSB_ERROR_UNSUPPORTED,
                        std::string(ggml_get_name(t)) + " is repacked: it can't be read back");
        }
        if (ggml_backend_buffer_is_host(buffer)) {
            data = static_cast<uint8_t *>(t->data);
            return;
        }
        copy.resize(ggml_nbytes(t));
        ggml_backend_tensor_get(t, copy.data(), 0, copy.size());
        data = copy.data();
    }
    void write() {
        if (!copy.empty()) {
            ggml_backend_tensor_set(t, copy.data(), 0, copy.size());
        }
    }
    uint8_t * data;

  private:
    ggml_tensor *        t;
    std::vector<uint8_t> copy;
};

} // namespace

namespace csb {

hold_node::hold_node(ggml_backend_sched_t sched, ggml_tensor * tensor)
    : sched(sched), tensor(tensor), number(++numbers) {
    in_hand = this;
}

hold_node::~hold_node() {
    in_hand = nullptr;
}

} // namespace csb

int32_t csb_node_describe(csb_node * node, const char ** out_json) {
    return csb::guarded([&] {
        const auto &   n       = held(node);
        ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(n.sched, n.tensor);
        csb::check_ptr(out_json, "out_json");
        csb::json j;
        j.open('{').pair("op", ggml_op_desc(n.tensor));
        describe_tensor(j, n.tensor);
        j.pair("view", n.tensor->view_src != nullptr);
        j.pair("backend", backend ? ggml_backend_name(backend) : nullptr);
        j.key("op_params").open('[');
        for (const int32_t p : n.tensor->op_params) {
            j.value(p);
        }
        j.close(']').key("src").open('[');
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            if (n.tensor->src[i]) {
                j.open('{').pair("index", i);
                describe_tensor(j, n.tensor->src[i]);
                j.close('}');
            }
        }
        *out_json = csb::keep_text(j.close(']').close('}').str());
        return CSB_OK;
    });
}

int32_t csb_node_read(csb_node * node, int32_t source, int32_t dim, int64_t first, int64_t count,
                      int64_t capacity, uint8_t * out_bytes) {
    return csb::guarded([&] {
        const slab s(tensor_of(node, source), dim, first, count);
        csb::check(capacity == static_cast<int64_t>(s.bytes()), "capacity", capacity,
                   "is not these places' size");
        csb::check_ptr(out_bytes, "out_bytes");
        const span memory(s.t);
        s.pieces([&](size_t from, size_t to, size_t length) {
            std::memcpy(out_bytes + to, memory.data + from, length);
        });
        return CSB_OK;
    });
}

int32_t csb_node_write(csb_node * node, int32_t source, int32_t dim, int64_t first, int64_t count,
                       int64_t size, const uint8_t * bytes) {
    return csb::guarded([&] {
        const slab s(tensor_of(node, source), dim, first, count);
        csb::check(size == static_cast<int64_t>(s.bytes()), "size", size,
                   "is not these places' size");
        csb::check_ptr(bytes, "bytes");
        if (std::strcmp(kind_of(s.t), "weight") == 0) {
            csb::bad_argument("source = " + std::to_string(source) + ": weights are not written");
        }
        span memory(s.t);
        s.pieces([&](size_t to, size_t from, size_t length) {
            std::memcpy(memory.data + to, bytes + from, length);
        });
        memory.write();
        return CSB_OK;
    });
}

int32_t csb_node_rerun(csb_node * node, int64_t capacity, uint8_t * out_bytes) {
    return csb::guarded([&] {
        const auto & n = held(node);
        csb::check_ptr(out_bytes, "out_bytes");
        csb::check(capacity == static_cast<int64_t>(ggml_nbytes(n.tensor)), "capacity", capacity,
                   "is not the output's size");
        if (n.tensor->view_src || !ggml_is_contiguous(n.tensor)) {
            throw error(CSB_ERROR_UNSUPPORTED, std::string(ggml_get_name(n.tensor)) +
                                                   " writes into another tensor: it is not run "
                                                   "again");
        }
        ggml_backend_t         backend = ggml_backend_sched_get_tensor_backend(n.sched, n.tensor);
        const ggml_init_params params  = {
            ggml_tensor_overhead() + ggml_graph_overhead_custom(1, false), nullptr, true};
        const ggml_context_ptr context(ggml_init(params));
        if (!backend || !context) {
            throw error(CSB_ERROR_INTERNAL, "the node could not be made again");
        }
        ggml_tensor * again =
            ggml_new_tensor(context.get(), n.tensor->type, GGML_MAX_DIMS, n.tensor->ne);
        again->op    = n.tensor->op;
        again->flags = n.tensor->flags;
        std::memcpy(again->op_params, n.tensor->op_params, sizeof(again->op_params));
        std::copy(n.tensor->src, n.tensor->src + GGML_MAX_SRC, again->src);
        ggml_set_name(again, ggml_get_name(n.tensor));
        const ggml_backend_buffer_ptr buffer(
            ggml_backend_alloc_ctx_tensors(context.get(), backend));
        if (!buffer) {
            throw error(CSB_ERROR_MEMORY, "no room for the node's output");
        }
        ggml_cgraph * graph = ggml_new_graph_custom(context.get(), 1, false);
        ggml_graph_add_node(graph, again); // it alone: its sources are there
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
            throw error(CSB_ERROR_COMPUTE, "the node could not be computed again");
        }
        ggml_backend_tensor_get(again, out_bytes, 0, ggml_nbytes(again));
        return CSB_OK;
    });
}
