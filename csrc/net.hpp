#pragma once

#include <cstddef>

namespace csb {
void net_install(); // once, at start: abort callback and terminate handler

// Servers whose connection is gone, joined by ", "; allocates nothing and takes no lock.
void lost_rpc_servers(char * out, size_t size);
}
