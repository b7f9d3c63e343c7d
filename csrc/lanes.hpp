// Eight doubles worked on as one, with the vector extensions that GCC and Clang share: what the
// compiler makes of them (one, two or four instructions) does not change a bit of the result.
#pragma once

#include <cstdint>
#include <cstring>

#define CSB_INLINE inline __attribute__((always_inline))

namespace csb {

constexpr int LANES = 8;

typedef double  doubles __attribute__((vector_size(8 * LANES)));
typedef int64_t longs __attribute__((vector_size(8 * LANES)));
typedef float   floats __attribute__((vector_size(4 * LANES)));

CSB_INLINE doubles load(const float * from) {
    floats f;
    std::memcpy(&f, from, sizeof(f));
    return __builtin_convertvector(f, doubles);
}

// The last n < LANES values, the other lanes filled with `rest`.
CSB_INLINE doubles load(const float * from, int32_t n, float rest) {
    float padded[LANES];
    for (int32_t k = 0; k < LANES; k++) {
        padded[k] = k < n ? from[k] : rest;
    }
    return load(padded);
}

CSB_INLINE double total(const doubles & v) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

CSB_INLINE double largest(const doubles & v) {
    double most = v[0];
    for (int k = 1; k < LANES; k++) {
        most = v[k] > most ? v[k] : most;
    }
    return most;
}

CSB_INLINE doubles absolute(const doubles & v) {
    return v < 0.0 ? -v : v;
}

// exp for x <= 0, within two units in the last place: 2^n * e^r with |r| <= ln(2)/2 and e^r by its
// Taylor polynomial of degree 13. Below -708 it is exp(-708), 1e-307: nothing beside the largest
// term, which is 1.
CSB_INLINE doubles exp_negative(doubles x) {
    constexpr double SHIFT = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to a whole number
    x                      = x < -708.0 ? x * 0.0 - 708.0 : x;
    const doubles shifted  = x * 1.4426950408889634074 + SHIFT;
    const doubles n        = shifted - SHIFT;
    const doubles r        = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    doubles       p        = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
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
    longs bits;
    std::memcpy(&bits, &shifted, sizeof(bits)); // n stands in the low bits of the shifted sum
    bits = (bits + 1023) << 52;
    doubles power;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
}

} // namespace csb
