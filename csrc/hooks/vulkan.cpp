// Labels come while command buffers are written, on the decode's thread and in the graph's order:
//
//     submit 0
//         MUL_MAT+ADD Qcur-0                      the ops that run together, the first one's name
//             mul_mat_vec_bf16_f32_f32 (576,1,1)  the pipeline and its dispatch
//
// A pipeline's name says too little: those for 1 to 8 columns share one. Its specialization
// constants tell them apart, so they are read where the pipeline is created, and what was bound
// last is what a dispatch runs.
#include "vulkan.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../vulkan/vulkan.hpp"
#include "ggml.h"
#include "hooks.hpp"

namespace {

PFN_vkCreateComputePipelines     real_create = nullptr;
PFN_vkCmdBindPipeline            real_bind   = nullptr;
PFN_vkCmdBeginDebugUtilsLabelEXT real_label  = nullptr;

struct pipeline {
    VkDevice    device;
    std::string constants; // "<64, 2, 5>"
};

// Pipelines are created on many threads. Never freed: a device may outlive everything here.
std::mutex &                               created_mutex = *new std::mutex;
std::unordered_map<VkPipeline, pipeline> & created = *new std::unordered_map<VkPipeline, pipeline>;
// pipelines by device and whole name, and the whole names: an event keeps a pointer
std::map<std::pair<VkDevice, std::string>, std::vector<VkPipeline>> & known =
    *new std::map<std::pair<VkDevice, std::string>, std::vector<VkPipeline>>;
std::set<std::string> & names = *new std::set<std::string>;

// Of the one ubatch that is watched.
struct watched {
    std::map<std::string, std::deque<const ggml_tensor *>> nodes; // not seen yet, by label
    std::string                                            label; // of the node that is written now
    bool                                                   after_submit = false;
    bool                                                   seen         = false;
};
watched & now = *new watched;

thread_local VkPipeline bound = VK_NULL_HANDLE;

bool recording() {
    return csb::hooks() & csb::RECORD_KERNELS;
}

std::string constants_of(const VkSpecializationInfo * info) {
    std::string text;
    for (uint32_t i = 0; info && i < info->mapEntryCount; i++) {
        const VkSpecializationMapEntry & entry = info->pMapEntries[i];
        uint32_t                         value = 0;
        std::memcpy(&value, static_cast<const char *>(info->pData) + entry.offset,
                    std::min(entry.size, sizeof(value)));
        text += (text.empty() ? "<" : ", ") + std::to_string(value);
    }
    return text.empty() ? text : text + ">";
}

VkResult VKAPI_CALL create(VkDevice device, VkPipelineCache cache, uint32_t n,
                           const VkComputePipelineCreateInfo * infos,
                           const VkAllocationCallbacks * allocator, VkPipeline * out) {
    const VkResult result = real_create(device, cache, n, infos, allocator, out);
    if (result == VK_SUCCESS) {
        std::lock_guard<std::mutex> lock(created_mutex);
        for (uint32_t i = 0; i < n; i++) {
            created[out[i]] = {device, constants_of(infos[i].stage.pSpecializationInfo)};
        }
    }
    return result;
}

void VKAPI_CALL bind(VkCommandBuffer buffer, VkPipelineBindPoint point, VkPipeline pipeline) {
    if (recording()) {
        bound = pipeline;
    }
    real_bind(buffer, point, pipeline);
}

bool is_number(const std::string & text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// Where a dispatch's " (x,y,z)" begins; npos: the label is none of a dispatch.
size_t dispatch_at(const std::string & text) {
    const size_t at = text.rfind(" (");
    if (at == std::string::npos || text.back() != ')') {
        return std::string::npos;
    }
    std::string digits = text.substr(at + 2, text.size() - at - 3);
    const auto  commas = std::count(digits.begin(), digits.end(), ',');
    digits.erase(std::remove(digits.begin(), digits.end(), ','), digits.end());
    return commas == 2 && is_number(digits) ? at : std::string::npos;
}

// Two pipelines of one device are never one kernel, whatever their names.
const char * whole_name(const std::string & name) {
    std::lock_guard<std::mutex> lock(created_mutex);
    const auto                  it    = created.find(bound);
    std::string                 whole = name;
    if (it != created.end()) {
        whole += it->second.constants;
        auto &     same = known[{it->second.device, whole}];
        const auto at   = std::find(same.begin(), same.end(), bound);
        const auto n    = at - same.begin();
        if (at == same.end()) {
            same.push_back(bound);
        }
        whole += n ? " #" + std::to_string(n + 1) : "";
    }
    return names.insert(whole).first->c_str();
}

void enter(const std::string & label) {
    // Where a command buffer ends in a node, the next one opens its label again.
    const bool reopened = now.after_submit && label == now.label;
    now.after_submit    = false;
    now.label           = label;
    if (reopened) {
        return;
    }
    const std::string first = label.substr(0, label.find_first_of("+ "));
    const size_t      space = label.find(' ');
    const auto it = now.nodes.find(first + (space == label.npos ? " " : label.substr(space)));
    const ggml_tensor * node = nullptr;
    if (it != now.nodes.end() && !it->second.empty()) {
        node = it->second.front();
        it->second.pop_front();
    }
    csb::enter_node(node, 0);
}

void VKAPI_CALL label(VkCommandBuffer buffer, const VkDebugUtilsLabelEXT * info) {
    if (recording() && info->pLabelName) {
        const std::string text = info->pLabelName;
        const size_t      at   = dispatch_at(text);
        now.seen               = true;
        if (text.compare(0, 7, "submit ") == 0 && is_number(text.substr(7))) {
            now.after_submit = true;
        } else if (at == std::string::npos) {
            enter(text);
        } else {
            now.after_submit = false;
            csb::note_kernel(whole_name(text.substr(0, at)));
        }
    }
    real_label(buffer, info);
}

template <typename F> PFN_vkVoidFunction stand_for(PFN_vkVoidFunction real, F & keep, F hook) {
    keep = reinterpret_cast<F>(real);
    return reinterpret_cast<PFN_vkVoidFunction>(hook);
}

} // namespace

namespace csb {

PFN_vkVoidFunction vulkan_hook(const char * name, PFN_vkVoidFunction real) {
    auto is = [&](const char * other) { return real && std::strcmp(name, other) == 0; };
    return is("vkCreateComputePipelines")       ? stand_for(real, real_create, create)
           : is("vkCmdBindPipeline")            ? stand_for(real, real_bind, bind)
           : is("vkCmdBeginDebugUtilsLabelEXT") ? stand_for(real, real_label, label)
                                                : real;
}

vulkan_watch::vulkan_watch(ggml_cgraph * graph) {
    now = watched();
    for (int i = 0; graph && i < ggml_graph_n_nodes(graph); i++) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        now.nodes[std::string(ggml_op_name(node->op)) + " " + node->name].push_back(node);
    }
}

vulkan_watch::~vulkan_watch() {
    now = watched();
}

std::string vulkan_watch::why_not() const {
    return now.seen ? ""
           : std::getenv("GGML_VK_DEBUG_MARKERS")
               ? "Vulkan's loader has no VK_EXT_debug_utils"
               : "GGML_VK_DEBUG_MARKERS was not set when Vulkan was started";
}

} // namespace csb
