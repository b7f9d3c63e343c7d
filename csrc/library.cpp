// Start, messages, handles, log, and what this build and this machine are.
#include <cctype>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "build_info.h"
#include "ggml-backend.h"
#include "guard.hpp"
#include "handles.hpp"
#include "json.hpp"
#include "llama.h"
#include "net.hpp"
#ifdef CSB_VULKAN
#    include "vulkan/describe.hpp"
#endif

namespace {

thread_local std::string message = "no error";
thread_local std::string text_result;

// llama.cpp gives the reason of many failures only in its log. Process-wide, because it may come
// from another thread than the call.
std::mutex       log_mutex;
std::string &    log_error = *new std::string; // never freed: llama.cpp logs also as it exits
std::atomic<int> log_level{5};

void keep_log(ggml_log_level level, const char * text, void *) {
    static std::atomic<bool> printed{false}; // the line that GGML_LOG_LEVEL_CONT continues
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::lock_guard<std::mutex> lock(log_mutex);
        if (log_error.empty()) { // the first is the cause, the others its consequences
            log_error = text;
        }
    }
    if (level != GGML_LOG_LEVEL_CONT) {
        printed = static_cast<int>(level) >= log_level;
    }
    if (printed) {
        std::fputs(text, stderr);
    }
}

std::string harmless(const std::string & text) { // one line, whatever a path or a file holds
    std::string line;
    for (char c : text) {
        const unsigned char byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            char escaped[8];
            std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
            line += escaped;
        } else {
            line += c;
        }
    }
    return line;
}

std::mutex open_mutex;

template <typename T> struct table {
    std::unordered_map<const T *, std::shared_ptr<T>> open;

    T * add(std::shared_ptr<T> handle) {
        std::lock_guard<std::mutex> lock(open_mutex);
        T *                         key = handle.get();
        open[key]                       = std::move(handle);
        return key;
    }
    void remove(const T * key) {
        std::shared_ptr<T> last; // freed after the lock
        std::lock_guard<std::mutex> lock(open_mutex);
        auto                        it = open.find(key);
        if (it != open.end()) {
            last = std::move(it->second);
            open.erase(it);
        }
    }
    std::shared_ptr<T> find(const T * key, const char * complaint) {
        std::lock_guard<std::mutex> lock(open_mutex);
        auto                        it = open.find(key);
        if (it == open.end()) {
            csb::bad_argument(complaint);
        }
        return it->second;
    }
};

// Never freed: at exit a device's own library may be gone before the models on it.
table<csb_model> &   models   = *new table<csb_model>;
table<csb_context> & contexts = *new table<csb_context>;

const char * device_type(ggml_backend_dev_t device) {
    switch (ggml_backend_dev_type(device)) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
        return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
        return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
        return "igpu";
    case GGML_BACKEND_DEVICE_TYPE_ACCEL:
        return "accel";
    default:
        return "other";
    }
}

// What a build for Vulkan knows beyond ggml: each device's driver and version.
class drivers {
  public:
#ifdef CSB_VULKAN
    drivers() : left(csb::look_for_vulkan().devices) {}

    void add(csb::json & j, ggml_backend_dev_t device) {
        if (std::strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "Vulkan")) {
            return;
        }
        // ggml gives the name alone: of two with one name each is taken once, in Vulkan's order
        const std::string name = ggml_backend_dev_description(device);
        for (auto it = left.begin(); it != left.end(); ++it) {
            if (it->name == name) {
                j.pair("driver", it->driver + " " + it->driver_info).pair("api", "Vulkan " + it->api);
                left.erase(it);
                return;
            }
        }
    }
    void finish(csb::json & j) {
        j.key("vulkan");
        csb::describe_vulkan(j);
    }

  private:
    std::vector<csb::vulkan_device> left;
#else
    void add(csb::json &, ggml_backend_dev_t) {}
    void finish(csb::json &) {}
#endif
};

} // namespace

namespace csb {

void set_message(const std::string & text) {
    message = harmless(text);
}

const char * keep_text(std::string text) {
    text_result = std::move(text);
    return text_result.c_str();
}

std::string last_log_error() {
    std::lock_guard<std::mutex> lock(log_mutex);
    std::string                 text;
    for (char c : log_error) {
        text += std::iscntrl(static_cast<unsigned char>(c)) ? ' ' : c;
    }
    log_error.clear();
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
}

bool says_no_room(const std::string & logged) {
    return logged.find("allocat") != logged.npos || logged.find("out of memory") != logged.npos;
}

void peek_log_error(char * out, size_t size) {
    out[0] = '\0';
    std::unique_lock<std::mutex> lock(log_mutex, std::try_to_lock);
    if (lock && !log_error.empty()) {
        std::snprintf(out, size, "%s", log_error.c_str());
    }
}

void log_warning(const char * line) {
    keep_log(GGML_LOG_LEVEL_WARN, line, nullptr);
}

void log_error_line(const char * line) {
    keep_log(GGML_LOG_LEVEL_ERROR, line, nullptr);
}

void start_once() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(keep_log, nullptr);
        net_install();
        llama_backend_init();
    });
}

csb_model * register_handle(std::shared_ptr<csb_model> handle) {
    return models.add(std::move(handle));
}

csb_context * register_handle(std::shared_ptr<csb_context> handle) {
    return contexts.add(std::move(handle));
}

void forget_handle(csb_model * handle) {
    models.remove(handle);
}

void forget_handle(csb_context * handle) {
    contexts.remove(handle);
}

std::shared_ptr<csb_model> open_model(csb_model * handle) {
    return models.find(handle, "model is not an open csb_model");
}

std::shared_ptr<csb_context> open_context(csb_context * handle) {
    return contexts.find(handle, "context is not an open csb_context");
}

} // namespace csb

int32_t csb_abi_version(void) {
    return CSB_ABI_VERSION;
}

const char * csb_error_message(void) {
    return message.c_str();
}

int32_t csb_library_build(const char ** out_json) {
    return csb::guarded([&] {
        *csb::check_ptr(out_json, "out_json") = CSB_BUILD_INFO;
        return CSB_OK;
    });
}

int32_t csb_library_system(const char ** out_json) {
    return csb::guarded([&] {
        csb::check_ptr(out_json, "out_json");
        csb::json j;
        j.open('{').pair("llama_version", llama_version());
        j.pair("system_info", llama_print_system_info());
        j.key("devices").open('[');
        drivers driver;
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            ggml_backend_dev_t device = ggml_backend_dev_get(i);
            ggml_backend_dev_props props = {};
            ggml_backend_dev_get_props(device, &props);
            j.open('{').pair("name", props.name).pair("description", props.description);
            j.pair("id", props.device_id);
            j.pair("type", device_type(device));
            j.pair("backend", ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
            j.pair("memory_free", props.memory_free).pair("memory_total", props.memory_total);
            driver.add(j, device);
            j.close('}');
        }
        j.close(']');
        driver.finish(j);
        *out_json = csb::keep_text(j.close('}').str());
        return CSB_OK;
    });
}

int32_t csb_library_set_log_level(int32_t level) {
    return csb::guarded([&] {
        csb::check(level >= 1 && level <= 5, "level", level, "must be 1 to 5");
        log_level = level;
        return CSB_OK;
    });
}
