// ggml-vulkan says some things on std::cerr. The linker's --wrap gives libcsb's objects this stream
// in its place, so that they are lines of the log as all others.
#include <ostream>
#include <streambuf>
#include <string>

#include "../guard.hpp"

namespace {

class log_lines : public std::streambuf {
    int overflow(int c) override {
        thread_local std::string line;
        if (c != traits_type::eof()) {
            line += static_cast<char>(c);
            if (c == '\n') {
                csb::log_warning(line.c_str());
                line.clear();
            }
        }
        return traits_type::not_eof(c);
    }
};

log_lines & lines = *new log_lines; // never freed: threads of a driver may write at exit

} // namespace

extern "C" {
std::ostream __wrap__ZSt4cerr(&lines);
}
