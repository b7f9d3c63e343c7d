// The pipelines that run on Vulkan devices, by the labels that ggml-vulkan puts around every node
// and every dispatch where GGML_VK_DEBUG_MARKERS is set and VK_EXT_debug_utils is there.
#pragma once

#include <string>

struct ggml_cgraph;

namespace csb {

#ifdef CSB_VULKAN

// From here on dispatches are noted as kernels of the graph's nodes. One at a time.
class vulkan_watch {
  public:
    explicit vulkan_watch(ggml_cgraph * graph); // NULL: nothing to watch
    ~vulkan_watch();
    vulkan_watch(const vulkan_watch &)             = delete;
    vulkan_watch & operator=(const vulkan_watch &) = delete;

    std::string why_not() const; // empty: labels came
};

#else

class vulkan_watch {
  public:
    explicit vulkan_watch(ggml_cgraph *) {}
    std::string why_not() const { return "this build has no hook on Vulkan"; }
};

#endif

} // namespace csb
