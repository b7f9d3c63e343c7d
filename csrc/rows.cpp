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
#include "lanes.hpp"

// One function body compiled for several vector units, chosen at load. Not under sanitizers, whose
// runtime is not up yet when the choice is made.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#    define CSB_VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#    define CSB_VECTOR
#endif

namespace {

using csb::doubles;
using csb::LANES;

constexpr double NOT = std::numeric_limits<double>::quiet_NaN();

CSB_INLINE uint32_t bits_of(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}

// Loops over the vocabulary in stretches whose 32-bit counters can't overflow are what compilers
// vectorise; a stretch is short enough that a search stops soon after its hit.
constexpr int32_t STRETCH = 512;

template <typename F> CSB_INLINE int64_t count(int32_t n, F && holds) {
    int64_t found = 0;
    for (int32_t from = 0; from < n; from += STRETCH) {
        const int32_t to   = std::min(n, from + STRETCH);
        uint32_t      here = 0;
        for (int32_t i = from; i < to; i++) {
            here += holds(i);
        }
        found += here;
    }
    return found;
}

CSB_VECTOR int64_t count_bad(const float * row, int32_t n) {
    return count(n, [&](int32_t i) { return (bits_of(row[i]) & 0x7f800000u) == 0x7f800000u; });
}

CSB_VECTOR int64_t count_different(const float * a, const float * b, int32_t n) {
    return count(n, [&](int32_t i) { return bits_of(a[i]) != bits_of(b[i]); });
}

CSB_VECTOR int64_t rank_of(const float * row, int32_t n, int32_t target) {
    const float value = row[target];
    return count(n, [&](int32_t i) { return row[i] > value; }) +
           count(target, [&](int32_t i) { return row[i] == value; });
}

CSB_VECTOR int32_t first_equal(const float * row, int32_t n, float value) {
    int32_t from = 0;
    for (; from + STRETCH <= n; from += STRETCH) {
        uint32_t here = 0;
        for (int32_t i = from; i < from + STRETCH; i++) {
            here += row[i] == value;
        }
        if (here) {
            break;
        }
    }
    return static_cast<int32_t>(std::find(row + from, row + n, value) - row);
}

CSB_VECTOR float largest(const float * row, int32_t n) {
    constexpr float LEAST = -std::numeric_limits<float>::infinity();
    csb::floats     most  = csb::floats{} + LEAST;
    int32_t         i     = 0;
    for (; i + LANES <= n; i += LANES) {
        csb::floats here;
        std::memcpy(&here, row + i, sizeof(here));
        most = here > most ? here : most;
    }
    float best = LEAST;
    for (int k = 0; k < LANES; k++) {
        best = most[k] > best ? most[k] : best;
    }
    for (; i < n; i++) {
        best = row[i] > best ? row[i] : best;
    }
    return best;
}

// The sum of every entry's exp; those themselves into out unless NULL, padded to whole lanes.
CSB_VECTOR double all_exp(const float * row, int32_t n, double top, double scale, double * out) {
    doubles sum = {};
    for (int32_t i = 0; i < n; i += LANES) {
        const int32_t left = n - i;
        // past the end e^-708, which no sum feels
        const doubles x = left >= LANES ? csb::load(row + i) : csb::load(row + i, left, -1e30f);
        const doubles e = csb::exp_negative((x - top) * scale);
        sum += e;
        if (out) {
            std::memcpy(out + i, &e, sizeof(e));
        }
    }
    return csb::total(sum);
}

struct sums {
    double square, divergence, distance, max_abs;
};

// With p = e / total_e and q = f / total_f: sums of (a-b)^2, e*(a-b)*scale and |p-q|, and max |a-b|.
CSB_VECTOR sums compare(const float * a, const float * b, int32_t n, const double * all_e,
                        const double * all_f, double total_e, double total_f, double scale) {
    doubles      square = {}, divergence = {}, distance = {}, most = {};
    const double part_e = 1 / total_e, part_f = 1 / total_f;
    for (int32_t i = 0; i < n; i += LANES) {
        doubles e, f;
        std::memcpy(&e, all_e + i, sizeof(e));
        std::memcpy(&f, all_f + i, sizeof(f));
        const int32_t left = n - i;
        const doubles x    = left >= LANES ? csb::load(a + i) : csb::load(a + i, left, 0);
        const doubles y    = left >= LANES ? csb::load(b + i) : csb::load(b + i, left, 0);
        const doubles d    = x - y;
        const doubles s    = csb::absolute(d);
        square += d * d;
        divergence += e * (d * scale);
        distance += csb::absolute(e * part_e - f * part_f);
        most = s > most ? s : most;
    }
    return {csb::total(square), csb::total(divergence), csb::total(distance), csb::largest(most)};
}

void check_rows(int32_t n_rows, int32_t n_vocab) {
    csb::check(n_rows >= 0, "n_rows", n_rows, "must not be negative");
    csb::check(n_vocab >= 1, "n_vocab", n_vocab, "must be at least 1");
}

void check_temperature(double temperature) {
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
    out[CSB_ROW_TARGET_L]  = row[target];
    out[CSB_ROW_RANK]      = static_cast<double>(rank_of(row, n, target));
    if (temperature > 0) {
        const double sum       = all_exp(row, n, top, 1 / temperature, nullptr);
        out[CSB_ROW_LOGSUMEXP] = top / temperature + std::log(sum);
    }
}

void compare_pair(const float * a, const float * b, int32_t n, double temperature, double * out) {
    std::fill(out, out + CSB_PAIR_N_FIELDS, NOT);
    out[CSB_PAIR_N_DIFF] = static_cast<double>(count_different(a, b, n));
    if (count_bad(a, n) + count_bad(b, n) > 0) {
        return;
    }
    const double scale = 1 / temperature;
    const double top_a = largest(a, n);
    const double top_b = largest(b, n);
    // kept for the next row: getting half a megabyte anew costs more than filling it
    thread_local std::vector<double> e, f;
    e.resize(static_cast<size_t>(n) + LANES);
    f.resize(static_cast<size_t>(n) + LANES);
    const double total_e = all_exp(a, n, top_a, scale, e.data());
    const double total_f = all_exp(b, n, top_b, scale, f.data());
    const sums   s       = compare(a, b, n, e.data(), f.data(), total_e, total_f, scale);
    const double shift   = (top_a - top_b) * scale + std::log(total_e / total_f);
    out[CSB_PAIR_MAX_ABS] = s.max_abs;
    out[CSB_PAIR_RMS]     = std::sqrt(s.square / n);
    out[CSB_PAIR_KL]      = std::max(0.0, s.divergence / total_e - shift); // below 0 only by rounding
    out[CSB_PAIR_TV]      = s.distance / 2;
    out[CSB_PAIR_LSE_A]   = top_a * scale + std::log(total_e);
    out[CSB_PAIR_LSE_B]   = top_b * scale + std::log(total_f);
}

} // namespace

int32_t csb_rows_summarise(int32_t n_rows, int32_t n_vocab, const float * rows,
                           const int32_t * targets, double temperature, double * out_table) {
    return csb::guarded([&] {
        check_rows(n_rows, n_vocab);
        if (temperature != 0) {
            check_temperature(temperature);
        }
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
        check_rows(n_rows, n_vocab);
        check_temperature(temperature);
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
