#pragma once

#include <vector>

#include "hooks.hpp"

namespace csb {

// All threads' events since the last time, and the most threads that a kernel had.
struct drained {
    std::vector<event> events;
    int                n_threads = 0;
};
drained take_events();

}
