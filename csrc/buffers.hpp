// Buffer types in which a device lays weights out for kernels of its own: they are repacked there.
#pragma once

#include "ggml-backend.h"

namespace csb {

// Ends with NULL; itself NULL where the device has none.
inline ggml_backend_buffer_type_t * repacking_types(ggml_backend_dev_t device) {
    const auto extra =
        reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    return extra ? extra(device) : nullptr;
}

inline bool is_repacked(ggml_backend_buffer_t buffer) {
    const ggml_backend_buffer_type_t type   = ggml_backend_buffer_get_type(buffer);
    const ggml_backend_dev_t         device = ggml_backend_buft_get_device(type);
    ggml_backend_buffer_type_t *     types  = device ? repacking_types(device) : nullptr;
    for (; types && *types; types++) {
        if (*types == type) {
            return true;
        }
    }
    return false;
}

} // namespace csb
