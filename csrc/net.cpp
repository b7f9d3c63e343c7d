// The net under native aborts: csb.h says when it is needed. Its last act runs on whichever thread
// failed, so it touches no Python, allocates nothing and leaves with _exit.
#include "net.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "ggml.h"
#include "guard.hpp"

namespace {

std::mutex        mutex;
bool              armed = false;
std::string       path, head, body, tail;
std::atomic<bool> leaving{false};

bool write_all(int fd, const char * data, size_t size) {
    while (size > 0) {
        const ssize_t n = ::write(fd, data, size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        data += n;
        size -= static_cast<size_t>(n);
    }
    return true;
}

bool write_record() {
    const bool to_stdout = path == "-";
    const int fd = to_stdout ? 1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) {
        return false;
    }
    return write_all(fd, head.data(), head.size()) && write_all(fd, body.data(), body.size()) &&
           write_all(fd, tail.data(), tail.size());
}

int first_line(const char * text) { // its length
    return static_cast<int>(std::strcspn(text, "\n"));
}

const char * without_folders(const char * reason) { // of "/folder/file.cpp:1: text"
    const char * end = std::strstr(reason, ": ");
    while (end && end > reason && end[-1] != '/') {
        end--;
    }
    return end ? end : reason;
}

// In one write, so that no line gets between. cause: what llama.cpp logged before, or "".
void say(const char * what, const char * reason, const char * cause, const char * where) {
    char line[4096];
    int  n = std::snprintf(line, sizeof(line) - 1, "csb: %s%.*s%s%.*s%s", what, first_line(reason),
                           reason, *cause ? " (" : "", first_line(cause), cause, *cause ? ")" : "");
    if (where && n < static_cast<int>(sizeof(line))) {
        n += std::snprintf(line + n, sizeof(line) - 1 - static_cast<size_t>(n),
                           body.empty() ? "; nothing was measured yet, the settings are in %s"
                                        : "; what was measured so far is in %s",
                           where);
    }
    n = n < static_cast<int>(sizeof(line)) - 2 ? n : static_cast<int>(sizeof(line)) - 2;
    for (int i = 0; i < n; i++) {
        line[i] = static_cast<unsigned char>(line[i]) < 0x20 ? ' ' : line[i];
    }
    line[n] = '\n';
    (void) write_all(2, line, static_cast<size_t>(n) + 1);
}

[[noreturn]] void leave(int code, const char * what, const char * reason, const char * cause) {
    while (leaving.exchange(true)) { // several threads may fail at once: one line is enough
        ::pause();
    }
    // Others hold the lock for moments only, and csb_net_append takes it no more. If one died with
    // it, give up.
    bool locked = mutex.try_lock();
    for (int i = 0; i < 1000 && !locked; i++) {
        ::usleep(1000);
        locked = mutex.try_lock();
    }
    const bool saved = locked && armed && write_record();
    say(what, reason, cause, !saved ? nullptr : path == "-" ? "the output" : path.c_str());
    _exit(code);
}

void on_abort(const char * reason) {
    char cause[1024];
    csb::peek_log_error(cause, sizeof(cause));
    char what[1024], servers[960];
    csb::lost_rpc_servers(servers, sizeof(servers));
    std::snprintf(what, sizeof(what), "%s%s%sllama.cpp aborted: ", *servers ? "RPC server " : "",
                  servers, *servers ? " is gone: " : "");
    leave(2, what, without_folders(reason), cause);
}

void on_terminate() {
    char reason[1024] = "an exception left llama.cpp";
    try {
        if (std::current_exception()) {
            throw;
        }
    } catch (const std::exception & e) {
        std::snprintf(reason, sizeof(reason), "an exception left llama.cpp: %s", e.what());
    } catch (...) {
    }
    on_abort(reason);
}

} // namespace

namespace csb {

void net_install() {
    ggml_set_abort_callback(on_abort);
    std::set_terminate(on_terminate);
}

} // namespace csb

int32_t csb_net_arm(const char * to, const char * before, const char * after) {
    return csb::guarded([&] {
        csb::check_ptr(to, "path");
        csb::check_ptr(before, "head");
        csb::check_ptr(after, "tail");
        std::lock_guard<std::mutex> lock(mutex);
        path  = to;
        head  = before;
        tail  = after;
        armed = true;
        body.clear();
        return CSB_OK;
    });
}

int32_t csb_net_append(const char * part) {
    return csb::guarded([&] {
        csb::check_ptr(part, "part");
        if (leaving) { // else a thread that appends without end could keep the lock
            return CSB_OK;
        }
        std::lock_guard<std::mutex> lock(mutex);
        if (armed) {
            body += body.empty() ? "" : ",";
            body += part;
        }
        return CSB_OK;
    });
}

int32_t csb_net_disarm(void) {
    return csb::guarded([&] {
        std::lock_guard<std::mutex> lock(mutex);
        armed = false;
        body.clear();
        body.shrink_to_fit();
        return CSB_OK;
    });
}

int32_t csb_net_leave(int32_t code, const char * reason) {
    return csb::guarded([&]() -> int32_t {
        csb::check_ptr(reason, "message");
        leave(code, "", reason, "");
    });
}

int32_t csb_net_test(const char * logged, const char * reason) {
    return csb::guarded([&] {
        csb::check_ptr(logged, "logged");
        csb::check_ptr(reason, "message");
        csb::log_error_line(logged);
        std::thread([&] { GGML_ABORT("%s", reason); }).join();
        return CSB_ERROR_INTERNAL; // not reached
    });
}
