// Vulkan's loader, opened at run time: a build for Vulkan runs on the CPU where it is not
// installed. ggml-vulkan refers to the functions below and asks vkGetInstanceProcAddr for all
// others, so that libvulkan itself is not linked.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "vulkan.hpp"

namespace {

struct loader {
    void *      handle = nullptr;
    std::string error;

    loader() {
        for (const char * name : {"libvulkan.so.1", "libvulkan.so"}) {
            handle = handle ? handle : dlopen(name, RTLD_NOW | RTLD_LOCAL);
        }
        if (!handle) {
            const char * why = dlerror();
            error            = why ? why : "not found";
        }
    }
};

const loader & opened() {
    static const loader & one = *new loader; // never freed: a driver may call as the process exits
    return one;
}

template <typename F> F look_up(const char * name) {
    void * handle = opened().handle;
    return handle ? reinterpret_cast<F>(dlsym(handle, name)) : nullptr;
}

// What ggml-vulkan calls first, and gives up on.
VkResult VKAPI_CALL no_version(uint32_t *) {
    return VK_ERROR_INITIALIZATION_FAILED;
}
VkResult VKAPI_CALL no_extensions(const char *, uint32_t *, VkExtensionProperties *) {
    return VK_ERROR_INITIALIZATION_FAILED;
}
VkResult VKAPI_CALL no_layers(uint32_t *, VkLayerProperties *) {
    return VK_ERROR_INITIALIZATION_FAILED;
}
VkResult VKAPI_CALL no_instance(const VkInstanceCreateInfo *, const VkAllocationCallbacks *,
                                VkInstance *) {
    return VK_ERROR_INITIALIZATION_FAILED;
}

PFN_vkVoidFunction not_there(const char * name) {
    auto is = [&](const char * other) { return std::strcmp(name, other) == 0; };
    return is("vkEnumerateInstanceVersion") ? reinterpret_cast<PFN_vkVoidFunction>(no_version)
           : is("vkEnumerateInstanceExtensionProperties")
               ? reinterpret_cast<PFN_vkVoidFunction>(no_extensions)
           : is("vkEnumerateInstanceLayerProperties")
               ? reinterpret_cast<PFN_vkVoidFunction>(no_layers)
           : is("vkCreateInstance") ? reinterpret_cast<PFN_vkVoidFunction>(no_instance)
                                    : nullptr;
}

} // namespace

namespace csb {

PFN_vkGetInstanceProcAddr vulkan_entry() {
    static const auto entry = look_up<PFN_vkGetInstanceProcAddr>("vkGetInstanceProcAddr");
    return entry;
}

const std::string & vulkan_loader_error() {
    return opened().error;
}

} // namespace csb

extern "C" {

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance   instance,
                                                               const char * name) {
    const PFN_vkGetInstanceProcAddr entry = csb::vulkan_entry();
    if (!entry) {
        return not_there(name);
    }
#ifdef CSB_HOOKS
    return csb::vulkan_hook(name, entry(instance, name));
#else
    return entry(instance, name);
#endif
}

// Without a loader nobody has a device to call these with.

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char * name) {
    static const auto real = look_up<PFN_vkGetDeviceProcAddr>("vkGetDeviceProcAddr");
    return real(device, name);
}

VKAPI_ATTR void VKAPI_CALL vkGetPhysicalDeviceFeatures2(VkPhysicalDevice            device,
                                                        VkPhysicalDeviceFeatures2 * features) {
    static const auto real =
        look_up<PFN_vkGetPhysicalDeviceFeatures2>("vkGetPhysicalDeviceFeatures2");
    real(device, features);
}

VKAPI_ATTR void VKAPI_CALL vkCmdCopyBuffer(VkCommandBuffer buffer, VkBuffer from, VkBuffer to,
                                           uint32_t n, const VkBufferCopy * regions) {
    static const auto real = look_up<PFN_vkCmdCopyBuffer>("vkCmdCopyBuffer");
    real(buffer, from, to, n, regions);
}

} // extern "C"
