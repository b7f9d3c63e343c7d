// Making a context of a model.
#pragma once

#include "handles.hpp"
#include "options.hpp"

namespace csb {

// target: of a draft, whose weights its graphs use.
std::shared_ptr<csb_context> make_context(std::shared_ptr<llama_model> model, options options,
                                          std::shared_ptr<csb_context> target = nullptr);

} // namespace csb
