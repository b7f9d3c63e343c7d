#pragma once

#include <vector>

#include "hooks.hpp"

namespace csb {
std::vector<event> take_events(); // all threads' events since the last time
}
