// What every exported function's body stands in: one place turns exceptions into a status and a
// message. Only C++ inside, only C outside.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "csb.h"

namespace csb {

// An error with the status it ends in. Its message is one line and names the argument.
struct error : std::runtime_error {
    error(int32_t status, const std::string & message)
        : std::runtime_error(message), status(status) {}
    int32_t status;
};

[[noreturn]] inline void bad_argument(const std::string & message) {
    throw error(CSB_ERROR_ARGUMENT, message);
}

inline void check(bool holds, const char * name, long long value, const char * rule) {
    if (!holds) {
        bad_argument(std::string(name) + " = " + std::to_string(value) + ": " + rule);
    }
}

template <typename T> inline T * check_ptr(T * pointer, const char * name) {
    if (!pointer) {
        bad_argument(std::string(name) + " is NULL");
    }
    return pointer;
}

void         set_message(const std::string & message); // this thread's csb_error_message
const char * keep_text(std::string text);              // this thread's last text result
std::string  last_log_error();                         // and forgets it
void         peek_log_error(char * out, size_t size);  // allocates nothing; "": none, or not now
bool         says_no_room(const std::string & logged); // that memory could not be had
void         log_warning(const char * line);           // as llama.cpp's own
void         log_error_line(const char * line);
void         start_once();                             // backends, log capture, abort net
void         check_file(const std::string & path);     // that it is a whole GGUF file

template <typename F> int32_t guarded(F && body) {
    try {
        start_once();
        return body();
    } catch (const error & e) {
        set_message(e.what());
        return e.status;
    } catch (const std::bad_alloc &) {
        set_message("out of memory");
        return CSB_ERROR_MEMORY;
    } catch (const std::exception & e) {
        set_message(std::string("unexpected: ") + e.what());
        return CSB_ERROR_INTERNAL;
    } catch (...) {
        set_message("unexpected exception of an unknown type");
        return CSB_ERROR_INTERNAL;
    }
}

} // namespace csb
