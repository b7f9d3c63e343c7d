// What ggml asserts on or reads past, op by op, said before in words.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "ggml-cpu.h"
#include "guard.hpp"
#include "op.hpp"

namespace {

std::string shape(const int64_t * ne) {
    std::string text = "[";
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        text += (i ? ", " : "") + std::to_string(ne[i]);
    }
    return text + "]";
}

std::string lower(const std::string & text) {
    std::string made;
    for (char c : text) {
        made += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return made;
}

// The node under check; every complaint names its op.
struct subject {
    const ggml_tensor * node;

    const ggml_tensor * src(int i) const { return node->src[i]; }
    std::string name() const { return std::string("op = ") + ggml_op_name(node->op) + ": "; }

    void need(bool holds, const std::string & rule) const {
        if (!holds) {
            csb::bad_argument(name() + rule);
        }
    }
    void can(bool holds, const std::string & rule) const {
        if (!holds) {
            throw csb::error(CSB_ERROR_UNSUPPORTED, name() + rule);
        }
    }
    void sources(int least, int most) const {
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            need(i >= least || src(i), "source " + std::to_string(i) + " is missing");
            need(i < most || !src(i), "takes at most " + std::to_string(most) + " sources");
        }
    }
    void type(int i, std::initializer_list<ggml_type> fitting) const {
        const bool fits = std::find(fitting.begin(), fitting.end(), src(i)->type) != fitting.end();
        can(fits, "source " + std::to_string(i) + " can't be " + ggml_type_name(src(i)->type));
    }
    void whole_rows(int i) const { // elements of a row beside each other
        need(src(i)->nb[0] == ggml_type_size(src(i)->type),
             "source " + std::to_string(i) + " has nb[0] = " + std::to_string(src(i)->nb[0]) +
                 ": must be its type's size");
    }
    void contiguous(int i) const {
        need(ggml_is_contiguous(src(i)), "source " + std::to_string(i) + " must be contiguous");
    }
    void out(ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) const {
        const int64_t ne[] = {ne0, ne1, ne2, ne3};
        need(std::equal(ne, ne + GGML_MAX_DIMS, node->ne),
             "out_ne = " + shape(node->ne) + ": must be " + shape(ne));
        need(node->type == type, std::string("out_type = ") + ggml_type_name(node->type) +
                                     ": must be " + ggml_type_name(type));
    }
    void out_like(int i, ggml_type type) const {
        const int64_t * ne = src(i)->ne;
        out(type, ne[0], ne[1], ne[2], ne[3]);
    }
    float real(int i) const {
        float value = 0;
        std::memcpy(&value, node->op_params + i, sizeof(value));
        return value;
    }
    std::string shapes() const {
        return "sources of " + shape(src(0)->ne) + " and " + shape(src(1)->ne) + " do not fit";
    }
};

const auto PLAIN = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16};

bool multiplies(ggml_type type) {
    return ggml_get_type_traits_cpu(type)->vec_dot != nullptr;
}

bool repeats(int64_t many, int64_t one) {
    return many % one == 0;
}

void weights(const subject & s) {
    s.can(multiplies(s.src(0)->type),
          std::string("source 0 can't be ") + ggml_type_name(s.src(0)->type));
    s.whole_rows(0);
    s.whole_rows(1);
    s.need(s.src(0)->nb[1] >= s.src(0)->nb[0], "source 0 must not be transposed");
}

void mul_mat(const subject & s) {
    s.sources(2, 2);
    const ggml_tensor *a = s.src(0), *b = s.src(1);
    weights(s);
    s.type(1, PLAIN);
    s.need(a->ne[0] == b->ne[0] && repeats(b->ne[2], a->ne[2]) && repeats(b->ne[3], a->ne[3]),
           s.shapes());
    s.out(GGML_TYPE_F32, a->ne[1], b->ne[1], b->ne[2], b->ne[3]);
    const int32_t hint = s.node->op_params[1];
    s.need(hint == GGML_HINT_NONE || hint == GGML_HINT_SRC0_IS_HADAMARD,
           "op_params[1] = " + std::to_string(hint) + ": is no hint");
    if (hint == GGML_HINT_SRC0_IS_HADAMARD) { // source 0's values are taken as known
        s.need(a->ne[0] == a->ne[1] && (a->ne[0] & (a->ne[0] - 1)) == 0,
               "a Hadamard matrix has a power of two of rows and columns");
        s.type(1, {GGML_TYPE_F32, GGML_TYPE_F16});
    }
}

void mul_mat_id(const subject & s, const void * ids_data) {
    s.sources(3, 3);
    const ggml_tensor *as = s.src(0), *b = s.src(1), *ids = s.src(2);
    weights(s);
    s.type(1, {GGML_TYPE_F32});
    s.type(2, {GGML_TYPE_I32});
    s.whole_rows(2);
    s.need(as->ne[0] == b->ne[0] && as->ne[3] == 1 && b->ne[3] == 1, s.shapes());
    s.need(ids->ne[1] == b->ne[2] && ids->ne[2] == 1 && ids->ne[3] == 1 &&
               repeats(ids->ne[0], b->ne[1]),
           "ids of " + shape(ids->ne) + " do not fit to activations of " + shape(b->ne));
    s.out(GGML_TYPE_F32, as->ne[1], ids->ne[0], b->ne[2], 1);
    for (int64_t row = 0; row < ids->ne[1]; row++) {
        for (int64_t i = 0; i < ids->ne[0]; i++) {
            int32_t id = 0;
            std::memcpy(&id,
                        static_cast<const char *>(ids_data) +
                            row * static_cast<int64_t>(ids->nb[1]) +
                            i * static_cast<int64_t>(sizeof(id)),
                        sizeof(id));
            s.need(id >= 0 && id < as->ne[2],
                   "id " + std::to_string(id) + " is no expert of " + std::to_string(as->ne[2]));
        }
    }
}

void mask(const subject & s, int i, int64_t columns, int64_t rows, int64_t ne2, int64_t ne3) {
    const ggml_tensor * m = s.src(i);
    if (m) {
        s.contiguous(i);
        s.need(m->ne[0] == columns && m->ne[1] >= rows && repeats(ne2, m->ne[2]) &&
                   repeats(ne3, m->ne[3]),
               "a mask of " + shape(m->ne) + " does not fit");
    }
}

void sinks(const subject & s, int i, int64_t heads) {
    if (s.src(i)) {
        s.type(i, {GGML_TYPE_F32});
        s.contiguous(i);
        s.need(s.src(i)->ne[0] == heads, "there must be a sink for each head");
    }
}

void flash_attn(const subject & s) {
    s.sources(3, 5);
    const ggml_tensor *q = s.src(0), *k = s.src(1), *v = s.src(2);
    s.type(0, {GGML_TYPE_F32});
    const ggml_type with = ggml_get_type_traits_cpu(k->type)->vec_dot_type;
    s.can(multiplies(k->type) && ggml_get_type_traits_cpu(with)->from_float,
          std::string("source 1 can't be ") + ggml_type_name(k->type));
    s.can(v->type == GGML_TYPE_F32 ||
              (multiplies(v->type) && ggml_get_type_traits(v->type)->to_float),
          std::string("source 2 can't be ") + ggml_type_name(v->type));
    for (int i = 0; i < 3; i++) {
        s.whole_rows(i);
    }
    s.need(q->ne[0] == k->ne[0] && k->ne[1] == v->ne[1] && repeats(q->ne[2], k->ne[2]) &&
               repeats(q->ne[2], v->ne[2]) && q->ne[3] == k->ne[3] && q->ne[3] == v->ne[3],
           "q of " + shape(q->ne) + ", k of " + shape(k->ne) + " and v of " + shape(v->ne) +
               " do not fit");
    if (s.src(3)) {
        s.type(3, {GGML_TYPE_F16});
    }
    mask(s, 3, k->ne[1], q->ne[1], q->ne[2], q->ne[3]);
    s.need(s.src(3) || !(s.real(1) > 0), "a bias (op_params[1]) needs a mask");
    sinks(s, 4, q->ne[2]);
    const int32_t precision = s.node->op_params[3];
    s.need(precision == GGML_PREC_DEFAULT || precision == GGML_PREC_F32,
           "op_params[3] = " + std::to_string(precision) + ": is no precision");
    s.out(GGML_TYPE_F32, v->ne[0], q->ne[2], q->ne[1], q->ne[3]);
}

void norm(const subject & s) {
    s.sources(1, 1);
    s.type(0, {GGML_TYPE_F32});
    s.whole_rows(0);
    s.need(s.real(0) >= 0, "eps (op_params[0]) must not be negative");
    s.out_like(0, GGML_TYPE_F32);
}

void soft_max(const subject & s) {
    s.sources(1, 3);
    const int64_t * ne = s.src(0)->ne;
    s.type(0, {GGML_TYPE_F32});
    s.contiguous(0);
    if (s.src(1)) {
        s.type(1, {GGML_TYPE_F32, GGML_TYPE_F16});
    }
    mask(s, 1, ne[0], ne[1], ne[2], ne[3]);
    s.need(s.src(1) || !(s.real(1) > 0), "a bias (op_params[1]) needs a mask");
    sinks(s, 2, ne[2]);
    s.out_like(0, GGML_TYPE_F32);
}

void rope(const subject & s) {
    s.sources(2, 3);
    const ggml_tensor *a = s.src(0), *positions = s.src(1), *factors = s.src(2);
    const int32_t *    p      = s.node->op_params;
    const int32_t      n_dims = p[1], mode = p[2], offset = p[15];
    s.type(0, {GGML_TYPE_F32, GGML_TYPE_F16});
    s.type(1, {GGML_TYPE_I32});
    s.whole_rows(0);
    s.contiguous(1);
    const auto modes = {GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX, GGML_ROPE_TYPE_MROPE,
                        GGML_ROPE_TYPE_VISION, GGML_ROPE_TYPE_IMROPE};
    s.need(std::find(modes.begin(), modes.end(), mode) != modes.end(),
           "op_params[2] = " + std::to_string(mode) + ": is no mode");
    s.need(a->ne[0] % 2 == 0 && n_dims >= 2 && n_dims % 2 == 0 && n_dims <= a->ne[0],
           "op_params[1] = " + std::to_string(n_dims) + ": must be an even part of a row of " +
               std::to_string(a->ne[0]));
    s.need(offset >= 0 && offset % 2 == 0 && offset + n_dims <= a->ne[0],
           "op_params[15] = " + std::to_string(offset) + ": must be an even offset in a row");
    const bool sections = mode & GGML_ROPE_TYPE_MROPE;
    s.need(ggml_is_vector(positions) && positions->ne[0] == a->ne[2] * (sections ? 4 : 1),
           "positions of " + shape(positions->ne) + " do not fit to " + shape(a->ne));
    if (sections) {
        int64_t sum = 0;
        for (int i = 11; i < 15; i++) {
            s.need(p[i] >= 0, "a section is negative");
            sum += p[i];
        }
        s.need(p[11] + p[12] + p[13] > 0 && sum <= a->ne[0], "the sections do not fit to a row");
    }
    s.need(mode != GGML_ROPE_TYPE_VISION || (n_dims == a->ne[0] / 2 && offset == 0),
           "in vision mode n_dims is half a row");
    if (factors) {
        s.type(2, {GGML_TYPE_F32});
        s.contiguous(2);
        s.need(factors->ne[0] >= n_dims / 2, "too few frequency factors");
    }
    s.out_like(0, a->type);
}

void binary(const subject & s) {
    s.sources(2, 2);
    const ggml_tensor *a = s.src(0), *b = s.src(1);
    s.type(0, PLAIN);
    s.can(b->type == a->type || b->type == GGML_TYPE_F32, std::string("sources can't be ") +
                                                              ggml_type_name(a->type) + " and " +
                                                              ggml_type_name(b->type));
    s.whole_rows(0);
    s.need(ggml_can_repeat(b, a), s.shapes());
    const bool widens = s.node->type == GGML_TYPE_F32 && b->type == GGML_TYPE_F32;
    s.out_like(0, widens ? GGML_TYPE_F32 : a->type);
}

void unary(const subject & s) {
    s.sources(1, 1);
    s.type(0, PLAIN);
    s.need(ggml_is_contiguous_1(s.src(0)), "source 0 must be contiguous from its rows on");
    const int32_t op = s.node->op_params[0];
    s.need(op >= 0 && op < GGML_UNARY_OP_COUNT,
           "op_params[0] = " + std::to_string(op) + ": is no unary op");
    s.out_like(0, s.src(0)->type);
}

void gated(const subject & s) {
    s.sources(1, 2);
    const ggml_tensor *a = s.src(0), *b = s.src(1);
    const int32_t      op = s.node->op_params[0];
    s.need(op >= 0 && op < GGML_GLU_OP_COUNT,
           "op_params[0] = " + std::to_string(op) + ": is no gated op");
    s.type(0, {GGML_TYPE_F32, GGML_TYPE_F16});
    s.can(op != GGML_GLU_OP_SWIGLU_OAI || a->type == GGML_TYPE_F32, "source 0 must be f32");
    s.need(ggml_is_contiguous_1(a), "source 0 must be contiguous from its rows on");
    if (b) {
        s.need(ggml_is_contiguous_1(b), "source 1 must be contiguous from its rows on");
        s.need(ggml_are_same_shape(a, b) && a->type == b->type, s.shapes());
    }
    s.need(b || a->ne[0] % 2 == 0, "a row holds gate and value: its length must be even");
    s.out(a->type, b ? a->ne[0] : a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]);
}

} // namespace

namespace csb {

ggml_type find_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const auto type = static_cast<ggml_type>(i);
        if (ggml_type_size(type) && lower(ggml_type_name(type)) == lower(name)) {
            return type;
        }
    }
    bad_argument("type = " + name + ": ggml has no such type");
}

ggml_op find_op(const std::string & name, int32_t * op_params) {
    for (int i = 1; i < GGML_OP_COUNT; i++) {
        if (name == ggml_op_name(static_cast<ggml_op>(i))) {
            return static_cast<ggml_op>(i);
        }
    }
    for (int i = 0; i < GGML_UNARY_OP_COUNT; i++) {
        if (name == ggml_unary_op_name(static_cast<ggml_unary_op>(i))) {
            op_params[0] = i;
            return GGML_OP_UNARY;
        }
    }
    for (int i = 0; i < GGML_GLU_OP_COUNT; i++) {
        if (name == ggml_glu_op_name(static_cast<ggml_glu_op>(i))) {
            op_params[0] = i;
            return GGML_OP_GLU;
        }
    }
    bad_argument("op = " + name + ": ggml has no such op");
}

void check_node(const ggml_tensor * node, const void * ids) {
    const subject s{node};
    switch (node->op) {
    case GGML_OP_MUL_MAT:
        return mul_mat(s);
    case GGML_OP_MUL_MAT_ID:
        return mul_mat_id(s, ids);
    case GGML_OP_FLASH_ATTN_EXT:
        return flash_attn(s);
    case GGML_OP_RMS_NORM:
    case GGML_OP_NORM:
        return norm(s);
    case GGML_OP_SOFT_MAX:
        return soft_max(s);
    case GGML_OP_ROPE:
        return rope(s);
    case GGML_OP_ADD:
    case GGML_OP_MUL:
        return binary(s);
    case GGML_OP_UNARY:
        return unary(s);
    case GGML_OP_GLU:
        return gated(s);
    default:
        throw error(CSB_ERROR_UNSUPPORTED,
                    std::string("op = ") + ggml_op_name(node->op) + ": csb can't run it by itself");
    }
}

} // namespace csb
