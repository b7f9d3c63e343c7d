// A CUPTI without a GPU, for the tests of csrc/hooks/cupti.cpp: the functions that the hook calls,
// as CUPTI's own header declares them, giving out the records that a plan has.
//
// CSB_FAKE_CUPTI names the plan, a text of words line by line; CSB_FAKE_CUPTI_LOG a file to which
// every call is appended. Each cuptiActivityEnable begins the plan's next section:
//   ubatch               a section begins
//   kernel START SYMBOL  a kernel's record
//   copy                 a record of another kind
//   buffer               the records so far are one buffer, in the order of these lines
//   incomplete           a record that cuptiActivityGetNextRecord refuses
//   forced               what follows is given out by a forced flush only
//   late                 what follows is given out when the next section begins
//   dropped N            what cuptiActivityGetNumDroppedRecords says
//   fail FUNCTION CODE   that function fails, from this section on
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <cupti_activity.h>
#include <cupti_version.h>

namespace {

#if CUPTI_API_VERSION >= 130500
using kernel_record = CUpti_ActivityKernel13;
#elif CUPTI_API_VERSION >= 130000
using kernel_record = CUpti_ActivityKernel10;
#else
using kernel_record = CUpti_ActivityKernel9;
#endif
using copy_record = CUpti_ActivityMemcpy5;

constexpr auto INCOMPLETE = CUPTI_ACTIVITY_KIND_INVALID;

struct record {
    CUpti_ActivityKind kind;
    uint64_t           start;
    std::string        symbol;
};

struct section {
    std::vector<std::vector<record>> buffers{{}}, forced, late;
    size_t                           dropped = 0;
    std::map<std::string, int>       fails;
};

std::vector<section> & plan() {
    static auto & sections = *new std::vector<section>(1); // the first: before any ubatch
    static bool   read     = false;
    if (read) {
        return sections;
    }
    read = true;
    std::ifstream file(std::getenv("CSB_FAKE_CUPTI"));
    std::string   line, word;
    auto          into = &section::buffers;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        words >> word;
        if (word == "ubatch") {
            sections.push_back({});
            sections.back().fails = sections[sections.size() - 2].fails;
            into                  = &section::buffers;
            continue;
        }
        section & s = sections.back();
        if (word == "forced" || word == "late") {
            into    = word == "forced" ? &section::forced : &section::late;
            s.*into = {{}};
        } else if (word == "dropped") {
            words >> s.dropped;
        } else if (word == "fail") {
            std::string function;
            int         code = 0;
            words >> function >> code;
            s.fails[function] = code;
        } else {
            auto & buffers = s.*into;
            if (word == "buffer") {
                buffers.push_back({});
            } else if (word == "kernel") {
                record r{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 0, ""};
                words >> r.start >> r.symbol;
                buffers.back().push_back(r);
            } else if (word == "copy") {
                buffers.back().push_back({CUPTI_ACTIVITY_KIND_MEMCPY, 1, ""});
            } else if (word == "incomplete") {
                buffers.back().push_back({INCOMPLETE, 0, ""});
            } else {
                std::abort(); // a plan nobody can read must not pass for an empty one
            }
        }
    }
    return sections;
}

size_t                            now = 0; // the section in force
CUpti_BuffersCallbackRequestFunc  request;
CUpti_BuffersCallbackCompleteFunc complete;

CUptiResult called(const char * function, const std::string & argument = "") {
    if (const char * path = std::getenv("CSB_FAKE_CUPTI_LOG")) {
        std::ofstream(path, std::ios::app) << function << argument << "\n";
    }
    const auto & fails = plan()[now].fails;
    const auto   it    = fails.find(function);
    return it == fails.end() ? CUPTI_SUCCESS : static_cast<CUptiResult>(it->second);
}

size_t size_of(CUpti_ActivityKind kind) {
    return kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL ? sizeof(kernel_record)
                                                         : sizeof(copy_record);
}

void give(std::vector<std::vector<record>> & buffers) {
    for (const auto & records : buffers) {
        uint8_t * buffer = nullptr;
        size_t    size = 0, most = 1, used = 0;
        request(&buffer, &size, &most);
        if (!buffer || most != 0) {
            std::abort();
        }
        std::memset(buffer, 0xa5, size); // what the hook must not look at
        for (const record & r : records) {
            if (used + size_of(r.kind) > size) {
                std::abort();
            }
            if (r.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
                auto * kernel = reinterpret_cast<kernel_record *>(buffer + used);
                kernel->kind  = r.kind;
                kernel->start = r.start;
                kernel->end   = r.start + 1;
                kernel->name  = r.symbol.c_str();
            } else {
                reinterpret_cast<copy_record *>(buffer + used)->kind = r.kind;
            }
            used += size_of(r.kind);
        }
        complete(nullptr, 0, buffer, size, used);
    }
    buffers.clear();
}

} // namespace

extern "C" {

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc  requested,
                                                    CUpti_BuffersCallbackCompleteFunc completed) {
    request  = requested;
    complete = completed;
    return called("cuptiActivityRegisterCallbacks");
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
    give(plan()[now].late);
    now = now + 1 < plan().size() ? now + 1 : now;
    return called("cuptiActivityEnable", " " + std::to_string(kind));
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
    return called("cuptiActivityDisable", " " + std::to_string(kind));
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag) {
    section & s = plan()[now];
    give(s.buffers);
    if (flag == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) {
        give(s.forced);
    }
    return called("cuptiActivityFlushAll", " " + std::to_string(flag));
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t * buffer, size_t valid,
                                                CUpti_Activity ** record) {
    uint8_t * next = buffer;
    if (*record) {
        next = reinterpret_cast<uint8_t *>(*record) + size_of((*record)->kind);
    }
    if (next >= buffer + valid) {
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    }
    *record = reinterpret_cast<CUpti_Activity *>(next);
    return (*record)->kind == INCOMPLETE ? CUPTI_ERROR_INVALID_KIND : CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t * dropped) {
    *dropped            = plan()[now].dropped;
    plan()[now].dropped = 0;
    return called("cuptiActivityGetNumDroppedRecords");
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char ** text) {
    if (result == CUPTI_ERROR_UNKNOWN) {
        return result; // as CUPTI 13.5 without a driver: no text
    }
    *text = "planned failure";
    return CUPTI_SUCCESS;
}

} // extern "C"
