// The one door to libllama's own structures, for what llama.h has no getter for.
#pragma once

#include <string>

#include "json.hpp"
#include "llama.h"

namespace csb {

void describe_internal_parameters(const llama_context * context, json & j);
// csb_context_offload's object.
void         describe_offload(const llama_context * context, json & j);
// Those that a sequence's state depends on.
void describe_state_parameters(const llama_context * context, json & j);
// How many caches the sequences have: sequences that share one save what a lone one does.
void describe_streams(const llama_context * context, json & j);
const char * memory_class(const llama_context * context);
// First and last position of a sequence in the full attention layers, where the memory has some, -1
// and -1 when empty. llama.h's functions see the sliding window or the recurrent part instead.
void first_and_last(const llama_context * context, int32_t seq_id, int32_t & first, int32_t & last);
// Why the memory's other layers don't go on at this position, the next of the full attention layers;
// NULL if they do.
const char * out_of_step(const llama_context * context, int32_t seq_id, int32_t position);
bool         rolls_back(const llama_context * context); // false: a recurrent part, which can't
bool         is_causal(const llama_model * model);
// Whether the cache's type has blocks that no head's row is a multiple of.
bool splits_blocks(const llama_model * model, ggml_type type_k);
// Why llama.cpp would abort: more devices than ggml takes; empty if not.
std::string too_many_devices(const llama_model * model);
// Why a device would refuse a layer's part of the memory, at which llama.cpp aborts; empty if none.
std::string too_large_for_a_device(const llama_model * model, const llama_context_params & params);
// Whether the graph that llama.cpp reserved for the context gives this layer's input, one row of
// n_embd floats for each token: asked of one that does not, it aborts.
bool gives_layer_input(const llama_context * context, int32_t layer);
bool is_dflash(const llama_model * model);
// Why the model is no DFlash draft that csb can run; empty if it is one.
std::string why_no_draft(const llama_model * model);
uint32_t    draft_block_size(const llama_model * draft);
bool        draft_is_causal(const llama_model * draft); // a block's tokens see only earlier ones
// Why the draft can't stand beside this target; empty if it can.
std::string why_not_beside(const llama_model * draft, const llama_context * target);
// Counts by type name of the model's weight tensors: {"f32": 61, "bf16": 211}.
void describe_tensor_types(const llama_model * model, json & j);

} // namespace csb
