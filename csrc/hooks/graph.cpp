// The graph hook: where libllama submits a graph, its nodes are written down as they are about to
// run, each with the backend the scheduler gave it. Nothing is executed otherwise than without it.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "../json.hpp"
#include "cupti.hpp"
#include "log.hpp"
#include "vulkan.hpp"

namespace {

void shape(csb::json & j, const ggml_tensor * t) {
    j.open('[');
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        j.value(t->ne[i]);
    }
    j.close(']');
}

void describe(csb::json & j, ggml_backend_sched_t sched, ggml_tensor * node) {
    ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched, node);
    j.open('{').pair("name", ggml_get_name(node)).pair("op", ggml_op_desc(node));
    j.pair("type", ggml_type_name(node->type)).key("ne");
    shape(j, node);
    j.pair("backend", backend ? ggml_backend_name(backend) : nullptr).key("src").open('[');
    for (int i = 0; i < GGML_MAX_SRC && node->src[i]; i++) {
        j.open('{').pair("name", ggml_get_name(node->src[i]));
        j.pair("type", ggml_type_name(node->src[i]->type)).key("ne");
        shape(j, node->src[i]);
        j.close('}');
    }
    j.close(']').close('}');
}

// The kernel that ran where every other one that was asked said no.
std::string vec_dot_name(ggml_type type) {
    const ggml_type with = ggml_get_type_traits_cpu(type)->vec_dot_type;
    std::string     name = std::string("ggml_vec_dot_") + ggml_type_name(type);
    return with == type && !ggml_is_quantized(type) ? name : name + "_" + ggml_type_name(with);
}

// The name of the weight that a node multiplies by: its address lies in a buffer of weights.
const char * weight_name(const ggml_tensor * node) {
    const ggml_tensor * w = node->src[0];
    const bool is_weight  = w && w->buffer && ggml_backend_buffer_get_usage(w->buffer) ==
                                                 GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    return is_weight ? ggml_get_name(w) : nullptr;
}

} // namespace

int csb::describe_kernels(csb::json & j, ggml_cgraph * graph) {
    using key = std::tuple<int, std::string, bool, int64_t, int64_t, int64_t>;
    std::unordered_map<const ggml_tensor *, int> index;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        index[ggml_graph_node(graph, i)] = i;
    }
    std::map<key, int64_t> counts;
    struct answers {
        bool yes = false, no = false;
    };
    std::map<int, answers> asked; // of products: what the kernels said that were asked
    const csb::drained     seen = csb::take_events();
    for (const csb::event & e : seen.events) {
        const auto at = index.find(e.node);
        const int  i  = at == index.end() ? -1 : at->second;
        counts[{i, e.kernel, e.accepted, e.m, e.n, e.k}] += e.count;
        if (i >= 0) {
            (e.accepted ? asked[i].yes : asked[i].no) = true;
        }
    }
    for (const auto & [i, said] : asked) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        // Each expert of a product of experts is asked for: vec_dot has those that were refused.
        if (node->op == GGML_OP_MUL_MAT ? !said.yes : node->op == GGML_OP_MUL_MAT_ID && said.no) {
            counts[{i, vec_dot_name(node->src[0]->type), true, 0, 0, 0}] += 1;
        }
    }
    j.open('[');
    for (const auto & [k, count] : counts) {
        const auto & [i, name, accepted, m, n, kk] = k;
        j.open('{').pair("node", i).pair("kernel", name).pair("accepted", accepted);
        j.pair("count", count);
        if (const char * weight = i >= 0 ? weight_name(ggml_graph_node(graph, i)) : nullptr) {
            j.pair("weight", weight);
        }
        if (m) {
            j.pair("m", m).pair("n", n).pair("k", kk);
        }
        j.close('}');
    }
    j.close(']');
    return seen.n_threads;
}

extern "C" ggml_status __real_ggml_backend_sched_graph_compute_async(ggml_backend_sched_t,
                                                                    ggml_cgraph *);

namespace {

using backends = std::set<ggml_backend_t>;

// Of the nodes that compute something.
backends backends_of(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    backends found;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        if (csb::computes(node)) {
            found.insert(ggml_backend_sched_get_tensor_backend(sched, node));
        }
    }
    found.erase(nullptr);
    return found;
}

bool has(const backends & used, const char * family) {
    return std::any_of(used.begin(), used.end(), [family](ggml_backend_t backend) {
        return std::strncmp(ggml_backend_name(backend), family, std::strlen(family)) == 0;
    });
}

// Nothing where the ubatch has nothing to do with CUDA.
void device_kernels(csb::json & j, csb::device_kernels found, bool expected) {
    if (expected && found.ran.empty() && found.why_not.empty()) {
        found.why_not = "CUPTI recorded no kernel of this ubatch";
    }
    if (!found.why_not.empty()) {
        if (expected) {
            j.pair("device_not_observable", found.why_not);
        }
    } else if (!found.ran.empty()) {
        j.key("device_kernels").open('[');
        for (const auto & [name, count] : found.ran) {
            j.open('{').pair("kernel", name).pair("count", count).close('}');
        }
        j.close(']');
    }
    if (found.lost > 0) {
        j.pair("device_lost", found.lost);
    }
}

ggml_status traced(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    csb::trace * trace = csb::hooks() ? csb::current_trace() : nullptr;
    if (!trace) {
        return __real_ggml_backend_sched_graph_compute_async(sched, graph);
    }
    csb::json j;
    j.open('{').pair("n_splits", ggml_backend_sched_get_n_splits(sched));
    j.pair("n_nodes", ggml_graph_n_nodes(graph));
    if (trace->flags & csb::RECORD_GRAPH) {
        j.key("nodes").open('[');
        for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
            describe(j, sched, ggml_graph_node(graph, i));
        }
        j.close(']');
    }
    const bool        with_kernels = trace->flags & csb::RECORD_KERNELS;
    const backends    used         = with_kernels ? backends_of(sched, graph) : backends{};
    const bool        cuda         = has(used, "CUDA");
    const bool        vulkan       = has(used, "Vulkan");
    csb::device_watch watch(with_kernels);
    csb::vulkan_watch labels(vulkan ? graph : nullptr);
    const ggml_status status = __real_ggml_backend_sched_graph_compute_async(sched, graph);
    if (with_kernels) {
        ggml_backend_sched_synchronize(sched);
        std::set<std::string> names; // in an order that is the same in every run
        for (ggml_backend_t backend : used) {
            names.insert(ggml_backend_name(backend));
        }
        j.key("backends").open('[');
        for (const std::string & name : names) {
            j.value(name);
        }
        j.close(']').key("kernels");
        const int n_threads = csb::describe_kernels(j, graph);
        j.pair("n_threads", n_threads);
        device_kernels(j, watch.end(), cuda);
        if (vulkan && !cuda && !labels.why_not().empty()) {
            j.pair("device_not_observable", labels.why_not());
        }
    }
    j.close('}');
    trace->add_ubatch(j.str());
    return status;
}

} // namespace

extern "C" {

ggml_status __wrap_ggml_backend_sched_graph_compute_async(ggml_backend_sched_t sched,
                                                          ggml_cgraph *        graph) {
    const bool watched = csb::hooks() & csb::WATCH;
    if (watched) {
        csb::watch_nodes(sched, true);
    }
    const ggml_status status = traced(sched, graph);
    if (watched) {
        csb::watch_nodes(sched, false);
    }
    return status;
}

} // extern "C"
