// Where a watcher is in force the scheduler stops at every node that computes something.
#include "../node.hpp"
#include "log.hpp"

bool csb::computes(const ggml_tensor * node) {
    switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return false;
    default:
        return ggml_nelements(node) > 0;
    }
}

namespace {

// The scheduler asks for each node whether it should stop after it, then calls again when it has.
bool on_node(ggml_tensor * node, bool ask, void * sched) {
    if (!csb::computes(node)) {
        return !ask; // false to a call after it would end the split
    }
    const csb::watch *   watch = csb::current_watch();
    const csb::hold_node here(static_cast<ggml_backend_sched_t>(sched), node);
    watch->watcher(watch->user, here.name(), !ask);
    return true;
}

} // namespace

namespace csb {

void watch_nodes(ggml_backend_sched * sched, bool on) {
    ggml_backend_sched_set_eval_callback(sched, on ? on_node : nullptr, on ? sched : nullptr);
}

} // namespace csb
