// Layer inputs of a context's decodes, kept by position until they are taken.
#pragma once

#include <cstdint>
#include <vector>

#include "llama.h"

namespace csb {

class tap {
  public:
    // What is kept follows the memory: add() replaces the rows from its first position on, cut()
    // is for rows that leave the memory.
    void add(llama_context * context, int32_t first_position, int32_t n_tokens);
    void cut(int32_t position);
    void clear() { cut(0); }

    std::vector<int32_t> layers; // empty: off
    int32_t              first = -1;
    std::vector<float>   rows; // [positions from first on, layers, n_embd]

  private:
    size_t width = 0; // floats of one position
};

} // namespace csb
