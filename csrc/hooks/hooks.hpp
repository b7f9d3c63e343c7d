// The hooks between llama.cpp's own objects. The linker's --wrap puts them there at libcsb's one
// final link (wrapped.txt), so nothing of llama.cpp's source is touched. Off, each costs one
// predictable branch on hooks_in_force.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "../csb.h"

struct ggml_tensor;

namespace csb {

// What a trace records, beside csb.h's csb_kernel_switch in one word.
constexpr uint32_t RECORD_GRAPH   = 1u << 8;
constexpr uint32_t RECORD_KERNELS = 1u << 9;
constexpr uint32_t WATCH          = 1u << 10; // and a watcher

// Latched before a decode and read by all threads of its graphs from this one place: a switch that
// changed inside a decode would send threads to different barriers.
extern std::atomic<uint32_t> hooks_in_force;

inline uint32_t hooks() {
    return hooks_in_force.load(std::memory_order_relaxed);
}

// What a context's traced decodes recorded: JSON texts joined by commas, ubatches of the decode that
// runs and calls that have ended.
struct trace {
    uint32_t    flags = 0; // RECORD_GRAPH, RECORD_KERNELS
    size_t      limit = 0; // bytes of text; beyond, ubatches are counted as lost
    std::string ubatches;
    std::string calls;
    int64_t     lost = 0;

    void add_ubatch(const std::string & text);
    void end_call(int32_t n_tokens);
};

// Who is called for every node of a context's decodes.
struct watch {
    csb_watcher watcher = nullptr;
    void *      user    = nullptr;
};

// Held around a decode: serialises it against all others while any hook is in force.
class hooks_hold {
  public:
    explicit hooks_hold(trace * recorder, const watch * watcher = nullptr);
    ~hooks_hold();
    hooks_hold(const hooks_hold &)             = delete;
    hooks_hold & operator=(const hooks_hold &) = delete;

  private:
    std::shared_lock<std::shared_mutex> shared;
    std::unique_lock<std::shared_mutex> alone;
};

bool     hooks_built();
void     set_kernel_switches(uint32_t switches);
uint32_t kernel_switches();
trace *  current_trace(); // of the decode that runs with hooks in force
const watch * current_watch();

// Kernel events, one log for each thread and no lock where they happen. `kernel` is a string that
// lives as long as the process. m, n, k of a product, else 0.
struct event {
    const ggml_tensor * node;
    const char *        kernel;
    int64_t             count, m, n, k;
    bool                accepted; // false: the kernel was asked and said no
};

// This thread's events belong to the node from now on; n_threads as its kernel sees them.
void enter_node(const ggml_tensor * node, int n_threads);
const ggml_tensor * entered_node();
void note_kernel(const char * kernel, bool accepted = true, int64_t m = 0, int64_t n = 0,
                 int64_t k = 0);

} // namespace csb
