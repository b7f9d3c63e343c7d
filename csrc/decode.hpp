// What every decode does, whatever its batch holds.
#pragma once

#include "handles.hpp"

namespace csb {

// Throws unless each sequence's positions go on from its last one in the memory, one by one, and
// its memory is whole.
void check_places(const csb_context & c, int32_t n_tokens, const int32_t * positions,
                  const int32_t * seq_ids);

// One llama_decode, waited for, of a batch with n_tokens, token or embd, pos and logits: a status.
int32_t submit(csb_context & c, llama_batch batch, const int32_t * seq_ids);

} // namespace csb
