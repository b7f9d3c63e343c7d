// Writes the small JSON texts that describe a model, a context or the machine. Values of any kind
// are appended in order; the reader is Python's json.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdio>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
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
    json & key(std::string_view name) {
        comma();
        quote(name);
        text += ':';
        fresh = true;
        return *this;
    }
    json & value(std::string_view v) {
        comma();
        quote(v);
        return *this;
    }
    json & value(const std::string & v) { return value(std::string_view(v)); }
    json & value(const char * v) { return v ? value(std::string_view(v)) : raw("null"); }
    json & value(bool v) { return raw(v ? "true" : "false"); }
    template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0> json & value(T v) {
        char         digits[24];
        const auto * end = std::to_chars(digits, digits + sizeof(digits), v).ptr;
        return raw({digits, static_cast<size_t>(end - digits)});
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
    json & raw(std::string_view v) {
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
    void quote(std::string_view v) {
        text += '"';
        size_t plain = 0; // a graph's record is megabytes of names: what needs no escape goes whole
        for (size_t i = 0; i < v.size(); i++) {
            const auto c = static_cast<unsigned char>(v[i]);
            if (c != '"' && c != '\\' && c >= 0x20) {
                continue;
            }
            text += v.substr(plain, i - plain);
            plain = i + 1;
            char buffer[8];
            std::snprintf(buffer, sizeof(buffer), c < 0x20 ? "\\u%04x" : "\\%c", c);
            text += buffer;
        }
        text += v.substr(plain);
        text += '"';
    }
    std::string text;
    bool        fresh = true;
};

} // namespace csb
