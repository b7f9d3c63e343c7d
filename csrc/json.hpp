// Writes the small JSON texts that describe a model, a context or the machine. Values of any kind
// are appended in order; the reader is Python's json.
#pragma once

#include <cmath>
#include <cstdio>
#include <locale>
#include <sstream>
#include <string>
#include <type_traits>

namespace csb {

class json {
  public:
    json & open(char bracket) {
        comma();
        text += bracket;
        fresh = true;
        return *this;
    }
    json & close(char bracket) {
        text += bracket;
        fresh = false;
        return *this;
    }
    json & key(const std::string & name) {
        comma();
        quote(name);
        text += ':';
        fresh = true;
        return *this;
    }
    json & value(const std::string & v) {
        comma();
        quote(v);
        return *this;
    }
    json & value(const char * v) { return v ? value(std::string(v)) : raw("null"); }
    json & value(bool v) { return raw(v ? "true" : "false"); }
    template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0> json & value(T v) {
        return raw(std::to_string(v));
    }
    json & value(double v) {
        std::ostringstream out;
        out.imbue(std::locale::classic()); // never a decimal comma
        out.precision(17);
        out << v;
        return std::isfinite(v) ? raw(out.str()) : raw("null");
    }
    template <typename T> json & pair(const char * name, T v) { return key(name).value(v); }
    const std::string & str() const { return text; }

  private:
    json & raw(const std::string & v) {
        comma();
        text += v;
        return *this;
    }
    void comma() {
        if (!fresh) {
            text += ',';
        }
        fresh = false;
    }
    void quote(const std::string & v) {
        text += '"';
        for (unsigned char c : v) {
            if (c == '"' || c == '\\') {
                text += '\\';
                text += static_cast<char>(c);
            } else if (c < 0x20) {
                char buffer[8];
                std::snprintf(buffer, sizeof(buffer), "\\u%04x", c);
                text += buffer;
            } else {
                text += static_cast<char>(c);
            }
        }
        text += '"';
    }
    std::string text;
    bool        fresh = true;
};

} // namespace csb
