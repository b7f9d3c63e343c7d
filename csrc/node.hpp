// A node of a graph while a watcher looks at it.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

struct csb_node {
    ggml_backend_sched_t sched;
    ggml_tensor *        tensor;
};

namespace csb {

// The node that this thread's watcher has in hand: there is none outside its call, and a pointer
// to any other is refused.
void hold_node(csb_node * node);

} // namespace csb
