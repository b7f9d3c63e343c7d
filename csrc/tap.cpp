// Keeping and taking layer inputs.
#include <algorithm>

#include "handles.hpp"
#include "internals.hpp"
#include "llama-ext.h"

namespace csb {

void tap::cut(int32_t position) {
    if (first >= 0 && position <= first) {
        first = -1;
        rows.clear();
    } else if (first >= 0) {
        const size_t kept = static_cast<size_t>(position - first) * width;
        rows.resize(std::min(rows.size(), kept));
    }
}

void tap::add(llama_context * context, int32_t first_position, int32_t n_tokens) {
    const size_t n_embd = static_cast<size_t>(llama_model_n_embd(llama_get_model(context)));
    const size_t n      = static_cast<size_t>(n_tokens);
    width               = layers.size() * n_embd;
    cut(first_position);
    if (first < 0 || rows.size() != static_cast<size_t>(first_position - first) * width) {
        first = first_position; // what lies before was written when nothing was kept
        rows.clear();
    }
    const size_t begin = rows.size();
    rows.resize(begin + n * width);
    for (size_t k = 0; k < layers.size(); k++) {
        const float * from =
            llama_get_embeddings_layer_inp(context, static_cast<uint32_t>(layers[k]));
        for (size_t i = 0; i < n; i++) {
            std::copy_n(from + i * n_embd, n_embd, &rows[begin + i * width + k * n_embd]);
        }
    }
}

} // namespace csb

int32_t csb_context_tap(csb_context * handle, int32_t n_layers, const int32_t * layers) {
    return csb::guarded([&] {
        const csb::use  c(handle);
        llama_context * context = c.llama();
        csb::check(n_layers >= 0, "n_layers", n_layers, "must not be negative");
        csb::check_ptr(layers, "layers");
        csb::check(n_layers == 0 || llama_n_seq_max(context) == 1, "n_seq_max",
                   llama_n_seq_max(context), "layer inputs are kept for one sequence");
        for (int32_t i = 0; i < n_layers; i++) {
            csb::check(layers[i] >= 0 && layers[i] <= llama_model_n_layer(c->model.get()), "layers",
                       layers[i], "the model has no such layer");
            if (!csb::gives_layer_input(context, layers[i])) {
                throw csb::error(CSB_ERROR_UNSUPPORTED,
                                 "llama.cpp's graph of this architecture does not give the input "
                                 "of layer " +
                                     std::to_string(layers[i]));
            }
        }
        auto set = [&](bool on) {
            for (int32_t layer : c->tap.layers) {
                llama_set_embeddings_layer_inp(context, static_cast<uint32_t>(layer), on);
            }
        };
        set(false);
        c->outputs.clear(); // their buffer moves
        c->tap.clear();
        c->tap.layers.assign(layers, layers + n_layers);
        set(true);
        return CSB_OK;
    });
}

int32_t csb_context_tapped(csb_context * handle, int64_t capacity, float * out_rows,
                           int32_t * out_first, int64_t * out_n) {
    return csb::guarded([&] {
        const csb::use c(handle);
        csb::check(capacity >= 0, "capacity", capacity, "must not be negative");
        csb::check_ptr(out_rows, "out_rows");
        csb::check_ptr(out_first, "out_first");
        csb::check_ptr(out_n, "out_n");
        csb::check(!c->tap.layers.empty(), "layers", 0, "no layer inputs are kept");
        const auto n = static_cast<int64_t>(c->tap.rows.size());
        *out_first   = n ? c->tap.first : -1;
        *out_n       = n;
        if (n <= capacity) {
            std::copy(c->tap.rows.begin(), c->tap.rows.end(), out_rows);
            c->tap.clear();
        }
        return CSB_OK;
    });
}
