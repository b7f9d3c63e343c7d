// Devices behind llama.cpp's RPC servers. ggml aborts on an address it can't use and waits for ever
// for a server that does not answer, so that is found out before it is asked.
#include "ggml-rpc.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "guard.hpp"
#include "net.hpp"
#include "options.hpp"

namespace {

using csb::error;
using steady = std::chrono::steady_clock;

// The one message that every version of the protocol answers (ggml-rpc.cpp: RPC_CMD_HELLO).
constexpr uint8_t HELLO      = 14;
constexpr size_t  HELLO_SIZE = 24; // what the client can do; none of it concerns TCP

struct address {
    std::string text; // as given
    sockaddr_in at = {};
};

[[noreturn]] void refuse(const address & server, const std::string & why) {
    throw error(CSB_ERROR_DEVICE, "RPC server " + server.text + ": " + why);
}

address read_address(const std::string & text) {
    const size_t      colon = text.find(':'); // the first, as ggml reads it
    const std::string port  = colon == text.npos ? "" : text.substr(colon + 1);
    const bool        digits =
        !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
    const int number = digits ? std::stoi(port) : 0;
    if (colon == 0 || colon == text.npos || number < 1 || number > 65535 || text.size() > 255) {
        csb::bad_argument("RPC server '" + text +
                          "': must be host:port, a name or an IPv4 address (llama.cpp's RPC has no "
                          "IPv6) and a port from 1 to 65535");
    }
    address  server;
    addrinfo hints  = {};
    hints.ai_family = AF_INET; // ggml's RPC speaks no other
    addrinfo * list = nullptr;
    const int  code = getaddrinfo(text.substr(0, colon).c_str(), port.c_str(), &hints, &list);
    server.text     = text;
    if (code != 0 || !list) {
        refuse(server, std::string("no such host: ") + gai_strerror(code));
    }
    std::memcpy(&server.at, list->ai_addr, sizeof(server.at));
    freeaddrinfo(list);
    return server;
}

struct handle { // closed also where a constructor throws
    const int fd;
    ~handle() { ::close(fd); }
};

class connection {
  public:
    connection(const address & to, int timeout_ms)
        : server(to), until(steady::now() + std::chrono::milliseconds(timeout_ms)),
          open{::socket(AF_INET, SOCK_STREAM, 0)}, fd(open.fd) {
        if (fd < 0 || ::fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
            refuse(server, std::strerror(errno));
        }
        const auto * at = reinterpret_cast<const sockaddr *>(&server.at);
        if (::connect(fd, at, sizeof(server.at)) != 0) {
            int       code = errno;
            socklen_t size = sizeof(code);
            if (code == EINPROGRESS) {
                wait(POLLOUT, "no answer");
                ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size);
            }
            if (code != 0) {
                refuse(server, std::strerror(code));
            }
        }
    }
    connection(const connection &)             = delete;
    connection & operator=(const connection &) = delete;

    void send(const void * data, size_t size) {
        const char * p = static_cast<const char *>(data);
        while (size > 0) {
            wait(POLLOUT, "no answer");
            const ssize_t n = ::send(fd, p, size, MSG_NOSIGNAL);
            if (n <= 0) {
                refuse(server, NOT_ONE);
            }
            p += n;
            size -= static_cast<size_t>(n);
        }
    }

    void receive(void * data, size_t size) {
        char * p = static_cast<char *>(data);
        while (size > 0) {
            wait(POLLIN, "takes connections but does not answer; a server serves one client at a "
                         "time");
            const ssize_t n = ::recv(fd, p, size, 0);
            if (n <= 0) {
                refuse(server, NOT_ONE);
            }
            p += n;
            size -= static_cast<size_t>(n);
        }
    }

    // A server that is busy takes up a connection which was given up long ago, and dies of SIGPIPE
    // as it answers, unless it was reset.
    void reset_on_close(bool on) {
        const linger now = {on ? 1 : 0, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }

    static constexpr const char * NOT_ONE = "what answers there is no RPC server of llama.cpp";

  private:
    void wait(short events, const char * complaint) {
        for (;;) {
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(until - steady::now());
            pollfd    one   = {fd, events, 0};
            const int ready = ::poll(&one, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
            if (ready > 0) {
                return;
            }
            if (ready == 0) {
                refuse(server, complaint);
            }
            if (errno != EINTR) {
                refuse(server, std::strerror(errno));
            }
        }
    }

    const address &          server;
    const steady::time_point until;
    const handle             open;
    const int                fd;
};

// A connection that llama.cpp holds to the process's end.
struct held {
    char        text[256];
    sockaddr_in at;
    int         fd; // -1: not found
};

constexpr int        MOST = 64;
held                 servers[MOST]; // never moved: read without a lock when llama.cpp aborts
std::atomic<int32_t> n_servers{0};

bool same(const sockaddr_in & a, const sockaddr_in & b) {
    return a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
}

bool gone(int fd) {
    char          one;
    const ssize_t n = ::recv(fd, &one, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT));
}

// That a server of this protocol answers.
void greet(const address & server, int timeout_ms) {
    connection     peer(server, timeout_ms);
    peer.reset_on_close(true);
    const uint8_t  command          = HELLO;
    const uint64_t size             = HELLO_SIZE;
    const uint8_t  able[HELLO_SIZE] = {};
    peer.send(&command, sizeof(command));
    peer.send(&size, sizeof(size));
    peer.send(able, sizeof(able));
    uint64_t answer_size = 0;
    uint8_t  version[3]  = {};
    peer.receive(&answer_size, sizeof(answer_size));
    if (answer_size < sizeof(version) || answer_size > 4096) {
        refuse(server, connection::NOT_ONE);
    }
    peer.receive(version, sizeof(version));
    if (version[0] != RPC_PROTO_MAJOR_VERSION || version[1] > RPC_PROTO_MINOR_VERSION) {
        refuse(server, "speaks RPC protocol " + std::to_string(version[0]) + "." +
                           std::to_string(version[1]) + ", this build " +
                           std::to_string(RPC_PROTO_MAJOR_VERSION) + "." +
                           std::to_string(RPC_PROTO_MINOR_VERSION) +
                           ": take a server of the same llama.cpp");
    }
    peer.reset_on_close(false);
}

// ggml waits without a limit, so the kernel has to notice that a machine or a cable is gone. A
// server that only computes for long is left alone. Returns the connection, or -1.
int notice_loss(const address & server) {
    int        found = -1;
    const long most = std::min(::sysconf(_SC_OPEN_MAX), 65536l);
    for (int fd = 3; fd < most; fd++) {
        sockaddr_in peer = {};
        socklen_t   size = sizeof(peer);
        if (::getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &size) != 0 ||
            peer.sin_family != AF_INET || !same(peer, server.at)) {
            continue;
        }
        found    = fd;
        auto set = [&](int level, int option, int value) {
            ::setsockopt(fd, level, option, &value, sizeof(value));
        };
        set(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef __linux__
        set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
        set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
        set(IPPROTO_TCP, TCP_KEEPCNT, 4);
        set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
#endif
    }
    return found;
}

} // namespace

void csb::lost_rpc_servers(char * out, size_t size) {
    size_t used = 0;
    *out        = 0;
    for (int i = 0; i < n_servers; i++) {
        if (gone(servers[i].fd)) {
            const int n = std::snprintf(out + used, size - used, "%s%s", used ? ", " : "",
                                        servers[i].text);
            used        = std::min(used + static_cast<size_t>(n), size - 1);
        }
    }
}

int32_t csb_library_add_rpc(const char * server, int32_t timeout_ms) {
    return csb::guarded([&] {
        const std::string text = csb::check_ptr(server, "server");
        csb::check(timeout_ms >= 1, "timeout_ms", timeout_ms, "must be at least 1");
        ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
        if (!rpc) {
            throw error(CSB_ERROR_UNSUPPORTED,
                        "this build has no RPC: build csb with -C cmake.define.GGML_RPC=ON");
        }
        static std::mutex           mutex;
        std::lock_guard<std::mutex> lock(mutex);
        const address               where = read_address(text);
        for (int i = 0; i < n_servers; i++) {
            if (text == servers[i].text) {
                return CSB_OK;
            }
            if (same(where.at, servers[i].at)) {
                refuse(where, std::string("is ") + servers[i].text + " by another name");
            }
        }
        csb::check(n_servers < MOST, "servers", n_servers + 1, "are more than csb takes");
        greet(where, timeout_ms);
        const auto add = reinterpret_cast<decltype(&ggml_backend_rpc_add_server)>(
            ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server"));
        ggml_backend_reg_t devices = add(text.c_str());
        if (!devices) {
            refuse(where, "it has no devices");
        }
        // a backend holds the connection; it is never freed
        if (!ggml_backend_dev_init(ggml_backend_reg_dev_get(devices, 0), nullptr)) {
            refuse(where, "its device can't be opened");
        }
        ggml_backend_register(devices);
        held & made = servers[n_servers];
        std::snprintf(made.text, sizeof(made.text), "%s", text.c_str());
        made.at = where.at;
        made.fd = notice_loss(where);
        n_servers++;
        return CSB_OK;
    });
}
