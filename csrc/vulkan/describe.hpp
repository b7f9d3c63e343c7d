#pragma once

#include <string>
#include <vector>

#include "../json.hpp"

namespace csb {

// A physical device of this machine, whether ggml takes it or not.
struct vulkan_device {
    std::string name, type, driver, driver_info, api; // api: the Vulkan version it has
};

struct vulkan_here {
    std::string                loader_error; // why there is no loader, else empty
    std::string                error;        // why there are no devices, else empty
    std::vector<vulkan_device> devices;
};

const vulkan_here & look_for_vulkan(); // once for the process
void                describe_vulkan(json & j);

} // namespace csb
