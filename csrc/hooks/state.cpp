// Which hooks are in force, and the threads' logs of kernel events.
#include <algorithm>
#include <memory>
#include <vector>

#include "log.hpp"

namespace {

std::shared_mutex     decodes;
std::atomic<uint32_t> switches{0};
// guarded by `decodes` held alone
csb::trace *       recorder = nullptr;
const csb::watch * watching = nullptr;

struct thread_log {
    const ggml_tensor *     node      = nullptr;
    int                     n_threads = 0;
    std::vector<csb::event> events;
};

// Never freed: threads of a pool may outlive whoever asked for their events.
std::mutex &                               logs_mutex = *new std::mutex;
std::vector<std::unique_ptr<thread_log>> & logs       = *new std::vector<std::unique_ptr<thread_log>>;

thread_log & mine() {
    thread_local thread_log * log = nullptr;
    if (!log) {
        std::lock_guard<std::mutex> lock(logs_mutex);
        logs.push_back(std::make_unique<thread_log>());
        log = logs.back().get();
    }
    return *log;
}

} // namespace

namespace csb {

std::atomic<uint32_t> hooks_in_force{0};

bool hooks_built() {
#ifdef CSB_HOOKS
    return true;
#else
    return false;
#endif
}

void trace::add_ubatch(const std::string & text) {
    if (ubatches.size() + calls.size() + text.size() > limit) {
        lost++;
        return;
    }
    ubatches.append(ubatches.empty() ? "" : ",").append(text);
}

void trace::end_call(int32_t n_tokens) {
    calls.append(calls.empty() ? "" : ",").append("{\"n_tokens\":" + std::to_string(n_tokens));
    calls.append(",\"ubatches\":[").append(ubatches).append("]}");
    ubatches.clear();
}

hooks_hold::hooks_hold(trace * of, const watch * by) {
    const uint32_t flags = switches.load() | (of ? of->flags : 0) | (by ? WATCH : 0);
    if (flags == 0) {
        shared = std::shared_lock<std::shared_mutex>(decodes);
        return;
    }
    alone          = std::unique_lock<std::shared_mutex>(decodes);
    recorder       = of;
    watching       = by;
    hooks_in_force = flags;
}

hooks_hold::~hooks_hold() {
    if (alone) {
        hooks_in_force = 0;
        recorder       = nullptr;
        watching       = nullptr;
    }
}

void set_kernel_switches(uint32_t wanted) {
    switches = wanted;
}

uint32_t kernel_switches() {
    return switches;
}

trace * current_trace() {
    return recorder;
}

const watch * current_watch() {
    return watching;
}

void enter_node(const ggml_tensor * node, int n_threads) {
    thread_log & log = mine();
    log.node         = node;
    log.n_threads    = std::max(log.n_threads, n_threads);
}

const ggml_tensor * entered_node() {
    return mine().node;
}

void note_kernel(const char * kernel, bool accepted, int64_t m, int64_t n, int64_t k) {
    thread_log & log = mine();
    if (!log.events.empty()) {
        event & last = log.events.back();
        if (last.node == log.node && last.kernel == kernel && last.accepted == accepted &&
            last.m == m && last.n == n && last.k == k) {
            last.count++;
            return;
        }
    }
    log.events.push_back({log.node, kernel, 1, m, n, k, accepted});
}

// Only between graphs: the threads' pool has passed a barrier since their last event.
drained take_events() {
    std::lock_guard<std::mutex> lock(logs_mutex);
    drained                     all;
    for (auto & log : logs) {
        all.events.insert(all.events.end(), log->events.begin(), log->events.end());
        all.n_threads = std::max(all.n_threads, log->n_threads);
        log->events.clear();
        log->node      = nullptr;
        log->n_threads = 0;
    }
    return all;
}

} // namespace csb
