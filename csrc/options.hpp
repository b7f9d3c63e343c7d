// Reads the key and value arrays that open functions take. Every key must be taken by somebody.
#pragma once

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <locale>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "guard.hpp"

namespace csb {

// A finite number that is not negative, in C's notation whatever the process's locale is.
inline bool read_real(const std::string & text, float & target) {
    std::istringstream in(text);
    in.imbue(std::locale::classic());
    float      value = 0;
    const bool whole = (in >> value) && in.peek() == std::istringstream::traits_type::eof();
    if (whole && std::isfinite(value) && value >= 0) {
        target = value;
        return true;
    }
    return false;
}

class options {
  public:
    options(int32_t n, const char * const * keys, const char * const * values) {
        check(n >= 0, "n_options", n, "must not be negative");
        for (int32_t i = 0; i < n; i++) {
            check_ptr(keys, "keys");
            check_ptr(values, "values");
            given[check_ptr(keys[i], "a key")] = check_ptr(values[i], "a value");
        }
    }

    const std::string * text(const std::string & key) {
        auto it = given.find(key);
        if (it == given.end()) {
            return nullptr;
        }
        taken.push_back(key);
        return &it->second;
    }

    // Leaves target alone where the key is not given.
    template <typename T>
    void whole(const std::string & key, T & target, long long lowest, long long highest) {
        const std::string * v = text(key);
        if (!v) {
            return;
        }
        char * end         = nullptr;
        errno              = 0;
        const long long at = std::strtoll(v->c_str(), &end, 10);
        if (v->empty() || *end || errno || at < lowest || at > highest) {
            bad_argument(key + " = " + *v + ": must be a whole number from " +
                         std::to_string(lowest) + " to " + std::to_string(highest));
        }
        target = static_cast<T>(at);
    }

    void flag(const std::string & key, bool & target) { whole(key, target, 0, 1); }

    void real(const std::string & key, float & target) {
        const std::string * v = text(key);
        if (!v) {
            return;
        }
        if (!read_real(*v, target)) {
            bad_argument(key + " = " + *v + ": must be a number that is not negative");
        }
    }

    template <typename T>
    void choice(const std::string & key, T & target, const std::vector<std::pair<const char *, T>> & of) {
        const std::string * v = text(key);
        if (!v) {
            return;
        }
        std::string known;
        for (const auto & [name, value] : of) {
            if (*v == name) {
                target = value;
                return;
            }
            known += (known.empty() ? "" : ", ") + std::string(name);
        }
        bad_argument(key + " = " + *v + ": must be one of " + known);
    }

    void finish() const { // after all were read
        for (const auto & [key, value] : given) {
            bool known = false;
            for (const auto & t : taken) {
                known = known || t == key;
            }
            if (!known) {
                bad_argument("unknown option " + key);
            }
        }
    }

  private:
    std::map<std::string, std::string> given;
    std::vector<std::string>           taken;
};

inline std::vector<std::string> split(const std::string & text, char by) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= text.size();) {
        size_t end = text.find(by, at);
        end        = end == std::string::npos ? text.size() : end;
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

} // namespace csb
