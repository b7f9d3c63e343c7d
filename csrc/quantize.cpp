// llama.cpp's quantizer. A type's name is what people type: llama.cpp's ftype without "MOSTLY_".
#include <sys/stat.h>

#include <cctype>
#include <cmath>

#include "ggml-backend.h"
#include "guard.hpp"
#include "llama.h"
#include "op.hpp"

namespace {

struct ftype_name {
    const char * name;
    llama_ftype  ftype;
};

const ftype_name FTYPES[] = {
    {"f32", LLAMA_FTYPE_ALL_F32},          {"f16", LLAMA_FTYPE_MOSTLY_F16},
    {"bf16", LLAMA_FTYPE_MOSTLY_BF16},     {"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
    {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},     {"q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
    {"q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},     {"q5_1", LLAMA_FTYPE_MOSTLY_Q5_1},
    {"q2_k", LLAMA_FTYPE_MOSTLY_Q2_K},     {"q3_k_m", LLAMA_FTYPE_MOSTLY_Q3_K_M},
    {"q4_k_s", LLAMA_FTYPE_MOSTLY_Q4_K_S}, {"q4_k_m", LLAMA_FTYPE_MOSTLY_Q4_K_M},
    {"q5_k_m", LLAMA_FTYPE_MOSTLY_Q5_K_M}, {"q6_k", LLAMA_FTYPE_MOSTLY_Q6_K},
    {"iq4_nl", LLAMA_FTYPE_MOSTLY_IQ4_NL}, {"iq4_xs", LLAMA_FTYPE_MOSTLY_IQ4_XS},
};

llama_ftype find_ftype(const std::string & given) {
    std::string known;
    for (const ftype_name & f : FTYPES) {
        bool same = given.size() == std::char_traits<char>::length(f.name);
        for (size_t i = 0; same && i < given.size(); i++) {
            same = std::tolower(static_cast<unsigned char>(given[i])) == f.name[i];
        }
        if (same) {
            return f.ftype;
        }
        known += (known.empty() ? "" : ", ") + std::string(f.name);
    }
    csb::bad_argument("type = " + given + ": must be one of " + known);
}

// Types whose quantizer takes any finite numbers. The others look points up in a grid, and abort
// where they find none.
bool takes_all(ggml_type type) {
    switch (type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
    case GGML_TYPE_Q1_0:
    case GGML_TYPE_Q2_0:
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_MXFP4:
    case GGML_TYPE_NVFP4:
    case GGML_TYPE_Q2_K:
    case GGML_TYPE_Q3_K:
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
    case GGML_TYPE_Q6_K:
    case GGML_TYPE_TQ1_0:
    case GGML_TYPE_TQ2_0:
    case GGML_TYPE_IQ4_NL:
    case GGML_TYPE_IQ4_XS:
        return true;
    default:
        return false;
    }
}

} // namespace

int32_t csb_quantize_rows(const char * type_name, int64_t n_rows, int64_t n_per_row,
                          const float * rows, int64_t capacity, uint8_t * out_bytes,
                          int64_t * out_size) {
    return csb::guarded([&] {
        const ggml_type type = csb::find_type(csb::check_ptr(type_name, "type"));
        csb::check_ptr(rows, "rows");
        csb::check_ptr(out_size, "out_size");
        csb::check(n_rows >= 1 && n_rows < int64_t{1} << 31, "n_rows", n_rows,
                   "must be from 1 to 2^31 - 1");
        csb::check(n_per_row >= 1 && n_per_row < int64_t{1} << 31, "n_per_row", n_per_row,
                   "must be from 1 to 2^31 - 1");
        const int64_t block = ggml_blck_size(type);
        if (n_per_row % block != 0) {
            csb::bad_argument("n_per_row = " + std::to_string(n_per_row) + ": is no multiple of " +
                              ggml_type_name(type) + "'s blocks of " + std::to_string(block));
        }
        if (ggml_quantize_requires_imatrix(type) || !takes_all(type)) {
            throw csb::error(CSB_ERROR_UNSUPPORTED,
                             std::string("type = ") + ggml_type_name(type) +
                                 (ggml_quantize_requires_imatrix(type)
                                      ? ": its quantizer needs an importance matrix"
                                      : ": csb has no quantizer for it"));
        }
        const int64_t size = n_rows * static_cast<int64_t>(ggml_row_size(type, n_per_row));
        if (capacity >= size) {
            csb::check_ptr(out_bytes, "out_bytes");
            for (int64_t i = 0; i < n_rows * n_per_row; i++) {
                if (!std::isfinite(rows[i])) {
                    csb::bad_argument("rows: entry " + std::to_string(i) + " is not finite");
                }
            }
            ggml_quantize_chunk(type, rows, out_bytes, 0, n_rows, n_per_row, nullptr);
        }
        *out_size = size;
        return CSB_OK;
    });
}

int32_t csb_quantize(const char * in_path, const char * out_path, const char * type,
                     int32_t n_threads, int32_t pure) {
    return csb::guarded([&] {
        csb::check_ptr(in_path, "in_path");
        csb::check_ptr(out_path, "out_path");
        csb::check(n_threads >= 0 && n_threads <= 512, "n_threads", n_threads,
                   "must be from 0 to 512");
        llama_model_quantize_params params = llama_model_quantize_default_params();
        params.ftype                       = find_ftype(csb::check_ptr(type, "type"));
        params.nthread                     = n_threads;
        params.allow_requantize            = true;
        params.pure                        = pure != 0;
        csb::check_file(in_path);
        struct stat in = {}, out = {};
        if (::stat(in_path, &in) == 0 && ::stat(out_path, &out) == 0 && in.st_dev == out.st_dev &&
            in.st_ino == out.st_ino) { // it would be emptied while it is being read
            csb::bad_argument(std::string("out_path = ") + out_path + ": is in_path");
        }
        ggml_backend_dev_count(); // a backend that finds no device logs that, once: no cause of ours
        csb::last_log_error();
        if (llama_model_quantize(in_path, out_path, &params) != 0) {
            const std::string why = csb::last_log_error();
            throw csb::error(CSB_ERROR_FILE, std::string(in_path) + ": can't be quantized" +
                                                 (why.empty() ? "" : ": " + why));
        }
        return CSB_OK;
    });
}
