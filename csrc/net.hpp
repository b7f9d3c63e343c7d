#pragma once

namespace csb {
void net_install(); // once, at start: abort callback and terminate handler
}
