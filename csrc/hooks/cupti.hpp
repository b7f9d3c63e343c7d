// The kernels that run on CUDA devices, by CUPTI's activity records. Records are kept only while a
// device_watch lives, so nothing is switched on outside a traced ubatch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace csb {

struct device_kernels {
    std::vector<std::pair<std::string, int64_t>> ran; // kernel, count; in order of first run
    int64_t     lost = 0;                             // records that CUPTI dropped or held back
    std::string why_not; // not empty: kernels can't be observed, and `ran` says nothing
};

#ifdef CSB_CUPTI

void open_cupti(); // once for the process; where that fails, every watch says why

// What runs on the process's CUDA devices from the watch's begin on. One at a time.
class device_watch {
  public:
    explicit device_watch(bool wanted);
    ~device_watch();
    device_watch(const device_watch &)             = delete;
    device_watch & operator=(const device_watch &) = delete;

    device_kernels end(); // after the devices have been synchronized

  private:
    void stop();

    bool        on   = false;
    int64_t     late = 0; // records that came when the watch before this one had ended
    std::string why_not;
};

// A kernel's name as C++ writes it: the function with its template arguments, without result and
// parameters. Names that are not mangled stay as they are.
std::string kernel_name(const char * symbol);

#else

inline void open_cupti() {}

class device_watch {
  public:
    explicit device_watch(bool) {}
    device_kernels end() {
        device_kernels none;
        none.why_not =
            "built without CUPTI's header: pip install nvidia-cuda-cupti, then csb again";
        return none;
    }
};

#endif

} // namespace csb
