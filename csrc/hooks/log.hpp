#pragma once

#include <vector>

#include "../json.hpp"
#include "hooks.hpp"

struct ggml_cgraph;
struct ggml_tensor;
struct ggml_backend_sched;

namespace csb {

// All threads' events since the last time, and the most threads that a kernel had.
struct drained {
    std::vector<event> events;
    int                n_threads = 0;
};
drained take_events();

// Those events by the graph's nodes, as an array of csb_context_trace_take's "kernels". Returns the
// most threads that a kernel had.
int describe_kernels(json & j, ggml_cgraph * graph);

bool computes(const ggml_tensor * node); // others only say how memory is read
void watch_nodes(ggml_backend_sched * sched, bool on); // by the current watcher

} // namespace csb
