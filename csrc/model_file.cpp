// What a model's file is, before llama.cpp opens it: its own message is one for all of these.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "gguf.h"
#include "guard.hpp"

namespace {

using csb::error;

std::string spelled(const char * data, size_t n) { // bytes of a file as harmless text
    std::string text;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = static_cast<unsigned char>(data[i]);
        text += c >= 0x20 && c < 0x7f ? static_cast<char>(c) : '.';
    }
    return text;
}

// The first token text that stands in the vocabulary twice, on which llama.cpp aborts.
const char * repeated_token(const gguf_context * gguf) {
    const int64_t key = gguf_find_key(gguf, "tokenizer.ggml.tokens");
    if (key < 0 || gguf_get_kv_type(gguf, key) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(gguf, key) != GGUF_TYPE_STRING) {
        return nullptr;
    }
    std::unordered_set<std::string_view> seen;
    for (size_t i = 0; i < gguf_get_arr_n(gguf, key); i++) {
        const char * token = gguf_get_arr_str(gguf, key, i);
        if (*token && !seen.insert(token).second) { // llama.cpp numbers the empty ones
            return token;
        }
    }
    return nullptr;
}

} // namespace

// llama.cpp says "failed to load model" for all of these; a reader wants to know which it is.
void csb::check_file(const std::string & path) {
    struct stat st = {};
    if (::stat(path.c_str(), &st) != 0) {
        throw error(CSB_ERROR_FILE, path + ": " + std::strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) {
        throw error(CSB_ERROR_FILE, path + ": is a folder, not a GGUF file");
    }
    if (!S_ISREG(st.st_mode)) { // opening a pipe would wait for its other end
        throw error(CSB_ERROR_FILE, path + ": is not a regular file");
    }
    char          magic[4] = {};
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw error(CSB_ERROR_FILE, path + ": " + std::strerror(errno));
    }
    file.read(magic, sizeof(magic));
    const size_t n = static_cast<size_t>(file.gcount());
    if (n == 0) {
        throw error(CSB_ERROR_FILE, path + ": is empty");
    }
    if (n < sizeof(magic) || std::memcmp(magic, "GGUF", 4) != 0) {
        throw error(CSB_ERROR_FILE, path + ": is no GGUF file (it starts with \"" +
                                        spelled(magic, n) + "\")");
    }
    csb::last_log_error();
    std::unique_ptr<gguf_context, void (*)(gguf_context *)> gguf(
        gguf_init_from_file(path.c_str(), {/*no_alloc*/ true, /*ctx*/ nullptr}), gguf_free);
    if (!gguf) {
        const std::string why = csb::last_log_error();
        throw error(CSB_ERROR_FILE, path + ": is cut short or damaged" +
                                        (why.empty() ? "" : " (" + why + ")"));
    }
    const int64_t tensors = gguf_get_n_tensors(gguf.get());
    if (const char * token = repeated_token(gguf.get())) {
        throw error(CSB_ERROR_FILE, path + ": is damaged (its vocabulary has a token twice: " +
                                        spelled(token, std::strlen(token)) + ")");
    }
    // The first part of a split model may hold metadata alone; llama.cpp checks the parts.
    if (tensors == 0 && gguf_find_key(gguf.get(), "split.count") < 0) {
        throw error(CSB_ERROR_FILE, path + ": holds a vocabulary and no weights");
    }
    size_t needed = 0;
    for (int64_t i = 0; i < tensors; i++) {
        needed = std::max(needed, gguf_get_tensor_offset(gguf.get(), i) +
                                      gguf_get_tensor_size(gguf.get(), i));
    }
    needed += gguf_get_data_offset(gguf.get());
    if (static_cast<size_t>(st.st_size) < needed) {
        throw error(CSB_ERROR_FILE, path + ": is cut short (" + std::to_string(st.st_size) +
                                        " bytes of " + std::to_string(needed) + ")");
    }
}
