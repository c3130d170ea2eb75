/* Vectors of float32 in the compiler's own notation, as wide as the target's registers.

   GCC and Clang turn this into the instructions of whatever they compile for, so that there is one text and no
   intrinsics.  Loads and stores take any address that is a multiple of 4. */

#ifndef KV_VECTOR_H
#define KV_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_at_any_float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float quad __attribute__((vector_size(16)));

INLINE vec load(const float *from) { return *(const vec_at_any_float *)from; }
INLINE void store(float *to, vec value) { *(vec_at_any_float *)to = value; }
/* Numbers of a plane, one a lane: the upper halves of float32, bytes, and halves of bytes, the low one first. */
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

INLINE vec load_bf16(const uint16_t *from) {
    halves found;
    memcpy(&found, from, sizeof found);
    return (vec)(__builtin_convertvector(found, words) << 16);
}

/* From bytes to words in two steps, each of which is one instruction; GCC takes a single one lane by lane. */
INLINE words widened(bytes found) { return __builtin_convertvector(__builtin_convertvector(found, halves), words); }

INLINE words load_bytes(const uint8_t *from) {
    bytes found;
    memcpy(&found, from, sizeof found);
    return widened(found);
}

INLINE vec load_int8(const uint8_t *from) {
    return __builtin_convertvector((ivec)(load_bytes(from) << 24) >> 24, vec);
}

INLINE words load_nibbles(const uint8_t *from) {
#if LANES == 16
    uint32_t found[2];
    memcpy(found, from, sizeof found);
    const words low = found[0] - (words){}, high = found[1] - (words){};
    const words all = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31);
    return all >> (words){0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28} & 15;
#elif LANES == 8
    uint32_t found;
    memcpy(&found, from, sizeof found);
    return (found - (words){}) >> (words){0, 4, 8, 12, 16, 20, 24, 28} & 15;
#else
    uint16_t found;
    memcpy(&found, from, sizeof found);
    return (found - (words){}) >> (words){0, 4, 8, 12} & 15;
#endif
}

INLINE vec splat(float value) { return value - (vec){}; }

/* Bits of a vector as integers, and back. */
INLINE ivec bits_of(vec value) { return (ivec)value; }
INLINE vec chosen(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
INLINE vec larger(vec a, vec b) { return chosen(a > b, a, b); }

/* Lanes are seen as quads, four neighbours each; these take two lanes of every quad of a and two of b. */
#if LANES == 16
#define IN_QUADS(a, b, w, x, y, z)                                                                           \
    __builtin_shufflevector(a, b, w, x, (y) + 12, (z) + 12, (w) + 4, (x) + 4, (y) + 16, (z) + 16, (w) + 8,   \
                            (x) + 8, (y) + 20, (z) + 20, (w) + 12, (x) + 12, (y) + 24, (z) + 24)
#elif LANES == 8
#define IN_QUADS(a, b, w, x, y, z) \
    __builtin_shufflevector(a, b, w, x, (y) + 4, (z) + 4, (w) + 4, (x) + 4, (y) + 8, (z) + 8)
#else
#define IN_QUADS(a, b, w, x, y, z) __builtin_shufflevector(a, b, w, x, y, z)
#endif

/* The sum of all quads. */
INLINE quad to_quad(vec value) {
#if LANES == 16
    typedef float oct __attribute__((vector_size(32)));
    const oct half = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif LANES == 8
    return __builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7);
#else
    return value;
#endif
}

/* The four sums over all lanes, each added up in the same order. */
INLINE quad sums_of(vec a, vec b, vec c, vec d) {
    const vec ac = IN_QUADS(a, c, 0, 1, 4, 5) + IN_QUADS(a, c, 2, 3, 6, 7); /* a a c c */
    const vec bd = IN_QUADS(b, d, 0, 1, 4, 5) + IN_QUADS(b, d, 2, 3, 6, 7);
    const quad sums = to_quad(IN_QUADS(ac, bd, 0, 2, 4, 6) + IN_QUADS(ac, bd, 1, 3, 5, 7)); /* a c b d */
    return __builtin_shufflevector(sums, sums, 0, 2, 1, 3);
}

INLINE float sum_of(vec value) { return sums_of(value, value, value, value)[0]; }

INLINE float largest_of(vec value) {
    float most = value[0];
    for (int lane = 1; lane < LANES; lane++) most = value[lane] > most ? value[lane] : most;
    return most;
}

/* e to the power of x for x <= 0, within 2 ulp (tests try every exponent); 0 below -87.3, where the result would be
   subnormal; NaN for NaN.

   x = n ln 2 + r with |r| <= ln 2 / 2.  ln 2 is two numbers, the first with so few bits that n times it is exact; the
   polynomial is the series of e^r up to r^7, whose remainder there is below 2^-27. */
INLINE vec exp_of(vec x) {
    const float least = -87.3f, log2e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
    const float to_integer = 12582912.0f;
    const vec kept = larger(x, splat(least));
    const vec shifted = kept * log2e + to_integer;
    const vec n = shifted - to_integer;
    const vec r = (kept - n * ln2_high) - n * ln2_low;
    vec p = splat(1.0f / 5040) * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * r) * r + r;
    p = p + 1.0f;
    const ivec exponent = bits_of(shifted) << 23;
    const vec scaled = (vec)(bits_of(p) + exponent);
    const vec result = chosen(x < least, splat(0.0f), scaled);
    return chosen(x == x, result, x);
}

INLINE float exp_of_one(float x) { return exp_of(splat(x))[0]; }

#endif
