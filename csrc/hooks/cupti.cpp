// CUPTI, opened at run time and never linked: csb runs where it is not installed, and says what it
// can't observe there.
#include "cupti.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <cupti_activity.h>
#include <cupti_version.h>
#include <cxxabi.h>
#include <dlfcn.h>

namespace {

// A library writes the newest record it knows, whichever header was compiled against.
#if CUPTI_API_VERSION >= 130500
using kernel_record = CUpti_ActivityKernel13;
#elif CUPTI_API_VERSION >= 130000
using kernel_record = CUpti_ActivityKernel10;
#elif CUPTI_API_VERSION >= 19
using kernel_record = CUpti_ActivityKernel9;
#else
#    error "CUPTI of CUDA 12 or newer is needed"
#endif

// So only members may be read that stand at one place in all of them (Kernel4 to Kernel13).
static_assert(offsetof(kernel_record, kind) == 0 && offsetof(kernel_record, start) == 16 &&
                  offsetof(kernel_record, name) == 104,
              "this CUPTI's kernel record has another layout: no library could be trusted");

#if CUPTI_API_VERSION >= 130000
#    define CSB_CUPTI_PACKAGE "nvidia-cuda-cupti"
constexpr int MAJOR = CUPTI_API_VERSION / 10000;
#else
#    define CSB_CUPTI_PACKAGE "nvidia-cuda-cupti-cu12"
constexpr int MAJOR = 12;
#endif

#define CSB_CUPTI_FUNCTIONS(each)                                                                  \
    each(cuptiActivityRegisterCallbacks) each(cuptiActivityEnable) each(cuptiActivityDisable)      \
        each(cuptiActivityFlushAll) each(cuptiActivityGetNextRecord)                               \
            each(cuptiActivityGetNumDroppedRecords) each(cuptiGetResultString)

struct functions {
#define CSB_MEMBER(name) decltype(&::name) name = nullptr;
    CSB_CUPTI_FUNCTIONS(CSB_MEMBER)
#undef CSB_MEMBER
};

struct library {
    functions   call;
    std::string why_not = "CUPTI was not opened";
};

struct seen {
    uint64_t    start; // nanoseconds, one clock for all devices; 0: CUPTI could not take it
    std::string symbol;
};

// Never freed: CUPTI's own thread may call back while the process exits.
library &           cupti         = *new library;
std::mutex &        records_mutex = *new std::mutex;
std::vector<seen> & records       = *new std::vector<seen>;
std::atomic<bool>   broken{false}; // a buffer of records could not be read to its end

constexpr size_t BUFFER_SIZE = 1 << 20;

std::string failure(const char * function, CUptiResult result) {
    const char * text = nullptr; // some libraries leave it where there is no driver
    if (cupti.call.cuptiGetResultString) {
        cupti.call.cuptiGetResultString(result, &text);
    }
    return std::string(function) + ": " + (text ? text : "error") + " (" +
           std::to_string(static_cast<int>(result)) + ")";
}

// The first failure is the reason.
void check(std::string & why_not, const char * function, CUptiResult result) {
    if (result != CUPTI_SUCCESS && why_not.empty()) {
        why_not = failure(function, result);
    }
}

void CUPTIAPI give_buffer(uint8_t ** buffer, size_t * size, size_t * max_records) {
    *buffer      = static_cast<uint8_t *>(std::malloc(BUFFER_SIZE)); // NULL: CUPTI counts drops
    *size        = *buffer ? BUFFER_SIZE : 0;
    *max_records = 0; // as many as fit
}

void read_buffer(uint8_t * buffer, size_t size) {
    std::lock_guard<std::mutex> lock(records_mutex);
    CUpti_Activity *            record = nullptr;
    for (;;) {
        const CUptiResult result = cupti.call.cuptiActivityGetNextRecord(buffer, size, &record);
        if (result == CUPTI_ERROR_MAX_LIMIT_REACHED) {
            return;
        }
        if (result != CUPTI_SUCCESS) { // an incomplete record hides those after it
            broken = true;
            return;
        }
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL ||
            record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
            const auto * kernel = reinterpret_cast<const kernel_record *>(record);
            records.push_back({kernel->start, kernel->name ? kernel->name : "unnamed"});
        }
    }
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t * buffer, size_t, size_t valid) {
    try {
        if (buffer && valid > 0) {
            read_buffer(buffer, valid);
        }
    } catch (...) { // out of memory; CUPTI's frames are C
        broken = true;
    }
    std::free(buffer);
}

// A handle, or NULL with the reason in why_not. A file that was asked for is the only one tried.
void * open_library(std::string & why_not) {
    const char *             asked = std::getenv("CSB_CUPTI_LIBRARY");
    const char *             wheel = std::getenv("CSB_CUPTI_WHEEL");
    const bool               given = asked && *asked;
    std::vector<std::string> names = {"libcupti.so." + std::to_string(MAJOR),
                                      CSB_CUPTI_BESIDE,
                                      wheel ? wheel : "",
                                      "libcupti.so.13",
                                      "libcupti.so.12",
                                      "libcupti.so"};
    if (given) {
        names = {asked};
    }
    std::string reason;
    for (const std::string & name : names) {
        void * handle = name.empty() ? nullptr : dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle) {
            return handle;
        }
        const char * error = dlerror();
        reason             = reason.empty() && error ? error : reason;
    }
    why_not = "CUPTI can't be opened (" + reason + "): " +
              (given ? "CSB_CUPTI_LIBRARY names it" : "pip install " CSB_CUPTI_PACKAGE);
    return nullptr;
}

void open_once() {
    std::string why_not;
    void *      handle = open_library(why_not);
#define CSB_LOOK_UP(name)                                                                          \
    if (handle && why_not.empty()) {                                                               \
        cupti.call.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name));               \
        if (!cupti.call.name) {                                                                    \
            why_not = "the CUPTI that was opened has no " #name;                                   \
        }                                                                                          \
    }
    CSB_CUPTI_FUNCTIONS(CSB_LOOK_UP)
#undef CSB_LOOK_UP
    if (why_not.empty()) {
        check(why_not, "cuptiActivityRegisterCallbacks",
              cupti.call.cuptiActivityRegisterCallbacks(give_buffer, take_buffer));
    }
    cupti.why_not = why_not;
}

constexpr auto KIND = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL; // leaves concurrency as it is

// What was recorded and not read yet.
std::vector<seen> take_records() {
    std::lock_guard<std::mutex> lock(records_mutex);
    return std::exchange(records, {});
}

bool starts(const std::string & text, size_t at, const std::string & with) {
    return text.compare(at, with.size(), with) == 0;
}

// nvcc puts the functions of one file into a namespace whose name changes with every build.
std::string without_file_namespaces(const std::string & text) {
    const std::string begin = "_INTERNAL_";
    std::string       left;
    for (size_t i = 0; i < text.size(); i++) {
        const size_t end = starts(text, i, begin) ? text.find("::", i) : std::string::npos;
        if (end == std::string::npos) {
            left += text[i];
        } else {
            i = end + 1;
        }
    }
    return left;
}

} // namespace

namespace csb {

void open_cupti() {
    static std::once_flag once;
    std::call_once(once, open_once);
}

device_watch::device_watch(bool wanted) {
    if (!wanted) {
        return;
    }
    why_not = cupti.why_not;
    if (!why_not.empty()) {
        return;
    }
    check(why_not, "cuptiActivityEnable", cupti.call.cuptiActivityEnable(KIND));
    on     = why_not.empty();
    late   = static_cast<int64_t>(take_records().size());
    broken = false;
}

device_watch::~device_watch() {
    if (on) { // an exception came before end()
        stop();
        take_records();
    }
}

// The first flush waits until CUPTI has worked up what ran. The second, forced, leaves nothing
// behind that would be taken for a later ubatch's.
void device_watch::stop() {
    on = false;
    check(why_not, "cuptiActivityFlushAll", cupti.call.cuptiActivityFlushAll(0));
    check(why_not, "cuptiActivityDisable", cupti.call.cuptiActivityDisable(KIND));
    check(why_not, "cuptiActivityFlushAll",
          cupti.call.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
}

device_kernels device_watch::end() {
    device_kernels found;
    if (on) {
        stop();
        size_t dropped = 0;
        check(why_not, "cuptiActivityGetNumDroppedRecords",
              cupti.call.cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped));
        found.lost = late + static_cast<int64_t>(dropped);
        if (broken && why_not.empty()) {
            why_not = "CUPTI gave a record that can't be read to its end";
        }
    }
    std::vector<seen> all = take_records();
    found.why_not         = why_not;
    if (!why_not.empty()) {
        return found;
    }
    if (std::all_of(all.begin(), all.end(), [](const seen & s) { return s.start > 0; })) {
        std::stable_sort(all.begin(), all.end(),
                         [](const seen & a, const seen & b) { return a.start < b.start; });
    } // else as they came: of one stream, the order in which they ran
    std::unordered_map<std::string, size_t> by_symbol, by_name;
    for (const seen & s : all) {
        auto it = by_symbol.find(s.symbol);
        if (it == by_symbol.end()) {
            const std::string name   = kernel_name(s.symbol.c_str());
            const auto [same, first] = by_name.try_emplace(name, found.ran.size());
            if (first) {
                found.ran.emplace_back(name, 0);
            }
            it = by_symbol.emplace(s.symbol, same->second).first;
        }
        found.ran[it->second].second++;
    }
    return found;
}

std::string kernel_name(const char * symbol) {
    if (std::strncmp(symbol, "_Z", 2) != 0) {
        return symbol; // and no type: "f" would read as float
    }
    const std::unique_ptr<char, void (*)(void *)> text(
        abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr), std::free);
    if (!text) {
        return symbol;
    }
    const std::string anonymous = "(anonymous namespace)", result = "void ";
    std::string       name = without_file_namespaces(text.get());
    name.erase(0, starts(name, 0, result) ? result.size() : 0);

    int depth = 0;
    for (size_t i = 0; i < name.size(); i++) {
        if (starts(name, i, anonymous)) {
            i += anonymous.size() - 1;
        } else if (starts(name, i, "->")) {
            i += 1;
        } else if (name[i] == '(' && depth == 0) {
            return name.substr(0, i); // the parameters begin
        } else if (std::strchr("<({[", name[i])) {
            depth++;
        } else if (std::strchr(">)}]", name[i])) {
            depth--;
        }
    }
    return name;
}

} // namespace csb
