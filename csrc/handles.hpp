// The handles behind csb_model and csb_context, and the tables of those that are open: a pointer
// that is not in one is refused, so use after close is an error and not a crash. A call keeps its
// handle alive until it ends, so a close on another thread meanwhile does no harm.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "guard.hpp"
#include "hooks/hooks.hpp"
#include "llama.h"
#include "tap.hpp"

struct csb_model {
    struct deleter {
        void operator()(llama_model * m) const { llama_model_free(m); }
    };
    std::shared_ptr<llama_model> model; // shared with the contexts made from it
    bool                         draft = false; // decodes only beside a target
};

struct csb_context {
    struct deleter {
        void operator()(llama_context * c) const { llama_free(c); }
    };
    std::shared_ptr<llama_model>            model;
    std::shared_ptr<csb_context>            target; // of a draft, whose graphs use its weights
    std::unique_ptr<llama_context, deleter> context;
    std::mutex                              in_use; // held by every call but csb_context_cancel
    std::atomic<bool>                       running{false};
    std::atomic<bool>                       cancelled{false};
    int64_t                                 decode_ns = 0;
    int64_t                                 decode_n  = 0;
    uint64_t                                origin    = 0; // whose states fit: state.cpp
    csb::trace                              trace;
    csb::watch                              watch;
    csb::tap                                tap;
    std::vector<int8_t>                     outputs;       // of the last decode, by batch entry
    std::set<int32_t>                       torn; // sequences a decode that failed left unusable
};

namespace csb {

csb_model *   register_handle(std::shared_ptr<csb_model> handle);
csb_context * register_handle(std::shared_ptr<csb_context> handle);
void          forget_handle(csb_model * handle); // freed when no call uses it any more
void          forget_handle(csb_context * handle);

std::shared_ptr<csb_model>   open_model(csb_model * handle); // throws where it is not open
std::shared_ptr<csb_context> open_context(csb_context * handle);

// One call's hold on a context. A second call meanwhile is refused: llama.cpp has no locks.
class use {
  public:
    explicit use(csb_context * handle)
        : held(open_context(handle)), lock(held->in_use, std::try_to_lock) {
        if (!lock) {
            bad_argument("context is in use by another thread");
        }
    }
    csb_context &   operator*() const { return *held; }
    csb_context *   operator->() const { return held.get(); }
    llama_context * llama() const { return held->context.get(); }

  private:
    std::shared_ptr<csb_context> held;
    std::unique_lock<std::mutex> lock; // released before the handle is
};

uint64_t state_origin(const csb_context & context); // a fingerprint of model and parameters

} // namespace csb
