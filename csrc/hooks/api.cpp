// csb.h's tracing, watching and kernel switches.
#include "../handles.hpp"
#include "cupti.hpp"
#include "hooks.hpp"

namespace {

void need_hooks() {
    if (!csb::hooks_built()) {
        throw csb::error(CSB_ERROR_UNSUPPORTED,
                         "this build has no hooks (CSB_HOOKS=OFF, or a linker without --wrap)");
    }
}

constexpr int32_t ALL_SWITCHES =
    CSB_WITHOUT_LLAMAFILE | CSB_WITHOUT_TILED | CSB_WITHOUT_SPLIT_KV | CSB_REFERENCE;

} // namespace

int32_t csb_kernels_set(int32_t switches) {
    return csb::guarded([&] {
        if (switches != 0) {
            need_hooks();
        }
        csb::check((switches & ~ALL_SWITCHES) == 0, "switches", switches, "has unknown switches");
        csb::set_kernel_switches(static_cast<uint32_t>(switches));
        return CSB_OK;
    });
}

int32_t csb_kernels_get(int32_t * out_switches) {
    return csb::guarded([&] {
        *csb::check_ptr(out_switches, "out_switches") =
            static_cast<int32_t>(csb::kernel_switches());
        return CSB_OK;
    });
}

int32_t csb_context_watch(csb_context * handle, csb_watcher watcher, void * user) {
    return csb::guarded([&] {
        const csb::use c(handle);
        if (watcher) {
            need_hooks();
        }
        c->watch = {watcher, user};
        return CSB_OK;
    });
}

int32_t csb_context_trace(csb_context * handle, int32_t graph, int32_t kernels, int64_t limit) {
    return csb::guarded([&] {
        const csb::use c(handle);
        if (graph || kernels) {
            need_hooks();
        }
        csb::check(limit >= 0, "limit", limit, "must not be negative");
        if (kernels) {
            csb::open_cupti();
        }
        c->trace       = csb::trace();
        c->trace.limit = static_cast<size_t>(limit);
        c->trace.flags =
            (graph ? csb::RECORD_GRAPH : 0u) | (kernels ? csb::RECORD_KERNELS : 0u);
        return CSB_OK;
    });
}

int32_t csb_context_trace_take(csb_context * handle, const char ** out_json, int64_t * out_lost) {
    return csb::guarded([&] {
        const csb::use c(handle);
        csb::check_ptr(out_json, "out_json");
        *csb::check_ptr(out_lost, "out_lost") = c->trace.lost;
        *out_json     = csb::keep_text("[" + c->trace.calls + "]");
        c->trace.lost = 0;
        c->trace.calls.clear();
        return CSB_OK;
    });
}
