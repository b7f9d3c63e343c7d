// One ggml op by itself: what its name and types mean, and whether its node may run.
#pragma once

#include <string>

#include "ggml.h"

namespace csb {

// By ggml's own name, whatever the case; none for deprecated types. Throws where there is no such.
ggml_type find_type(const std::string & name);

// An op by ggml's name, or a unary or gated op by its own ("SILU", "SWIGLU"): op_params[0] then
// becomes what says so.
ggml_op find_op(const std::string & name, int32_t * op_params);

// Everything that ggml would assert on. The node is whole but for buffers; `ids` are the values of
// MUL_MAT_ID's third source. Throws CSB_ERROR_ARGUMENT, or CSB_ERROR_UNSUPPORTED for what this file
// has no checks of.
void check_node(const ggml_tensor * node, const void * ids);

} // namespace csb
