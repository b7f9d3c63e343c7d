// Summaries of logits rows, so that nothing of the vocabulary's size is worked on in Python.
//
// Every sum runs in eight fixed lanes of doubles that are added in a fixed order, and contraction
// to fused multiply-adds is off (CMakeLists.txt), so that the vector widths below give one result.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "guard.hpp"

// One function body compiled for several vector units, chosen at load. Not under sanitizers, whose
// runtime is not up yet when the choice is made.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#    define CSB_VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#    define CSB_VECTOR
#endif
#define CSB_INLINE inline __attribute__((always_inline))

namespace {

constexpr int    LANES = 8;
constexpr double NOT   = std::numeric_limits<double>::quiet_NaN();

CSB_INLINE double total(const double * lane) {
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

// exp for x <= 0, within two units in the last place: 2^n * e^r with |r| <= ln(2)/2 and e^r by its
// Taylor polynomial of degree 13. Below -708 it is exp(-708), 1e-307: nothing beside the largest
// term, which is 1.
CSB_INLINE double exp_negative(double x) {
    constexpr double SHIFT = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to a whole number
    x                      = x < -708.0 ? -708.0 : x;
    const double shifted   = x * 1.4426950408889634074 + SHIFT;
    const double n         = shifted - SHIFT;
    const double r         = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double       p         = 1.0 / 6227020800.0;
    p                      = p * r + 1.0 / 479001600.0;
    p                      = p * r + 1.0 / 39916800.0;
    p                      = p * r + 1.0 / 3628800.0;
    p                      = p * r + 1.0 / 362880.0;
    p                      = p * r + 1.0 / 40320.0;
    p                      = p * r + 1.0 / 5040.0;
    p                      = p * r + 1.0 / 720.0;
    p                      = p * r + 1.0 / 120.0;
    p                      = p * r + 1.0 / 24.0;
    p                      = p * r + 1.0 / 6.0;
    p                      = p * r + 0.5;
    p                      = p * r + 1.0;
    p                      = p * r + 1.0;
    uint64_t bits;
    std::memcpy(&bits, &shifted, 8); // n stands in the low bits of the shifted sum
    bits = (bits + 1023) << 52;
    double scale;
    std::memcpy(&scale, &bits, 8);
    return p * scale;
}

CSB_INLINE uint32_t bits_of(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}

CSB_VECTOR int64_t count_bad(const float * row, int32_t n) {
    int64_t bad = 0;
    for (int32_t i = 0; i < n; i++) {
        bad += (bits_of(row[i]) & 0x7f800000u) == 0x7f800000u;
    }
    return bad;
}

CSB_VECTOR float largest(const float * row, int32_t n) {
    float lane[16];
    std::fill(lane, lane + 16, -std::numeric_limits<float>::infinity());
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int32_t k = 0; k < 16; k++) {
            lane[k] = row[i + k] > lane[k] ? row[i + k] : lane[k];
        }
    }
    for (; i < n; i++) {
        lane[0] = row[i] > lane[0] ? row[i] : lane[0];
    }
    return *std::max_element(lane, lane + 16);
}

int32_t first_equal(const float * row, int32_t n, float value) {
    return static_cast<int32_t>(std::find(row, row + n, value) - row);
}

CSB_VECTOR double sum_exp(const float * row, int32_t n, double top, double scale) {
    double  lane[LANES] = {};
    int32_t i           = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int32_t k = 0; k < LANES; k++) {
            lane[k] += exp_negative((row[i + k] - top) * scale);
        }
    }
    for (; i < n; i++) {
        lane[0] += exp_negative((row[i] - top) * scale);
    }
    return total(lane);
}

CSB_VECTOR int64_t rank_of(const float * row, int32_t n, int32_t target) {
    const float value = row[target];
    int64_t     rank  = 0;
    for (int32_t i = 0; i < n; i++) {
        rank += row[i] > value;
    }
    for (int32_t i = 0; i < target; i++) {
        rank += row[i] == value;
    }
    return rank;
}

CSB_VECTOR int64_t count_different(const float * a, const float * b, int32_t n) {
    int64_t different = 0;
    for (int32_t i = 0; i < n; i++) {
        different += bits_of(a[i]) != bits_of(b[i]);
    }
    return different;
}

struct sums {
    double square, divergence, distance, max_abs;
};

// With p = softmax(a), q = softmax(b): sums of (a-b)^2, p*(a-b)*scale and |p-q|, and max |a-b|.
CSB_VECTOR sums compare(const float * a, const float * b, int32_t n, double top_a, double top_b,
                        double total_a, double total_b, double scale) {
    double     square[LANES] = {}, divergence[LANES] = {}, distance[LANES] = {}, most[LANES] = {};
    const auto step = [&](int32_t i, int32_t k) __attribute__((always_inline)) {
        const double d = static_cast<double>(a[i]) - b[i];
        const double p = exp_negative((a[i] - top_a) * scale) / total_a;
        const double q = exp_negative((b[i] - top_b) * scale) / total_b;
        square[k] += d * d;
        divergence[k] += p * (d * scale);
        distance[k] += std::fabs(p - q);
        most[k] = std::fabs(d) > most[k] ? std::fabs(d) : most[k];
    };
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int32_t k = 0; k < LANES; k++) {
            step(i + k, k);
        }
    }
    for (; i < n; i++) {
        step(i, 0);
    }
    return {total(square), total(divergence), total(distance), *std::max_element(most, most + LANES)};
}

void check_rows(int32_t n_rows, int32_t n_vocab, double temperature) {
    csb::check(n_rows >= 0, "n_rows", n_rows, "must not be negative");
    csb::check(n_vocab >= 1, "n_vocab", n_vocab, "must be at least 1");
    // beyond these the products with 1 / temperature overflow or vanish
    if (!(temperature >= 1e-6 && temperature <= 1e6)) {
        csb::bad_argument("temperature = " + std::to_string(temperature) +
                          ": must be from 1e-6 to 1e6");
    }
}

void summarise(const float * row, int32_t n, int32_t target, double temperature, double * out) {
    std::fill(out, out + CSB_ROW_N_FIELDS, NOT);
    out[CSB_ROW_N_BAD] = static_cast<double>(count_bad(row, n));
    if (out[CSB_ROW_N_BAD] > 0) {
        return;
    }
    const float   top    = largest(row, n);
    const int32_t argmax = first_equal(row, n, top);
    const float   before = largest(row, argmax);
    const float   after  = largest(row + argmax + 1, n - argmax - 1);
    const float   next   = std::max(before, after);
    int32_t       second = -1;
    if (n > 1) {
        second = before == next ? first_equal(row, argmax, next)
                                : argmax + 1 + first_equal(row + argmax + 1, n - argmax - 1, next);
    }
    out[CSB_ROW_ARGMAX]    = argmax;
    out[CSB_ROW_MAX]       = row[argmax]; // top, but for the sign of a zero
    out[CSB_ROW_SECOND]    = second;
    out[CSB_ROW_SECOND_L]  = second < 0 ? NOT : row[second];
    out[CSB_ROW_LOGSUMEXP] = top / temperature + std::log(sum_exp(row, n, top, 1 / temperature));
    out[CSB_ROW_TARGET_L]  = row[target];
    out[CSB_ROW_RANK]      = static_cast<double>(rank_of(row, n, target));
}

void compare_pair(const float * a, const float * b, int32_t n, double temperature, double * out) {
    std::fill(out, out + CSB_PAIR_N_FIELDS, NOT);
    out[CSB_PAIR_N_DIFF] = static_cast<double>(count_different(a, b, n));
    if (count_bad(a, n) + count_bad(b, n) > 0) {
        return;
    }
    const double scale   = 1 / temperature;
    const double top_a   = largest(a, n);
    const double top_b   = largest(b, n);
    const double total_a = sum_exp(a, n, top_a, scale);
    const double total_b = sum_exp(b, n, top_b, scale);
    const sums   s       = compare(a, b, n, top_a, top_b, total_a, total_b, scale);
    const double shift   = (top_a - top_b) * scale + std::log(total_a / total_b);
    out[CSB_PAIR_MAX_ABS] = s.max_abs;
    out[CSB_PAIR_RMS]     = std::sqrt(s.square / n);
    out[CSB_PAIR_KL]      = std::max(0.0, s.divergence - shift); // below 0 only by rounding
    out[CSB_PAIR_TV]      = s.distance / 2;
}

} // namespace

int32_t csb_rows_summarise(int32_t n_rows, int32_t n_vocab, const float * rows,
                           const int32_t * targets, double temperature, double * out_table) {
    return csb::guarded([&] {
        check_rows(n_rows, n_vocab, temperature);
        csb::check_ptr(rows, "rows");
        csb::check_ptr(targets, "targets");
        csb::check_ptr(out_table, "out_table");
        for (int32_t r = 0; r < n_rows; r++) {
            csb::check(targets[r] >= 0 && targets[r] < n_vocab, "targets", targets[r],
                       "is outside the row");
        }
        for (int64_t r = 0; r < n_rows; r++) {
            summarise(rows + r * n_vocab, n_vocab, targets[r], temperature,
                      out_table + r * CSB_ROW_N_FIELDS);
        }
        return CSB_OK;
    });
}

int32_t csb_rows_compare(int32_t n_rows, int32_t n_vocab, const float * a, const float * b,
                         double temperature, double * out_table) {
    return csb::guarded([&] {
        check_rows(n_rows, n_vocab, temperature);
        csb::check_ptr(a, "a");
        csb::check_ptr(b, "b");
        csb::check_ptr(out_table, "out_table");
        for (int64_t r = 0; r < n_rows; r++) {
            compare_pair(a + r * n_vocab, b + r * n_vocab, n_vocab, temperature,
                         out_table + r * CSB_PAIR_N_FIELDS);
        }
        return CSB_OK;
    });
}
