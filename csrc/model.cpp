// Opening and describing models.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string_view>
#include <unordered_set>

#include "ggml-backend.h"
#include "gguf.h"
#include "handles.hpp"
#include "internals.hpp"
#include "llama-ext.h"
#include "options.hpp"


namespace {

using csb::error;

std::vector<ggml_backend_dev_t> find_devices(const std::string & names) {
    std::vector<ggml_backend_dev_t> devices;
    for (const std::string & name : csb::split(names, ',')) {
        if (names == "none") {
            break;
        }
        ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
        if (!device) {
            std::string known;
            for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
                known += std::string(i ? ", " : "") + ggml_backend_dev_name(ggml_backend_dev_get(i));
            }
            csb::bad_argument("devices = " + names + ": there is no device " + name +
                              "; this build and machine have " + known + " (or none)");
        }
        // The CPU and its helpers are always there: llama.cpp's list is of what to offload to.
        const auto type = ggml_backend_dev_type(device);
        if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
            csb::bad_argument("devices = " + names + ": names " + name + " twice");
        }
        if (type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL) {
            devices.push_back(device);
        }
    }
    devices.push_back(nullptr);
    return devices;
}

std::vector<float> read_split(const std::string & text) {
    std::vector<float> parts;
    for (const std::string & part : csb::split(text, ',')) {
        float value = 0;
        if (!csb::read_real(part, value)) {
            csb::bad_argument("tensor_split = " + text + ": must be numbers joined by commas");
        }
        parts.push_back(value);
    }
    if (parts.size() > llama_max_devices()) {
        csb::bad_argument("tensor_split = " + text + ": has more parts than devices can be");
    }
    if (std::all_of(parts.begin(), parts.end(), [](float part) { return part == 0; })) {
        csb::bad_argument("tensor_split = " + text + ": gives no device a part");
    }
    parts.resize(llama_max_devices());
    return parts;
}

csb_model * add(std::shared_ptr<llama_model> model, bool draft) {
    auto handle   = std::make_shared<csb_model>();
    handle->model = std::move(model);
    handle->draft = draft;
    return csb::register_handle(std::move(handle));
}

} // namespace

int32_t csb_model_open(const char * path, int32_t n_options, const char * const * keys,
                       const char * const * values, csb_model ** out_model) {
    return csb::guarded([&] {
        csb::check_ptr(out_model, "out_model");
        const std::string file = csb::check_ptr(path, "path");
        csb::options      options(n_options, keys, values);

        llama_model_params              params = llama_model_default_params();
        std::vector<ggml_backend_dev_t> devices;
        std::vector<float>              split;
        bool                            mmap = true, draft = false;
        options.whole("n_gpu_layers", params.n_gpu_layers, -1, 1 << 20);
        options.whole("main_gpu", params.main_gpu, 0, static_cast<long long>(llama_max_devices()));
        options.choice("split_mode", params.split_mode,
                       {{"none", LLAMA_SPLIT_MODE_NONE},
                        {"layer", LLAMA_SPLIT_MODE_LAYER},
                        {"row", LLAMA_SPLIT_MODE_ROW}});
        options.flag("use_extra_bufts", params.use_extra_bufts);
        options.flag("check_tensors", params.check_tensors);
        options.flag("use_mmap", mmap);
        options.flag("draft", draft);
        params.load_mode = mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
        if (const std::string * names = options.text("devices")) {
            devices        = find_devices(*names);
            params.devices = devices.data();
        }
        if (const std::string * parts = options.text("tensor_split")) {
            split               = read_split(*parts);
            params.tensor_split = split.data();
        }
        options.finish();
        csb::check_file(file);

        ggml_backend_dev_count(); // a backend that finds no device logs that, once: no cause of ours
        csb::last_log_error();
        std::shared_ptr<llama_model> model(llama_model_load_from_file(file.c_str(), params),
                                           csb_model::deleter());
        if (!model) {
            const std::string why = csb::last_log_error();
            auto              is  = [&](const char * text) { return why.find(text) != why.npos; };
            const int32_t     status = is("unknown model architecture") ? CSB_ERROR_UNSUPPORTED
                                       : is("value for main_gpu")       ? CSB_ERROR_ARGUMENT
                                       : csb::says_no_room(why)         ? CSB_ERROR_DEVICE
                                                                        : CSB_ERROR_FILE;
            if (is("split buffers")) {
                csb::bad_argument("split_mode = row: llama.cpp can't split tensors by rows here: " +
                                  why);
            }
            throw error(status,
                        file + ": llama.cpp can't load it" + (why.empty() ? "" : ": " + why));
        }
        auto refuse = [&](const char * why) {
            throw error(CSB_ERROR_UNSUPPORTED, file + ": " + why);
        };
        if (draft) {
            const std::string why = csb::why_no_draft(model.get());
            if (!why.empty()) {
                refuse(why.c_str());
            }
            *out_model = add(model, draft);
            return CSB_OK;
        }
        if (csb::is_dflash(model.get())) {
            refuse("is a DFlash draft, which decodes only beside its target");
        }
        if (!llama_model_has_decoder(model.get())) {
            refuse("is an encoder; csb compares decoders");
        }
        if (llama_model_has_encoder(model.get())) {
            refuse("is an encoder-decoder model; csb compares decoders alone");
        }
        if (llama_model_is_diffusion(model.get())) {
            refuse("is a diffusion model: it has no next token to compare");
        }
        if (!csb::is_causal(model.get())) {
            refuse("attends in both directions: it is no decoder, and csb compares decoders");
        }
        *out_model = add(model, draft);
        return CSB_OK;
    });
}

void csb_model_close(csb_model * model) {
    csb::forget_handle(model);
}

int32_t csb_model_describe(csb_model * handle, const char ** out_json) {
    return csb::guarded([&] {
        csb::check_ptr(out_json, "out_json");
        const auto          held      = csb::open_model(handle);
        const llama_model * model     = held->model.get();
        const llama_vocab * vocab     = llama_model_get_vocab(model);
        char                text[256] = {};
        csb::json           j;
        j.open('{');
        llama_model_meta_val_str(model, "general.architecture", text, sizeof(text));
        j.pair("architecture", std::string(text));
        llama_model_desc(model, text, sizeof(text));
        j.pair("description", std::string(text));
        j.pair("type", llama_ftype_name(llama_model_ftype(model)));
        j.pair("size", llama_model_size(model)).pair("n_params", llama_model_n_params(model));
        j.pair("n_vocab", llama_vocab_n_tokens(vocab));
        j.pair("n_ctx_train", llama_model_n_ctx_train(model));
        j.pair("n_layer", llama_model_n_layer(model)).pair("n_embd", llama_model_n_embd(model));
        j.pair("n_swa", llama_model_n_swa(model)).pair("n_expert", llama_model_n_expert(model));
        j.pair("is_recurrent", llama_model_is_recurrent(model));
        j.pair("is_hybrid", llama_model_is_hybrid(model));
        j.pair("has_tokenizer", llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE);
        j.pair("add_bos", llama_vocab_get_add_bos(vocab));
        j.pair("add_eos", llama_vocab_get_add_eos(vocab));
        j.pair("bos", llama_vocab_bos(vocab)).pair("eos", llama_vocab_eos(vocab));
        j.key("tensor_types");
        csb::describe_tensor_types(model, j);
        j.key("devices").open('[');
        for (int i = 0; i < llama_model_n_devices(model); i++) {
            j.value(ggml_backend_dev_name(llama_model_get_device(model, i)));
        }
        *out_json = csb::keep_text(j.close(']').close('}').str());
        return CSB_OK;
    });
}

int32_t csb_model_metadata(csb_model * handle, const char * key, const char ** out_text) {
    return csb::guarded([&] {
        csb::check_ptr(out_text, "out_text");
        const auto          held  = csb::open_model(handle);
        const llama_model * model = held->model.get();
        const int32_t n = llama_model_meta_val_str(model, csb::check_ptr(key, "key"), nullptr, 0);
        if (n < 0) {
            csb::bad_argument(std::string("key = ") + key + ": the model has no such metadata");
        }
        std::string text(static_cast<size_t>(n) + 1, '\0');
        llama_model_meta_val_str(model, key, text.data(), text.size());
        text.resize(static_cast<size_t>(n));
        *out_text = csb::keep_text(std::move(text));
        return CSB_OK;
    });
}

int32_t csb_model_chat_template(csb_model * handle, const char ** out_text) {
    return csb::guarded([&] {
        csb::check_ptr(out_text, "out_text");
        const auto   held = csb::open_model(handle);
        const char * text = llama_model_chat_template(held->model.get(), nullptr);
        *out_text         = text ? csb::keep_text(text) : nullptr;
        return CSB_OK;
    });
}
