// The Vulkan devices of this machine with their drivers: ggml tells the names alone, and why it
// finds none it tells nobody.
#include "describe.hpp"

#include <cstdlib>

#include "vulkan.hpp"

namespace {

const char * type_name(VkPhysicalDeviceType type) {
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        return "integrated";
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return "discrete";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        return "virtual";
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        return "cpu";
    default:
        return "other";
    }
}

std::string version(uint32_t v) {
    return std::to_string(VK_API_VERSION_MAJOR(v)) + "." + std::to_string(VK_API_VERSION_MINOR(v)) +
           "." + std::to_string(VK_API_VERSION_PATCH(v));
}

// An instance of its own, for as long as it takes to look.
class instance {
  public:
    explicit instance(PFN_vkGetInstanceProcAddr entry) : entry(entry) {
        VkApplicationInfo about         = {};
        about.sType                     = VK_STRUCTURE_TYPE_APPLICATION_INFO;
        about.apiVersion                = VK_API_VERSION_1_2;
        VkInstanceCreateInfo wanted     = {};
        wanted.sType                    = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
        wanted.pApplicationInfo         = &about;
        const PFN_vkCreateInstance make = get<PFN_vkCreateInstance>("vkCreateInstance");
        result = make ? make(&wanted, nullptr, &handle) : VK_ERROR_INITIALIZATION_FAILED;
    }
    ~instance() {
        if (handle) {
            get<PFN_vkDestroyInstance>("vkDestroyInstance")(handle, nullptr);
        }
    }
    instance(const instance &)             = delete;
    instance & operator=(const instance &) = delete;

    std::vector<VkPhysicalDevice> devices() {
        const auto list = get<PFN_vkEnumeratePhysicalDevices>("vkEnumeratePhysicalDevices");
        uint32_t   n    = 0;
        result          = list(handle, &n, nullptr);
        std::vector<VkPhysicalDevice> found(result == VK_SUCCESS ? n : 0);
        if (!found.empty()) {
            result = list(handle, &n, found.data());
            found.resize(n);
        }
        return found;
    }

    csb::vulkan_device describe(VkPhysicalDevice device) {
        VkPhysicalDeviceDriverProperties driver = {};
        VkPhysicalDeviceProperties2      all    = {};
        driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
        all.sType    = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
        all.pNext    = &driver;
        get<PFN_vkGetPhysicalDeviceProperties2>("vkGetPhysicalDeviceProperties2")(device, &all);
        return {all.properties.deviceName, type_name(all.properties.deviceType), driver.driverName,
                driver.driverInfo, version(all.properties.apiVersion)};
    }

    VkResult result = VK_SUCCESS;

  private:
    template <typename F> F get(const char * name) {
        return reinterpret_cast<F>(entry(handle, name));
    }
    PFN_vkGetInstanceProcAddr entry;
    VkInstance                handle = VK_NULL_HANDLE;
};

csb::vulkan_here look() {
    csb::vulkan_here here;
    if (std::getenv("GGML_DISABLE_VULKAN")) { // as ggml: no driver is to be loaded
        here.error = "switched off";
        return here;
    }
    const auto       entry = csb::vulkan_entry();
    if (!entry) {
        here.loader_error = csb::vulkan_loader_error();
        here.error        = "no loader";
        return here;
    }
    instance one(entry);
    if (one.result == VK_SUCCESS) {
        for (VkPhysicalDevice device : one.devices()) {
            here.devices.push_back(one.describe(device));
        }
    }
    if (one.result == VK_ERROR_INCOMPATIBLE_DRIVER ||
        (one.result == VK_SUCCESS && here.devices.empty())) {
        here.error = "no driver";
    } else if (one.result != VK_SUCCESS) {
        here.error = "VkResult " + std::to_string(one.result);
    }
    return here;
}

} // namespace

namespace csb {

const vulkan_here & look_for_vulkan() {
    static const vulkan_here & here = *new vulkan_here(look());
    return here;
}

void describe_vulkan(json & j) {
    const vulkan_here & here = look_for_vulkan();
    j.open('{').pair("loader_error", here.loader_error).pair("error", here.error);
    j.key("devices").open('[');
    for (const vulkan_device & d : here.devices) {
        j.open('{').pair("name", d.name).pair("type", d.type).pair("driver", d.driver);
        j.pair("driver_info", d.driver_info).pair("api", d.api).close('}');
    }
    j.close(']').close('}');
}

} // namespace csb
