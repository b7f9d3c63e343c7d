// The shim through its C interface alone, for the sanitizers: buffers have exactly the size they are
// said to have, and threads do what threads of a caller may do. What values come out is the Python
// tests' business; here only statuses are checked.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csb.h"

namespace {

std::atomic<int> failures{0};

#define CHECK(expression)                                                                          \
    do {                                                                                           \
        if (!(expression)) {                                                                       \
            std::printf("%s:%d: %s (%s)\n", __FILE__, __LINE__, #expression, csb_error_message()); \
            failures++;                                                                            \
        }                                                                                          \
    } while (false)
#define OK(call) CHECK((call) == CSB_OK)
#define BAD(call) CHECK((call) == CSB_ERROR_ARGUMENT)

std::string models; // folder

std::string path_of(const char * name) {
    return models + "/" + name;
}

struct options {
    std::vector<const char *> keys, values;
    int32_t size() const { return static_cast<int32_t>(keys.size()); }
    options & set(const char * key, const char * value) {
        keys.push_back(key);
        values.push_back(value);
        return *this;
    }
};

csb_model * open_model(const char * name) {
    csb_model * model = nullptr;
    OK(csb_model_open(path_of(name).c_str(), 0, nullptr, nullptr, &model));
    return model;
}

csb_context * open_context(csb_model * model, const char * n_ctx = "256") {
    options o;
    o.set("n_ctx", n_ctx).set("n_batch", n_ctx).set("n_threads", "2").set("n_threads_batch", "2");
    csb_context * context = nullptr;
    OK(csb_context_open(model, o.size(), o.keys.data(), o.values.data(), &context));
    return context;
}

int32_t decode(csb_context * context, int32_t n, int32_t start, int8_t output = 1) {
    const std::vector<int32_t> sequences(static_cast<size_t>(n), 0);
    const std::vector<int8_t>  outputs(static_cast<size_t>(n), output);
    std::vector<int32_t>       tokens, positions;
    for (int32_t i = 0; i < n; i++) {
        tokens.push_back((start + i) % 256);
        positions.push_back(start + i);
    }
    return csb_context_decode(context, n, tokens.data(), positions.data(), sequences.data(),
                              outputs.data());
}

int32_t next_position(csb_context * context) {
    int32_t first = 0, last = 0;
    OK(csb_context_seq_bounds(context, 0, &first, &last));
    return last + 1;
}

void run_threads(int n, const std::function<void(int)> & work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < n; i++) {
        threads.emplace_back(work, i);
    }
    for (std::thread & t : threads) {
        t.join();
    }
}

void library() {
    const char * text = nullptr;
    CHECK(csb_abi_version() == CSB_ABI_VERSION);
    OK(csb_library_build(&text));
    CHECK(std::strstr(text, "\"llama_commit\""));
    OK(csb_library_system(&text));
    CHECK(std::strstr(text, "\"devices\""));
    BAD(csb_library_set_log_level(0));
    BAD(csb_library_add_rpc(nullptr, 1000));
    BAD(csb_library_add_rpc("127.0.0.1:1", 0));
    BAD(csb_library_build(nullptr));
    // a message belongs to the thread that failed
    std::string other;
    std::thread([&] { other = csb_error_message(); }).join();
    CHECK(other == "no error");
    CHECK(std::strstr(csb_error_message(), "NULL"));
}

void model() {
    csb_model *  model = open_model("llama.gguf");
    const char * text  = nullptr;
    int32_t      n     = 0;
    OK(csb_model_describe(model, &text));
    OK(csb_model_metadata(model, "general.architecture", &text));
    CHECK(std::string(text) == "llama");
    BAD(csb_model_metadata(model, "no such", &text));
    OK(csb_model_chat_template(model, &text));
    CHECK(std::strstr(text, "im_start"));

    const std::unique_ptr<int32_t[]> tokens(new int32_t[3]);
    const std::unique_ptr<char[]>    bytes(new char[3]);
    const char                       hello[] = {'h', 'e', 'l', 'l', 'o'}; // no final 0
    OK(csb_model_tokenize(model, hello, 5, 1, 1, 3, tokens.get(), &n));
    CHECK(n == 5);
    OK(csb_model_tokenize(model, hello, 3, 1, 1, 3, tokens.get(), &n));
    CHECK(n == 3 && tokens[0] == 'h');
    OK(csb_model_tokenize(model, hello, 0, 0, 0, 0, nullptr, &n));
    OK(csb_model_detokenize(model, tokens.get(), 3, 1, 3, bytes.get(), &n));
    CHECK(n == 3 && bytes[2] == 'l');
    OK(csb_model_detokenize(model, tokens.get(), 3, 1, 0, nullptr, &n));
    CHECK(n == 3);
    OK(csb_model_token_piece(model, 257, 3, bytes.get(), &n));
    CHECK(n == 10);
    for (int32_t bad : {-1, 512, std::numeric_limits<int32_t>::min()}) {
        BAD(csb_model_token_piece(model, bad, 3, bytes.get(), &n));
        BAD(csb_model_token_is_eog(model, bad, &n));
        BAD(csb_model_detokenize(model, &bad, 1, 1, 3, bytes.get(), &n));
    }
    csb_model_close(model);
    csb_model_close(model);
    csb_model_close(nullptr);
    BAD(csb_model_describe(model, &text));
}

void files() {
    csb_model * model = nullptr;
    auto        open  = [&](const char * name, const options & o = {}) {
        return csb_model_open(path_of(name).c_str(), o.size(), o.keys.data(), o.values.data(), &model);
    };
    CHECK(open("cut.gguf") == CSB_ERROR_FILE);
    CHECK(open("vocab.gguf") == CSB_ERROR_FILE);
    CHECK(open("missing.gguf") == CSB_ERROR_FILE);
    CHECK(open(".") == CSB_ERROR_FILE);
    CHECK(open("bert.gguf") == CSB_ERROR_UNSUPPORTED);
    BAD(open("llama.gguf", options().set("no such", "1")));
    BAD(open("llama.gguf", options().set("devices", "nothing")));
    BAD(open("llama.gguf", options().set("tensor_split", "1,")));
    BAD(csb_model_open(nullptr, 0, nullptr, nullptr, &model));
    BAD(csb_model_open("x", 1, nullptr, nullptr, &model));
    CHECK(!model);
    const std::string quantized = path_of("quantized.gguf");
    OK(csb_quantize(path_of("llama.gguf").c_str(), quantized.c_str(), "q8_0", 2, 0));
    BAD(csb_quantize(quantized.c_str(), quantized.c_str(), "f16", 1, 0));
    CHECK(csb_quantize(path_of("cut.gguf").c_str(), quantized.c_str(), "q8_0", 1, 0) ==
          CSB_ERROR_FILE);
    csb_model_close(open_model("quantized.gguf"));
}

void decoding() {
    csb_model *   model   = open_model("llama.gguf");
    csb_context * context = open_context(model);
    csb_model_close(model); // the context keeps it
    const char * text = nullptr;
    OK(csb_context_describe(context, &text));

    std::vector<float> rows(2 * 512);
    const int32_t      entries[] = {7, 2}, wrong[] = {7, 8};
    BAD(csb_context_logits(context, 1, entries, rows.data()));
    OK(decode(context, 8, 0));
    OK(csb_context_logits(context, 2, entries, rows.data()));
    BAD(csb_context_logits(context, 2, wrong, rows.data()));
    BAD(csb_context_logits(context, -1, entries, rows.data()));
    BAD(csb_context_logits(context, 1, nullptr, rows.data()));
    OK(csb_context_logits(context, 0, entries, rows.data()));

    BAD(decode(context, 0, 8));
    BAD(decode(context, 257, 8));
    BAD(decode(context, 1, 7));
    BAD(decode(context, 1, 9));
    BAD(decode(context, 1, -1));
    const int32_t token = 1, position = 8, bad = 512, zero = 0, one = 1;
    const int8_t  flag = 1;
    BAD(csb_context_decode(context, 1, &bad, &position, &zero, &flag));
    BAD(csb_context_decode(context, 1, &token, &position, &one, &flag));
    BAD(csb_context_decode(context, 1, nullptr, &position, &zero, &flag));
    OK(decode(context, 248, 8, 0));
    BAD(decode(context, 1, 256)); // full

    int32_t removed = 0, low = 0, high = 0;
    OK(csb_context_seq_rm(context, 0, 8, -1, &removed));
    CHECK(removed == 1);
    BAD(csb_context_seq_rm(context, 1, 8, -1, &removed));
    BAD(csb_context_seq_rm(context, 0, 8, 7, &removed));
    OK(csb_context_seq_bounds(context, 0, &low, &high));
    CHECK(low == 0 && high == 7);
    OK(csb_context_clear(context, 1));
    OK(csb_context_seq_bounds(context, 0, &low, &high));
    CHECK(low == -1 && high == -1);
    int64_t ns = 0, n = 0;
    OK(csb_context_decode_time(context, &ns, &n));
    CHECK(n == 2 && ns > 0);
    csb_context_close(context);
    csb_context_close(context);
    csb_context_close(nullptr);
    BAD(decode(context, 1, 0));
    BAD(csb_context_cancel(reinterpret_cast<csb_context *>(&n)));
}

void states() {
    csb_model *   model   = open_model("lfm2.gguf");
    csb_context * context = open_context(model);
    for (int32_t partial : {0, 1}) {
        OK(csb_context_clear(context, 0));
        OK(decode(context, 8, 0));
        int64_t size = 0, written = 0;
        OK(csb_context_state_size(context, 0, partial, &size));
        std::vector<uint8_t> state(static_cast<size_t>(size));
        BAD(csb_context_state_get(context, 0, partial, size - 1, state.data(), &written));
        OK(csb_context_state_get(context, 0, partial, size, state.data(), &written));
        CHECK(written == size);
        OK(decode(context, 1, 8));
        OK(csb_context_state_set(context, 0, partial, state.data(), size));
        for (int64_t cut = 0; cut < 80; cut++) {
            const std::vector<uint8_t> part(state.begin(), state.begin() + cut);
            BAD(csb_context_state_set(context, 0, partial, part.data(), cut));
        }
        BAD(csb_context_state_set(context, 0, !partial, state.data(), size));
        for (size_t at = 0; at < state.size(); at += 1 + state.size() / 97) {
            state[at] ^= 0x80;
            BAD(csb_context_state_set(context, 0, partial, state.data(), size));
            state[at] ^= 0x80;
        }
    }
    csb_context_close(context);
    csb_model_close(model);
}

void rows() {
    for (int32_t n = 1; n < 70; n++) {
        std::vector<float>  a(static_cast<size_t>(2 * n)), b = a;
        std::vector<double> table(2 * CSB_ROW_N_FIELDS), pairs(2 * CSB_PAIR_N_FIELDS);
        for (int32_t i = 0; i < 2 * n; i++) {
            a[static_cast<size_t>(i)] = static_cast<float>((i * 7919) % 101) * 200.0f - 1e4f;
            b[static_cast<size_t>(i)] = static_cast<float>((i * 104729) % 97) * 1e37f;
        }
        const int32_t targets[] = {0, n - 1}, wrong[] = {0, n};
        OK(csb_rows_summarise(2, n, a.data(), targets, 1e-6, table.data()));
        OK(csb_rows_compare(2, n, a.data(), b.data(), 1e6, pairs.data()));
        BAD(csb_rows_summarise(2, n, a.data(), wrong, 1, table.data()));
        BAD(csb_rows_compare(2, n, a.data(), b.data(), 0, pairs.data()));
        a.back() = std::numeric_limits<float>::quiet_NaN();
        OK(csb_rows_summarise(2, n, a.data(), targets, 1, table.data()));
        CHECK(table[CSB_ROW_N_FIELDS + CSB_ROW_N_BAD] == 1);
        OK(csb_rows_compare(2, n, a.data(), b.data(), 1, pairs.data()));
    }
}

void cancelling() {
    csb_model *   model   = open_model("llama.gguf");
    csb_context * context = open_context(model, "4096");
    // another thread cancels all the time; each decode ends well or cancelled, and says so
    std::atomic<bool> stop{false};
    int               cancelled = 0;
    std::thread       canceller([&] {
        while (!stop) {
            OK(csb_context_cancel(context));
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    });
    for (int i = 0; i < 20; i++) {
        const int32_t status = decode(context, 512, 0, 0);
        CHECK(status == CSB_OK || status == CSB_CANCELLED);
        cancelled += status == CSB_CANCELLED;
        OK(csb_context_clear(context, 0));
    }
    stop = true;
    canceller.join();
    CHECK(cancelled > 0);
    OK(decode(context, 16, 0));
    csb_context_close(context);
    csb_model_close(model);
}

void one_context_many_threads() {
    csb_model *      model   = open_model("llama.gguf");
    csb_context *    context = open_context(model);
    std::atomic<int> done{0};
    run_threads(4, [&](int) { // each call works or says that the context is in use
        for (int i = 0; i < 50; i++) {
            int32_t            low = 0, high = 0;
            std::vector<float> row(512);
            const int32_t      entry = 0;
            const int32_t      statuses[] = {csb_context_clear(context, 0),
                                             decode(context, 4, 0),
                                             csb_context_logits(context, 1, &entry, row.data()),
                                             csb_context_seq_bounds(context, 0, &low, &high)};
            for (int32_t status : statuses) {
                CHECK(status == CSB_OK || status == CSB_ERROR_ARGUMENT);
                done += status == CSB_OK;
            }
        }
    });
    CHECK(done > 0);
    csb_context_close(context);
    csb_model_close(model);
}

void closing_meanwhile() {
    for (int i = 0; i < 6; i++) {
        csb_model *   model   = open_model("llama.gguf");
        csb_context * context = open_context(model, "2048");
        std::thread   decoder([&] {
            const int32_t status = decode(context, 1024, 0, 0);
            CHECK(status == CSB_OK || status == CSB_CANCELLED || status == CSB_ERROR_ARGUMENT);
        });
        std::thread   reader([&] {
            for (int k = 0; k < 100; k++) {
                const char * text   = nullptr;
                const int32_t status = csb_model_describe(model, &text);
                CHECK(status == CSB_OK ? std::strstr(text, "llama") != nullptr
                                       : status == CSB_ERROR_ARGUMENT);
            }
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(5 * i));
        (void) csb_context_cancel(context);
        csb_context_close(context);
        csb_model_close(model);
        (void) csb_context_cancel(context);
        decoder.join();
        reader.join();
    }
}

void many_contexts() {
    csb_model * model = open_model("llama.gguf");
    run_threads(3, [&](int) {
        csb_context * context = open_context(model);
        OK(decode(context, 20, 0));
        OK(decode(context, 1, 20));
        csb_context_close(context);
        csb_model * another = nullptr; // the log's last error is shared by all threads
        CHECK(csb_model_open(path_of("cut.gguf").c_str(), 0, nullptr, nullptr, &another) ==
              CSB_ERROR_FILE);
        another = open_model("llama.gguf");
        csb_model_close(another);
    });
    csb_model_close(model);
}

void hooks() {
    csb_model * model = open_model("llama.gguf");
    run_threads(3, [&](int i) { // one toggles switches, one traces, one does neither
        csb_context * context = open_context(model);
        for (int k = 0; k < 8; k++) {
            if (i == 0) {
                OK(csb_kernels_set(k % 2 ? 0 : CSB_WITHOUT_LLAMAFILE | CSB_REFERENCE));
            } else if (i == 1) {
                OK(csb_context_trace(context, k % 2, 1, 1 << (10 + 2 * k)));
            }
            OK(decode(context, 1 + 3 * (k % 3), k == 0 ? 0 : next_position(context)));
            if (i == 1) {
                const char * text = nullptr;
                int64_t      lost = 0;
                OK(csb_context_trace_take(context, &text, &lost));
                CHECK(text && text[0] == '[');
            }
        }
        csb_context_close(context);
    });
    OK(csb_kernels_set(0));
    int32_t now = -1;
    OK(csb_kernels_get(&now));
    CHECK(now == 0);
    BAD(csb_kernels_set(1 << 20));
    BAD(csb_kernels_get(nullptr));
    BAD(csb_context_trace(nullptr, 1, 1, 100));
    csb_context * context = open_context(model);
    BAD(csb_context_trace(context, 1, 1, -1));
    BAD(csb_context_trace_take(context, nullptr, nullptr));
    csb_context_close(context);
    csb_model_close(model);
}

// The node's output in bytes, from its description, where what it says of itself comes first.
int64_t output_bytes(const char * json) {
    long long    ne[4] = {0, 0, 0, 0}, block = 0, size = 0;
    const char * at    = std::strstr(json, "\"block\":");
    CHECK(at && std::sscanf(at, "\"block\":%lld,\"block_bytes\":%lld", &block, &size) == 2);
    at = std::strstr(json, "\"ne\":[");
    CHECK(at && std::sscanf(at, "\"ne\":[%lld,%lld,%lld,%lld", ne, ne + 1, ne + 2, ne + 3) == 4);
    return ne[0] / block * size * ne[1] * ne[2] * ne[3];
}

void look_at(void * user, csb_node * node, int32_t after) {
    auto &       seen = *static_cast<int *>(user);
    const char * json = nullptr;
    OK(csb_node_describe(node, &json));
    const int64_t        size = output_bytes(json);
    std::vector<uint8_t> ran(static_cast<size_t>(size)), read = ran;
    BAD(csb_node_read(node, -1, -1, 0, 1, size + 1, read.data()));
    BAD(csb_node_read(node, 99, -1, 0, 1, size, read.data()));
    const bool runs = csb_node_rerun(node, size, ran.data()) == CSB_OK; // not into another tensor
    if (after) {
        OK(csb_node_read(node, -1, -1, 0, 1, size, read.data()));
        OK(csb_node_write(node, -1, -1, 0, 1, size, read.data()));
        CHECK(!runs || ran.size() == read.size());
        seen++;
    }
}

void watching() {
    csb_model * model = open_model("llama.gguf");
    run_threads(3, [&](int i) { // one watches, one traces, one does neither
        csb_context * context = open_context(model);
        int           seen    = 0;
        for (int k = 0; k < 3; k++) {
            if (i == 0) {
                OK(csb_context_watch(context, look_at, &seen));
            } else if (i == 1) {
                OK(csb_context_trace(context, 1, 1, 1 << 20));
            }
            OK(decode(context, 1 + 3 * k, next_position(context)));
        }
        CHECK((seen > 0) == (i == 0));
        csb_context_close(context);
    });
    csb_context * context = open_context(model);
    BAD(csb_context_watch(nullptr, look_at, nullptr));
    BAD(csb_node_describe(nullptr, nullptr));
    OK(csb_context_watch(context, nullptr, nullptr));
    csb_context_close(context);
    csb_model_close(model);
}

// A DFlash draft beside its target: what is kept of the target's layer inputs, and the draft's calls.
void drafting() {
    csb_model *   model  = open_model("target.gguf");
    csb_model *   draft  = nullptr;
    csb_context * beside = nullptr;
    const char *  json   = nullptr;
    options       o;
    o.set("draft", "1");
    OK(csb_model_open(path_of("dflash.gguf").c_str(), 1, o.keys.data(), o.values.data(), &draft));
    OK(csb_draft_describe(draft, &json));
    BAD(csb_draft_describe(model, &json));

    csb_context * target = open_context(model);
    options       c;
    c.set("n_ctx", "256").set("n_batch", "256").set("n_ubatch", "256").set("n_threads", "2");
    OK(csb_draft_open(draft, target, c.size(), c.keys.data(), c.values.data(), &beside));
    BAD(csb_draft_open(model, target, c.size(), c.keys.data(), c.values.data(), &beside));

    const int32_t layers[] = {0, 2}, none[] = {99};
    BAD(csb_context_tap(target, 1, none));
    OK(csb_context_tap(target, 2, layers));
    float   nothing = 0;
    int32_t first = 0, removed = 0;
    int64_t n = 0;
    for (int32_t start = 0; start < 60; start += 20) {
        OK(decode(target, 20, start));
        OK(csb_context_seq_rm(target, 0, start + 15, -1, &removed)); // a rejected tail
        OK(decode(target, 5, start + 15));
        OK(csb_context_tapped(target, 0, &nothing, &first, &n));
        CHECK(first == start && n > 0 && n % 20 == 0);
        std::vector<float> inputs(static_cast<size_t>(n));
        OK(csb_context_tapped(target, n, inputs.data(), &first, &n));
        const auto width = static_cast<int32_t>(n / 20);
        BAD(csb_draft_inject(beside, 20, width - 1, inputs.data(), start));
        BAD(csb_draft_inject(beside, 0, width, inputs.data(), start));
        BAD(csb_draft_inject(target, 20, width, inputs.data(), start));
        OK(csb_draft_inject(beside, 20, width, inputs.data(), start));
        OK(decode(beside, 8, start + 20));
        OK(csb_context_seq_rm(beside, 0, start + 20, -1, &removed)); // the noise block
    }
    csb_context_close(target); // it lives on with its draft
    csb_model_close(model);
    OK(decode(beside, 8, 60));
    csb_context_close(beside);
    csb_model_close(draft);
}

struct op_call { // a product of [32, 8] and [32, n], n rows of 8
    std::vector<int32_t>      params   = std::vector<int32_t>(16, 0);
    std::vector<int64_t>      out_ne   = {8, 3, 1, 1};
    std::vector<const char *> types    = {"q4_0", "f32"};
    std::vector<int64_t>      ne       = {32, 8, 1, 1, 32, 3, 1, 1};
    std::vector<int64_t>      nb       = std::vector<int64_t>(8, 0);
    std::vector<uint8_t>      weights  = std::vector<uint8_t>(8 * 18, 1);
    std::vector<float>        rows     = std::vector<float>(3 * 32, 0.5f);
    std::vector<const void *> data     = {weights.data(), rows.data()};
    std::vector<int64_t>      sizes    = {8 * 18, 3 * 32 * 4};
    std::vector<int8_t>       weight   = {1, 0};
    std::vector<uint8_t>      out      = std::vector<uint8_t>(3 * 8 * 4);
    const char *              json     = nullptr;
    const char *              op       = "MUL_MAT";
    const char *              device   = "CPU";
    const char *              out_type = "f32";
    int32_t                   threads = 2, n = 2;

    int32_t run(int32_t repack = 1) {
        return csb_op_run(op, device, threads, repack, 1, params.data(), out_type, out_ne.data(), n,
                          types.data(), ne.data(), nb.data(), data.data(), sizes.data(),
                          weight.data(), static_cast<int64_t>(out.size()), out.data(), &json);
    }
};

void ops() {
    for (int32_t repack : {0, 1}) {
        op_call c;
        OK(c.run(repack));
        CHECK(c.json && std::strstr(c.json, "\"kernels\":"));
    }
    const std::pair<const char *, void (*)(op_call &)> bad[] = {
        {"op", [](op_call & c) { c.op = nullptr; }},
        {"no such op", [](op_call & c) { c.op = "MATMUL"; }},
        {"device", [](op_call & c) { c.device = nullptr; }},
        {"threads", [](op_call & c) { c.threads = 513; }},
        {"out_type", [](op_call & c) { c.out_type = nullptr; }},
        {"sources", [](op_call & c) { c.n = 11; }},
        {"no type", [](op_call & c) { c.types[1] = nullptr; }},
        {"no data", [](op_call & c) { c.data[0] = nullptr; }},
        {"size", [](op_call & c) { c.sizes[1] -= 4; }},
        {"capacity", [](op_call & c) { c.out.pop_back(); }},
        {"strides", [](op_call & c) { c.nb[4] = 4, c.nb[5] = 1 << 20, c.nb[6] = c.nb[7] = 4; }},
        {"blocks", [](op_call & c) { c.ne[0] = 31; }},
    };
    for (const auto & [name, spoil] : bad) {
        op_call c;
        spoil(c);
        const int32_t status = c.run();
        if (status != CSB_ERROR_ARGUMENT) {
            std::printf("op call with a bad %s: %d\n", name, status);
            failures++;
        }
    }
    run_threads(3, [&](int i) {
        for (int k = 0; k < 20; k++) {
            op_call c;
            OK(c.run(i % 2));
        }
    });

    const std::vector<float> rows(2 * 64, 0.25f);
    int64_t                  size = 0;
    OK(csb_quantize_rows("q8_0", 2, 64, rows.data(), 0, nullptr, &size));
    std::vector<uint8_t> bytes(static_cast<size_t>(size));
    OK(csb_quantize_rows("q8_0", 2, 64, rows.data(), size, bytes.data(), &size));
    BAD(csb_quantize_rows("q8_0", 2, 63, rows.data(), size, bytes.data(), &size));
    BAD(csb_quantize_rows("q8_0", 2, 64, rows.data(), size, nullptr, &size));
    BAD(csb_quantize_rows("q8_0", 0, 64, rows.data(), size, bytes.data(), &size));
}

void net() {
    const std::string path = path_of("record.json");
    run_threads(3, [&](int i) {
        for (int k = 0; k < 100; k++) {
            OK(csb_net_append("1"));
            if (i == 0) {
                OK(csb_net_arm(path.c_str(), "[", "]"));
            } else if (i == 1) {
                OK(csb_net_disarm());
            }
        }
    });
    OK(csb_net_disarm());
    BAD(csb_net_arm(nullptr, "", ""));
    BAD(csb_net_append(nullptr));
    BAD(csb_net_leave(2, nullptr));
}

} // namespace

int main(int argc, char ** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s FOLDER_OF_MODELS\n", argv[0]);
        return 2;
    }
    models = argv[1];
    const std::pair<const char *, void (*)()> tests[] = {
        {"library", library},
        {"model", model},
        {"files", files},
        {"decoding", decoding},
        {"states", states},
        {"rows", rows},
        {"cancelling", cancelling},
        {"one context, many threads", one_context_many_threads},
        {"closing meanwhile", closing_meanwhile},
        {"many contexts", many_contexts},
        {"hooks", hooks},
        {"watching", watching},
        {"drafting", drafting},
        {"ops", ops},
        {"net", net},
    };
    for (const auto & [name, test] : tests) {
        std::printf("%s\n", name);
        std::fflush(stdout);
        test();
    }
    std::printf("%d failed\n", failures.load());
    return failures == 0 ? 0 : 1;
}
