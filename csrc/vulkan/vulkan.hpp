// What csb asks of Vulkan itself, beside ggml-vulkan.
#pragma once

#include <string>

#include <vulkan/vulkan_core.h>

namespace csb {

PFN_vkGetInstanceProcAddr vulkan_entry();        // the loader's; NULL: it is not installed
const std::string &       vulkan_loader_error(); // why not

// What stands for a function that was looked up: itself, or a hook that calls it.
PFN_vkVoidFunction vulkan_hook(const char * name, PFN_vkVoidFunction real);

} // namespace csb
