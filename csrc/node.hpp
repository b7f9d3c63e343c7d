// A node of a graph while a watcher looks at it.
#pragma once

#include <cstdint>

#include "csb.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace csb {

// The node that this thread's watcher has in hand. What the watcher gets is a name for it that is
// never used again: outside its call, and in a later one, it is refused.
class hold_node {
  public:
    hold_node(ggml_backend_sched_t sched, ggml_tensor * tensor);
    ~hold_node();
    hold_node(const hold_node &)             = delete;
    hold_node & operator=(const hold_node &) = delete;

    csb_node * name() const { return reinterpret_cast<csb_node *>(number); }

    const ggml_backend_sched_t sched;
    ggml_tensor * const        tensor;

  private:
    const uintptr_t number;
};

} // namespace csb
