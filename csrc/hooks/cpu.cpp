// The CPU kernel hooks: each stands where ggml-cpu's dispatcher calls a kernel that lives in another
// object, counts it if a trace wants that, and refuses it if a switch says so. A vec_dot runs once
// for each output element and is not hooked: it is what ran where all others said no (graph.cpp).
#include "../csb.h"
#include "ggml-backend.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "hooks.hpp"

namespace {

using params = ggml_compute_params;

bool recording(uint32_t flags) {
    return flags & csb::RECORD_KERNELS;
}

// Per thread, inside one flash attention: what it called tells which path it took.
struct attention {
    bool chunked = false, soft_max = false;
};
thread_local attention seen;

const char * forward_name(ggml_op op) {
    switch (op) {
    case GGML_OP_RMS_NORM:
        return "ggml_compute_forward_rms_norm";
    case GGML_OP_NORM:
        return "ggml_compute_forward_norm";
    case GGML_OP_SOFT_MAX:
        return "ggml_compute_forward_soft_max";
    case GGML_OP_ROPE:
        return "ggml_compute_forward_rope";
    case GGML_OP_GLU:
        return "ggml_compute_forward_glu";
    case GGML_OP_SSM_CONV:
        return "ggml_compute_forward_ssm_conv";
    case GGML_OP_SSM_SCAN:
        return "ggml_compute_forward_ssm_scan";
    case GGML_OP_GATED_DELTA_NET:
        return "ggml_compute_forward_gated_delta_net";
    default:
        return nullptr;
    }
}

// What took the node by the buffer its weight lies in. A repacked product's own kernels are hooked
// below; this names it where they are not.
const char * extra_name(const ggml_tensor * op) {
    const ggml_tensor * weight = op->src[0];
    return weight && weight->buffer ? ggml_backend_buffer_name(weight->buffer) : "extra buffer";
}

} // namespace

extern "C" {

// ---- every node that is not fused, on every thread, before its dispatch ----

bool __real_ggml_cpu_extra_compute_forward(params *, ggml_tensor *);

bool __wrap_ggml_cpu_extra_compute_forward(params * p, ggml_tensor * op) {
    if (!recording(csb::hooks())) {
        return __real_ggml_cpu_extra_compute_forward(p, op);
    }
    csb::enter_node(op, p->nth);
    const bool handled = __real_ggml_cpu_extra_compute_forward(p, op);
    if (p->ith == 0) {
        if (handled) {
            csb::note_kernel(extra_name(op));
        } else if (const char * name = forward_name(op->op)) {
            csb::note_kernel(name);
        }
    }
    return handled;
}

void __real_ggml_compute_forward_rms_norm_mul_fused(const params *, ggml_tensor *, ggml_tensor *);

void __wrap_ggml_compute_forward_rms_norm_mul_fused(const params * p, ggml_tensor * norm,
                                                    ggml_tensor * mul) {
    if (recording(csb::hooks()) && p->ith == 0) {
        csb::enter_node(norm, p->nth);
        csb::note_kernel("ggml_compute_forward_rms_norm_mul_fused");
    }
    __real_ggml_compute_forward_rms_norm_mul_fused(p, norm, mul);
}

// ---- products ----

bool __real_llamafile_sgemm(const params *, int64_t, int64_t, int64_t, const void *, int64_t,
                            const void *, int64_t, void *, int64_t, int, int, int);

bool __wrap_llamafile_sgemm(const params * p, int64_t m, int64_t n, int64_t k, const void * a,
                            int64_t lda, const void * b, int64_t ldb, void * c, int64_t ldc, int at,
                            int bt, int ct) {
    const uint32_t flags = csb::hooks();
    const bool     taken = !(flags & CSB_WITHOUT_LLAMAFILE) &&
                       __real_llamafile_sgemm(p, m, n, k, a, lda, b, ldb, c, ldc, at, bt, ct);
    if (recording(flags) && p->ith == 0) {
        csb::note_kernel("llamafile_sgemm", taken, m, n, k);
    }
    return taken;
}

bool __real_ggml_compute_forward_mul_mat_tiled(const params *, ggml_tensor *);

bool __wrap_ggml_compute_forward_mul_mat_tiled(const params * p, ggml_tensor * dst) {
    const uint32_t flags = csb::hooks();
    const bool     taken =
        !(flags & CSB_WITHOUT_TILED) && __real_ggml_compute_forward_mul_mat_tiled(p, dst);
    if (recording(flags) && p->ith == 0) {
        csb::note_kernel("ggml_compute_forward_mul_mat_tiled", taken, dst->ne[0], dst->ne[1],
                         dst->src[0]->ne[0]);
    }
    return taken;
}

bool __real_ggml_compute_forward_mul_mat_id_tiled(const params *, ggml_tensor *, int64_t, int64_t,
                                                  const int32_t *, char *);

bool __wrap_ggml_compute_forward_mul_mat_id_tiled(const params * p, ggml_tensor * dst,
                                                  int64_t expert, int64_t rows,
                                                  const int32_t * expert_rows, char * scratch) {
    const uint32_t flags = csb::hooks();
    const bool     taken = !(flags & CSB_WITHOUT_TILED) &&
                       __real_ggml_compute_forward_mul_mat_id_tiled(p, dst, expert, rows,
                                                                    expert_rows, scratch);
    if (recording(flags) && p->ith == 0) {
        csb::note_kernel("ggml_compute_forward_mul_mat_id_tiled", taken, dst->ne[0], rows,
                         dst->src[0]->ne[0]);
    }
    return taken;
}

// A rotation of a quantized cache's values: a product by name only.
void __real_ggml_compute_forward_fwht(const params *, ggml_tensor *);

void __wrap_ggml_compute_forward_fwht(const params * p, ggml_tensor * dst) {
    if (recording(csb::hooks()) && p->ith == 0) {
        csb::note_kernel("ggml_compute_forward_fwht");
    }
    __real_ggml_compute_forward_fwht(p, dst);
}

#define CSB_REPACK(name)                                                                           \
    __attribute__((weak)) void __real_##name(int, float *, size_t, const void *, const void *,     \
                                             int, int); /* not on every architecture */            \
    void __wrap_##name(int n, float * s, size_t bs, const void * vx, const void * vy, int nr,      \
                       int nc) {                                                                   \
        if (recording(csb::hooks())) {                                                             \
            csb::note_kernel(#name);                                                               \
        }                                                                                          \
        __real_##name(n, s, bs, vx, vy, nr, nc);                                                   \
    }

CSB_REPACK(ggml_gemv_q4_0_8x8_q8_0)
CSB_REPACK(ggml_gemm_q4_0_8x8_q8_0)
CSB_REPACK(ggml_gemv_q4_K_8x8_q8_K)
CSB_REPACK(ggml_gemm_q4_K_8x8_q8_K)
CSB_REPACK(ggml_gemv_q2_K_8x8_q8_K)
CSB_REPACK(ggml_gemm_q2_K_8x8_q8_K)
CSB_REPACK(ggml_gemv_iq4_nl_8x8_q8_0)
CSB_REPACK(ggml_gemm_iq4_nl_8x8_q8_0)
CSB_REPACK(ggml_gemv_mxfp4_8x8_q8_0)
CSB_REPACK(ggml_gemm_mxfp4_8x8_q8_0)

// ---- flash attention: one chunk, split-KV or tiled ----

void __real_ggml_threadpool_chunk_set(ggml_threadpool *, int);
int  __real_ggml_threadpool_chunk_add(ggml_threadpool *, int);
double __real_ggml_vec_soft_max_f32(int, float *, const float *, float);
void __real_ggml_compute_forward_flash_attn_ext(const params *, ggml_tensor *);

void __wrap_ggml_threadpool_chunk_set(ggml_threadpool * pool, int value) {
    seen.chunked = true;
    __real_ggml_threadpool_chunk_set(pool, value);
}

int __wrap_ggml_threadpool_chunk_add(ggml_threadpool * pool, int value) {
    seen.chunked = true;
    return __real_ggml_threadpool_chunk_add(pool, value);
}

double __wrap_ggml_vec_soft_max_f32(int n, float * y, const float * x, float max) {
    seen.soft_max = true;
    return __real_ggml_vec_soft_max_f32(n, y, x, max);
}

void __wrap_ggml_compute_forward_flash_attn_ext(const params * p, ggml_tensor * dst) {
    const uint32_t flags = csb::hooks();
    params         here  = *p;
    if ((flags & CSB_WITHOUT_SPLIT_KV) && dst->src[0]->ne[1] == 1) {
        here.use_ref = true; // this op alone, and only where it has one row
    }
    seen = {};
    __real_ggml_compute_forward_flash_attn_ext(&here, dst);
    if (recording(flags) && here.ith == 0) {
        csb::note_kernel(seen.soft_max  ? "ggml_compute_forward_flash_attn_ext[tiled]"
                         : seen.chunked ? "ggml_compute_forward_flash_attn_ext[one_chunk]"
                                        : "ggml_compute_forward_flash_attn_ext[split_kv]");
    }
}

// ---- the whole graph by reference kernels ----

ggml_status __real_ggml_graph_compute(ggml_cgraph *, ggml_cplan *);

ggml_status __wrap_ggml_graph_compute(ggml_cgraph * graph, ggml_cplan * plan) {
    if (!(csb::hooks() & CSB_REFERENCE)) {
        return __real_ggml_graph_compute(graph, plan);
    }
    const bool before   = plan->use_ref;
    plan->use_ref       = true;
    const ggml_status s = __real_ggml_graph_compute(graph, plan);
    plan->use_ref       = before;
    return s;
}

} // extern "C"
