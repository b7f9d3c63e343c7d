// The handles behind csb_model and csb_context, and the table of those that are open: a pointer
// that is not in it is refused, so use after close is an error and not a crash.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "guard.hpp"
#include "llama.h"

struct csb_model {
    struct deleter {
        void operator()(llama_model * m) const { llama_model_free(m); }
    };
    std::shared_ptr<llama_model> model; // shared with the contexts made from it
    std::string                  path;
};

struct csb_context {
    struct deleter {
        void operator()(llama_context * c) const { llama_free(c); }
    };
    std::shared_ptr<llama_model>            model;
    std::unique_ptr<llama_context, deleter> context;
    std::atomic<bool>                       running{false};
    std::atomic<bool>                       cancelled{false};
    int64_t                                 decode_ns = 0;
    int64_t                                 decode_n  = 0;
    std::vector<int8_t>                     outputs; // of the last decode, by batch entry
};

namespace csb {

enum class kind { model, context };

void register_handle(const void * handle, kind k);
bool forget_handle(const void * handle, kind k); // false: it was not open
void require_handle(const void * handle, kind k);

inline csb_model & open_model(csb_model * handle) {
    require_handle(handle, kind::model);
    return *handle;
}
inline csb_context & open_context(csb_context * handle) {
    require_handle(handle, kind::context);
    return *handle;
}

} // namespace csb
