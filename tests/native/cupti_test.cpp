// The CUPTI hook alone: a watch for each ubatch of the fake's plan, one line of JSON for each.
//   cupti_test N          N watches
//   cupti_test names S... each symbol's short name
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hooks/cupti.hpp"
#include "json.hpp"

int main(int n, char ** arguments) {
    if (n > 1 && std::strcmp(arguments[1], "names") == 0) {
        for (int i = 2; i < n; i++) {
            std::puts(csb::kernel_name(arguments[i]).c_str());
        }
        return 0;
    }
    const int watches = n == 2 ? std::atoi(arguments[1]) : 0;
    if (watches < 1) {
        return 2;
    }
    csb::open_cupti();
    for (int i = 0; i < watches; i++) {
        csb::device_watch         watch(true);
        const csb::device_kernels found = watch.end();
        csb::json                 j;
        j.open('{').pair("lost", found.lost).pair("why_not", found.why_not).key("ran").open('[');
        for (const auto & [name, count] : found.ran) {
            j.open('[').value(name).value(count).close(']');
        }
        std::puts(j.close(']').close('}').str().c_str());
    }
}
