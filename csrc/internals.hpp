// The one door to libllama's own structures, for what llama.h has no getter for.
#pragma once

#include "json.hpp"
#include "llama.h"

namespace csb {

void describe_internal_parameters(const llama_context * context, json & j);
const char * memory_class(const llama_context * context);
bool         rolls_back(const llama_context * context); // false: a recurrent part, which can't
bool         is_causal(const llama_model * model);
// Whether the cache's type has blocks that no head's row is a multiple of.
bool splits_blocks(const llama_model * model, ggml_type type_k);
// Counts by type name of the model's weight tensors: {"f32": 61, "bf16": 211}.
void describe_tensor_types(const llama_model * model, json & j);

} // namespace csb
