// llama.cpp's quantizer. A type's name is what people type: llama.cpp's ftype without "MOSTLY_".
#include <sys/stat.h>

#include <cctype>

#include "guard.hpp"
#include "llama.h"

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

} // namespace

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
        csb::last_log_error();
        if (llama_model_quantize(in_path, out_path, &params) != 0) {
            const std::string why = csb::last_log_error();
            throw csb::error(CSB_ERROR_FILE, std::string(in_path) + ": can't be quantized" +
                                                 (why.empty() ? "" : ": " + why));
        }
        return CSB_OK;
    });
}
