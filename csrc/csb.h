// csb.h: the whole contract between csb's Python package and llama.cpp.
//
// Plain C, opaque handles, sized integers. Rules that hold for every function:
//
//  * A function that can fail returns int32_t, a csb_status. CSB_OK is 0. On any other status the
//    out_* arguments are untouched, and csb_error_message() says in one line what happened and
//    which argument had which value.
//  * Arguments are checked before llama.cpp sees them, because llama.cpp aborts the process on many
//    bad ones. A handle that is not open is CSB_ERROR_ARGUMENT, never a crash.
//  * Text results (const char ** out_text) are UTF-8 and stay valid until the same thread's next
//    call into this library. "json" results hold one JSON object or array.
//  * Options come as two arrays of n_options strings: keys and values. An unknown key or a value
//    that does not parse is CSB_ERROR_ARGUMENT and names it. Keys are llama.cpp's parameter names.
//  * Handles may be used from any thread. A context takes one call at a time: a second one meanwhile
//    is CSB_ERROR_ARGUMENT, but for csb_context_cancel and csb_context_close, which any thread may
//    call at any time.
//
// csb_<class>_close takes NULL, and does nothing with what is not open. What is in use is freed when
// the call that uses it ends; a model, with the last context made from it.

#ifndef CSB_H
#define CSB_H

#include <stdint.h>

#if defined(_WIN32)
#    define CSB_API __declspec(dllexport)
#else
#    define CSB_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised with every change of this file that an older caller would not survive.
#define CSB_ABI_VERSION 1

// 1 to -3 are llama_decode's own results, told apart because what they leave behind differs.
enum csb_status {
    CSB_OK                = 0,
    CSB_NO_SLOT           = 1,   // no room in the memory for the batch; the memory is unchanged
    CSB_CANCELLED         = 2,   // csb_context_cancel; ubatches done before it stay in the memory
    CSB_ERROR_BATCH       = -1,  // llama_decode refused the batch; the memory is unchanged
    CSB_ERROR_ALLOCATION  = -2,  // llama_decode could not allocate; ubatches done before it stay
    CSB_ERROR_COMPUTE     = -3,  // the graph failed; ubatches done before it stay
    CSB_ERROR_ARGUMENT    = -10, // a bad argument; nothing was done
    CSB_ERROR_FILE        = -11, // a file that cannot be read, or is not what it should be
    CSB_ERROR_UNSUPPORTED = -12, // this model, memory or build can't do that; nothing was done
    CSB_ERROR_MEMORY      = -13, // out of memory in csb itself
    CSB_ERROR_INTERNAL    = -14, // an exception nobody expected
    CSB_ERROR_DEVICE      = -15, // a device or a server that does not answer, or has no room
};

typedef struct csb_model   csb_model;
typedef struct csb_context csb_context;

// ---- library --------------------------------------------------------------------------------

CSB_API int32_t csb_abi_version(void);

// The reason of this thread's last status other than CSB_OK. Never NULL.
CSB_API const char * csb_error_message(void);

// What was built, fixed at configure time: {"csb", "llama_commit", "llama_pinned", "compiler",
// "build_type", "options": {GGML_*}, "cpu_features": [...], "hooks": {...}, ...}.
CSB_API int32_t csb_library_build(const char ** out_json);

// What is here: {"llama_version", "system_info", "devices": [{"name", "description", "type",
// "backend", "memory_free", "memory_total"}]}. Memory in bytes. A build for Vulkan on Linux also
// says the "driver" and "api" (Vulkan's version) of its devices, and {"vulkan": {"loader_error",
// "error": why there are no devices, "devices": [{"name", "type", "driver", "driver_info", "api"}]}}
// of all that Vulkan has here.
CSB_API int32_t csb_library_system(const char ** out_json);

// Adds the devices of one of llama.cpp's RPC servers ("host:port", IPv4) to this process, for good:
// csb_library_system lists them from then on, as RPC0, RPC1 ... in the order of adding. One
// connection is held until the process ends, because a server serves one client at a time. A server
// that was added before is left as it is.
// CSB_ERROR_ARGUMENT: no address. CSB_ERROR_UNSUPPORTED: a build without RPC. CSB_ERROR_DEVICE: no
// such host, no answer within timeout_ms, no RPC server, or one of another protocol.
CSB_API int32_t csb_library_add_rpc(const char * server, int32_t timeout_ms);

// llama.cpp's log from `level` up (1 debug, 2 info, 3 warning, 4 error; 5 nothing) goes to stderr.
// At any level a call's first error line is kept for csb_error_message. At start: 5.
CSB_API int32_t csb_library_set_log_level(int32_t level);

// ---- the net under native aborts --------------------------------------------------------------
// Where no check can come before (a lost RPC server, a device error) llama.cpp aborts, perhaps on
// another thread. From the first use of this library on, an abort writes one line to stderr, the
// unfinished record if one is armed, and leaves with _exit(2).

// Arms an unfinished record: on an abort `path` ("-" is stdout) gets head, every part given to
// csb_net_append so far joined by commas, and tail. Replaces an earlier one.
CSB_API int32_t csb_net_arm(const char * path, const char * head, const char * tail);
CSB_API int32_t csb_net_append(const char * part); // nothing where none is armed
CSB_API int32_t csb_net_disarm(void);

// Ends the process as an abort does, with this exit code and line: for a caller whose call into
// this library on another thread does not come back. Does not return.
CSB_API int32_t csb_net_leave(int32_t code, const char * message);

// Aborts on a new thread as a lost device would, after logging a cause ("": none): for the tests of
// the net. Does not return.
CSB_API int32_t csb_net_test(const char * logged, const char * message);

// ---- model ----------------------------------------------------------------------------------

// Opens a GGUF file (of a split one the first part). Options: n_gpu_layers (-1 all), devices
// (names joined by commas, "none" for the CPU alone), split_mode (none|layer|row), main_gpu,
// tensor_split (numbers joined by commas), use_extra_bufts (0|1, repacked weights), use_mmap (0|1),
// check_tensors (0|1), draft (0|1: a DFlash draft and nothing else, for csb_draft_open).
// CSB_ERROR_FILE: missing, no regular file, empty, no GGUF, cut short, damaged, vocabulary only.
// CSB_ERROR_UNSUPPORTED: an architecture llama.cpp does not know, or no causal decoder; with draft
// 1 no DFlash draft, or one of a kind that csb does not run.
// CSB_ERROR_DEVICE: a device has no room for the weights.
CSB_API int32_t csb_model_open(const char * path, int32_t n_options, const char * const * keys,
                               const char * const * values, csb_model ** out_model);
CSB_API void    csb_model_close(csb_model * model);

// {"architecture", "description", "type", "size", "n_params", "n_vocab", "n_ctx_train", "n_layer",
// "n_embd", "n_swa", "n_expert", "is_recurrent", "is_hybrid", "has_tokenizer", "add_bos",
// "add_eos", "bos", "eos", "tensor_types": {type: count}, "devices": [...]}. Sizes in bytes.
CSB_API int32_t csb_model_describe(csb_model * model, const char ** out_json);

// A metadata value as text. CSB_ERROR_ARGUMENT if the model has no such key.
CSB_API int32_t csb_model_metadata(csb_model * model, const char * key, const char ** out_text);

// The chat template's Jinja text; NULL where the model has none.
CSB_API int32_t csb_model_chat_template(csb_model * model, const char ** out_text);

// Token ids of n_bytes of UTF-8. At most `capacity` are written, *out_n is the number there are.
// add_special: the tokens the model wants around a text (BOS); parse_special: read <|...|> as one.
CSB_API int32_t csb_model_tokenize(csb_model * model, const char * text, int32_t n_bytes,
                                   int32_t add_special, int32_t parse_special, int32_t capacity,
                                   int32_t * out_tokens, int32_t * out_n);

// Bytes of n_tokens tokens, not always valid UTF-8. At most `capacity` are written, no final 0.
CSB_API int32_t csb_model_detokenize(csb_model * model, const int32_t * tokens, int32_t n_tokens,
                                     int32_t special, int32_t capacity, char * out_bytes,
                                     int32_t * out_n);

// Bytes of one token as it stands in a text, special tokens spelled out.
CSB_API int32_t csb_model_token_piece(csb_model * model, int32_t token, int32_t capacity,
                                      char * out_bytes, int32_t * out_n);

// 1 if the token ends a generation (end of text, end of turn), else 0.
CSB_API int32_t csb_model_token_is_eog(csb_model * model, int32_t token, int32_t * out_is_eog);

// Writes in_path again with its matrices as `type` (f32, f16, bf16, q8_0, q4_0, q4_1, q4_k_m, ...),
// by llama.cpp's quantizer, requantizing allowed. n_threads 0: all cores. `pure` 1: no mixture.
// CSB_ERROR_FILE: in_path as in csb_model_open, or llama.cpp can't quantize it or write out_path; a
// part of out_path may be there then.
CSB_API int32_t csb_quantize(const char * in_path, const char * out_path, const char * type,
                             int32_t n_threads, int32_t pure);

// rows [n_rows, n_per_row] as the ggml type of that name. *out_size is how many bytes that takes;
// where capacity is less nothing is written. CSB_ERROR_ARGUMENT: a number that is not finite, or a
// row that is no multiple of the type's blocks. CSB_ERROR_UNSUPPORTED: a type whose quantizer needs
// an importance matrix, or none that takes every number.
CSB_API int32_t csb_quantize_rows(const char * type, int64_t n_rows, int64_t n_per_row,
                                  const float * rows, int64_t capacity, uint8_t * out_bytes,
                                  int64_t * out_size);

// ---- one op by itself ---------------------------------------------------------------------------

// Runs one node of a ggml graph on a device and copies what it computed, contiguous.
//
// op: ggml's name ("MUL_MAT"), a unary or gated op also by its own ("SILU", "SWIGLU"). op_params: 16
// numbers as ggml keeps them. out_ne: 4. Source i has types[i] (ggml's name; NULL: the op goes
// without it), ne[4i .. 4i+3], byte strides nb[4i .. 4i+3] (four zeros: contiguous) and sizes[i] bytes
// at data[i], which span what the strides reach. is_weight 1 lays a product's first source where a
// model's loader would: with repack 1 in the buffer that repacks it, if there is one that can.
// Kernel switches hold.
//
// out_json: {"device", "buffers": [a name for each source, null: none], "kernels": as in
// csb_context_trace_take, null with observe 0 or where this build or device can't observe them}.
//
// CSB_ERROR_ARGUMENT: an unknown op, type or device, shapes, strides or parameters that do not fit
// together, a size that is not the span's, a capacity other than the output's size.
// CSB_ERROR_UNSUPPORTED: an op that csb has no checks for, types the op does not take, or the device
// says no. CSB_ERROR_MEMORY: the device has no room. CSB_ERROR_COMPUTE: the device failed.
CSB_API int32_t csb_op_run(const char * op, const char * device, int32_t n_threads, int32_t repack,
                           int32_t observe, const int32_t * op_params, const char * out_type,
                           const int64_t * out_ne, int32_t n_sources, const char * const * types,
                           const int64_t * ne, const int64_t * nb, const void * const * data,
                           const int64_t * sizes, const int8_t * is_weight, int64_t capacity,
                           uint8_t * out_bytes, const char ** out_json);

// ---- context --------------------------------------------------------------------------------

// CSB_ERROR_UNSUPPORTED: llama.cpp can't make this context of this model, and why. CSB_ERROR_DEVICE:
// a device has no room for its memory or its graphs.
// Options: n_ctx (0: the model's), n_batch, n_ubatch, n_seq_max, n_threads, n_threads_batch,
// flash_attn (on|off|auto), type_k, type_v (f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl),
// offload_kqv, op_offload, swa_full, kv_unified (0|1), rope_freq_base, rope_freq_scale.
CSB_API int32_t csb_context_open(csb_model * model, int32_t n_options, const char * const * keys,
                                 const char * const * values, csb_context ** out_context);
CSB_API void    csb_context_close(csb_context * context);

// [{"name", "value", "source"}]: what every parameter became. source is "getter" (a public getter
// of llama.h) or "library" (the library's own structures). Also "memory": the memory's class.
CSB_API int32_t csb_context_describe(csb_context * context, const char ** out_json);

// What lies and runs where: {"backends": [names, in the scheduler's order], "layers": [a device for
// each], "output": a device, "buffers": [{"name", "device", "host": true|false, "model", "memory",
// "compute"}]}. Bytes of weights, of the memory and of a graph's values in each kind of buffer;
// host: in this machine's own memory.
CSB_API int32_t csb_context_offload(csb_context * context, const char ** out_json);

// One llama_decode, waited for. n_tokens entries each of tokens, positions, seq_ids and outputs
// (1: this token's logits row is wanted). Checked first: 1 <= n_tokens <= n_batch, ids inside the
// vocabulary, each sequence's positions go on from its last one without a gap, the context is long
// enough, sliding window and recurrent part fit to them. Statuses 1, 2, -1, -2, -3 as above.
// Afterwards the rows are there until the next decode. A memory with a recurrent part can't be
// rolled back: after 2, -2 and -3 the batch's sequences are refused until they are emptied or
// restored.
CSB_API int32_t csb_context_decode(csb_context * context, int32_t n_tokens, const int32_t * tokens,
                                   const int32_t * positions, const int32_t * seq_ids,
                                   const int8_t * outputs);

// n_tokens decodes of one token each, from `position` of a sequence on, each checked as above, and
// each one's logits row copied into out_rows [n_tokens, n_vocab]: the same as so many calls of
// csb_context_decode and csb_context_logits, for callers whom the calls cost more than the copies.
// Stops at the first status other than CSB_OK; the rows before it are written.
CSB_API int32_t csb_context_steps(csb_context * context, int32_t n_tokens, const int32_t * tokens,
                                  int32_t position, int32_t seq_id, float * out_rows);

// Makes a running csb_context_decode return CSB_CANCELLED at the next graph node (CPU only; a
// device finishes its call first). Without one running it does nothing. Any thread.
CSB_API int32_t csb_context_cancel(csb_context * context);

// Copies the last decode's logits rows of n_rows batch entries (those with output 1), each n_vocab
// floats, into out_rows [n_rows, n_vocab].
CSB_API int32_t csb_context_logits(csb_context * context, int32_t n_rows, const int32_t * entries,
                                   float * out_rows);

// Nanoseconds spent inside llama_decode and its synchronization, and calls made, since opening.
CSB_API int32_t csb_context_decode_time(csb_context * context, int64_t * out_ns, int64_t * out_n);

// Removes positions p0 <= p < p1 of a sequence (p1 < 0: to the end). *out_removed 0: this memory
// can't remove a part (recurrent); nothing changed.
CSB_API int32_t csb_context_seq_rm(csb_context * context, int32_t seq_id, int32_t p0, int32_t p1,
                                   int32_t * out_removed);
// First and last position of a sequence in the memory (of the full attention layers, where it has
// some), -1 and -1 when it is empty.
CSB_API int32_t csb_context_seq_bounds(csb_context * context, int32_t seq_id, int32_t * out_min,
                                       int32_t * out_max);
// Makes every sequence empty. data 1: the buffers are zeroed too.
CSB_API int32_t csb_context_clear(csb_context * context, int32_t data);

// A sequence's state as bytes, and back. partial 1: only what cannot be cut back (recurrent state,
// sliding-window ring); of a plain attention memory it is everything too. Capacity below the size:
// CSB_ERROR_ARGUMENT. csb's own header guards csb_context_state_set: bytes that are not a whole
// state of this kind, model and parameters are CSB_ERROR_ARGUMENT. (A cache that sequences share,
// kv_unified, takes a lone sequence's state and gives one back.) CSB_ERROR_UNSUPPORTED: llama.cpp
// refused them (a state longer than this context, say); the sequence may be empty then.
CSB_API int32_t csb_context_state_size(csb_context * context, int32_t seq_id, int32_t partial,
                                       int64_t * out_size);
CSB_API int32_t csb_context_state_get(csb_context * context, int32_t seq_id, int32_t partial,
                                      int64_t capacity, uint8_t * out_bytes, int64_t * out_size);
CSB_API int32_t csb_context_state_set(csb_context * context, int32_t seq_id, int32_t partial,
                                      const uint8_t * bytes, int64_t size);

// ---- drafting from a target's layer inputs (DFlash) -------------------------------------------

// From now on each decode's inputs of these layers of the model (0 is the first; an id of n_layer
// is what the head reads, where the architecture gives that) are kept until they are taken. They
// become outputs of the graph. n_layers 0: no longer. One sequence only.
// CSB_ERROR_UNSUPPORTED: llama.cpp's graph of this architecture does not give them.
CSB_API int32_t csb_context_tap(csb_context * context, int32_t n_layers, const int32_t * layers);

// Takes what was kept: *out_n floats [positions, layers, n_embd], from position *out_first on (-1
// and 0: nothing) to the memory's end. What was removed from the memory is no part of them, nor
// what lies before something that was not kept. Where capacity is less than *out_n they stay.
CSB_API int32_t csb_context_tapped(csb_context * context, int64_t capacity, float * out_rows,
                                   int32_t * out_first, int64_t * out_n);

// {"block_size", "mask": the token to be filled, "causal", "layers": of the target, that it reads}
// of a model opened with draft 1.
CSB_API int32_t csb_draft_describe(csb_model * draft, const char ** out_json);

// A draft's context beside its target's, whose embeddings and head it uses where it has none of its
// own; the target's lives on with it. Options as in csb_context_open. Its rows see each other:
// csb_context_decode takes at most n_ubatch tokens, every row an output.
// CSB_ERROR_UNSUPPORTED: a draft for another target, or devices that don't reach the target's
// weights.
CSB_API int32_t csb_draft_open(csb_model * draft, csb_context * target, int32_t n_options,
                               const char * const * keys, const char * const * values,
                               csb_context ** out_context);

// Layer inputs of n_tokens tokens, rows [n_tokens, width], width floats each in the draft's order
// of layers, into the draft's memory from `position` on: at most n_batch and n_ubatch tokens,
// positions as in csb_context_decode. No logits.
CSB_API int32_t csb_draft_inject(csb_context * context, int32_t n_tokens, int32_t width,
                                 const float * rows, int32_t position);

// ---- what really ran: traces and kernel switches ------------------------------------------------
// The linker puts hooks between llama.cpp's own objects (csrc/hooks). A build without them answers
// CSB_ERROR_UNSUPPORTED here; csb_library_build says which there are. While a switch or a trace is
// in force, decodes of all contexts take turns.

// From now on the context's decodes are recorded (both 0: no longer, and what was recorded is
// forgotten): graph 1 every node in execution order, kernels 1 the CPU kernels that ran for each
// and the CUDA kernels of the whole ubatch, in at most `limit` bytes of text. CUDA's names come from
// CUPTI, which is opened with the first trace of kernels: the file that the environment's
// CSB_CUPTI_LIBRARY names and no other; else the loader's libcupti.so, the one that lay beside the
// header, or the one that CSB_CUPTI_WHEEL names.
CSB_API int32_t csb_context_trace(csb_context * context, int32_t graph, int32_t kernels,
                                  int64_t limit);

// The calls recorded since the last time: [{"n_tokens", "ubatches": [{"n_splits", "n_nodes",
// "nodes": [{"name", "op", "type", "ne", "backend", "src": [{"name", "type", "ne"}]}], "backends",
// "n_threads", "kernels": [{"node", "kernel", "accepted", "count", "weight", "m", "n", "k"}]}]}]. A
// call that llama.cpp splits has one element for each ubatch. backends: the names of those that
// computed a node (of BLAS and RPC no kernel is seen); n_threads: the most that a kernel had; weight:
// the name of the weight that the node multiplies by; accepted false: the kernel was asked and
// answered "not handled". A vec_dot is not hooked: it is what ran where they did, count 1.
// *out_lost: ubatches that did not fit into the limit.
// An ubatch with nodes on CUDA devices also has "device_kernels": [{"kernel", "count"}] in order of
// first run, or "device_not_observable": why there are none; and "device_lost": the records that
// CUPTI dropped, where it dropped any.
CSB_API int32_t csb_context_trace_take(csb_context * context, const char ** out_json,
                                       int64_t * out_lost);

// ---- watching: each node of a decode, while it runs -------------------------------------------
// Unlike a trace this stops at every node, so it is slow; results stay the same bits on the CPU.

typedef struct csb_node csb_node; // of the watcher's call alone

// Called on the decode's thread for each node that computes something: after 0 just before it runs,
// when all before it have run, and 1 when it has. May call the csb_node_ functions and nothing else
// of this library but csb_context_cancel.
typedef void (*csb_watcher)(void * user, csb_node * node, int32_t after);

// From now on the context's decodes are watched (NULL: no longer).
CSB_API int32_t csb_context_watch(csb_context * context, csb_watcher watcher, void * user);

// {"op", "id", "name", "root", "kind", "type", "block", "block_bytes", "ne", "nb", "repacked",
// "view", "backend", "op_params", "src": [{"index", "id", "name", ... "repacked"}]}. id: one for each
// tensor of a graph; root: the tensor that it is a view of, else itself; kind: weight, memory (a
// cache or state) or value (of this graph); block: entries that the type packs together; nb: byte
// strides; repacked: laid out for a kernel of its own; view: it writes into another tensor.
CSB_API int32_t csb_node_describe(csb_node * node, const char ** out_json);

// Source number `source` of the node (-1: its output): `count` places from `first` on along
// dimension `dim` (0 is ggml's innermost; -1: everything), packed, in the tensor's type.
// CSB_ERROR_UNSUPPORTED: a repacked weight's own bytes are gone.
CSB_API int32_t csb_node_read(csb_node * node, int32_t source, int32_t dim, int64_t first,
                              int64_t count, int64_t capacity, uint8_t * out_bytes);
// Overwrites the same places. Weights are refused.
CSB_API int32_t csb_node_write(csb_node * node, int32_t source, int32_t dim, int64_t first,
                               int64_t count, int64_t size, const uint8_t * bytes);

// Runs the node alone once more, on its backend, with its sources as they are now, into memory of
// its own; out_bytes: that output, packed. CSB_ERROR_UNSUPPORTED: it writes into another tensor.
CSB_API int32_t csb_node_rerun(csb_node * node, int64_t capacity, uint8_t * out_bytes);

// ---- kernel switches --------------------------------------------------------------------------

// CPU kernels that can be refused at run time, so that llama.cpp takes its next path.
enum csb_kernel_switch {
    CSB_WITHOUT_LLAMAFILE = 1, // llamafile_sgemm
    CSB_WITHOUT_TILED     = 2, // the tiled K-quant product
    CSB_WITHOUT_SPLIT_KV  = 4, // flash attention of one row split over the cache
    CSB_REFERENCE         = 8, // the reference kernels for the whole graph: many at once
};

// The switches in force from the next decode on, in the whole process.
CSB_API int32_t csb_kernels_set(int32_t switches);
CSB_API int32_t csb_kernels_get(int32_t * out_switches);

// ---- rows of logits: pure functions on the caller's memory ------------------------------------

// Columns of csb_rows_summarise's table. Ids, counts and ranks are whole numbers in a double.
enum csb_row_field {
    CSB_ROW_N_BAD,     // entries that are NaN or infinite; above 0 every other column is NaN
    CSB_ROW_ARGMAX,    // id of the largest logit, the lowest id among equals
    CSB_ROW_MAX,       // its logit
    CSB_ROW_SECOND,    // id of the next one (the lowest among equals, not ARGMAX); -1: none
    CSB_ROW_SECOND_L,  // its logit
    CSB_ROW_LOGSUMEXP, // of all logits / temperature; NaN if none was asked for
    CSB_ROW_TARGET_L,  // logit of the row's target token
    CSB_ROW_RANK,      // entries with a larger logit than the target's, and equal ones before it
    CSB_ROW_N_FIELDS,
};

// out_table [n_rows, CSB_ROW_N_FIELDS] for rows [n_rows, n_vocab] and targets [n_rows]; temperature
// from 1e-6 to 1e6, or 0: no LOGSUMEXP, which costs as much as all the rest.
CSB_API int32_t csb_rows_summarise(int32_t n_rows, int32_t n_vocab, const float * rows,
                                   const int32_t * targets, double temperature,
                                   double * out_table);

// Columns of csb_rows_compare's table. The distributions are softmax(row / temperature).
enum csb_pair_field {
    CSB_PAIR_N_DIFF,  // entries whose 32 bits differ
    CSB_PAIR_MAX_ABS, // largest |a - b|
    CSB_PAIR_RMS,     // root of the mean square of a - b
    CSB_PAIR_KL,      // KL(a || b), nats
    CSB_PAIR_TV,      // total variation distance, 0 to 1
    CSB_PAIR_LSE_A,   // logsumexp of a / temperature
    CSB_PAIR_LSE_B,   // and of b / temperature
    CSB_PAIR_N_FIELDS,
};

// out_table [n_rows, CSB_PAIR_N_FIELDS] for a and b [n_rows, n_vocab]. A row with NaN or infinite
// entries in a or b has N_DIFF and NaN in the other columns.
CSB_API int32_t csb_rows_compare(int32_t n_rows, int32_t n_vocab, const float * a, const float * b,
                                 double temperature, double * out_table);

#ifdef __cplusplus
}
#endif

#endif
