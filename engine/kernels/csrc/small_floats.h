/* The formats of engine/kernels/codec.py as integer arithmetic on bit patterns; the words are the same there.

   Nothing here depends on a conversion instruction for 8-bit or 16-bit floats, nor on subnormal float32 numbers: a
   caller's flush-to-zero mode changes no result. */

#ifndef KV_SMALL_FLOATS_H
#define KV_SMALL_FLOATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

struct small_float {
    int mantissa_bits, bias;
    uint32_t largest_code, sign_bit, nan_code;
};

static const struct small_float FP16 = {10, 15, 0x7BFF, 0x8000, 0x7E00};
static const struct small_float E4M3FN = {3, 7, 0x7E, 0x80, 0x7F};
static const struct small_float E2M1 = {1, 1, 0x7, 0x8, 0x7};

static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2 to the power of `exponent`, for a normal result. */
static inline float power_of_two(int exponent) { return float_of_bits((uint32_t)(exponent + 127) << 23); }

/* The pattern nearest to `x`, ties to even, the sign kept; |x| must not exceed the largest finite number. */
static inline uint32_t pattern_of(struct small_float format, float x) {
    const uint32_t bits = bits_of_float(x), kept = bits & 0x7FFFFFFF;
    const float magnitude = float_of_bits(kept);
    const int drop = 23 - format.mantissa_bits;
    const uint32_t rounded = (kept + ((1u << (drop - 1)) - 1) + (kept >> drop & 1)) >> drop;
    const uint32_t normal = rounded - ((uint32_t)(127 - format.bias) << format.mantissa_bits);
    /* Below the least normal number the steps are equal, and the pattern is their count. */
    const uint32_t steps = (uint32_t)(int32_t)rintf(magnitude * power_of_two(format.bias - 1 + format.mantissa_bits));
    const uint32_t code = magnitude < power_of_two(1 - format.bias) ? steps : normal;
    return code | (bits >> 31 ? format.sign_bit : 0);
}

/* What a pattern stands for; patterns beyond the largest finite one are the caller's. */
static inline float finite_value_of(struct small_float format, uint32_t pattern) {
    const uint32_t magnitude = pattern & (format.sign_bit - 1);
    const uint32_t sign = pattern & format.sign_bit ? 0x80000000u : 0;
    const uint32_t normal = (magnitude << (23 - format.mantissa_bits)) + ((uint32_t)(127 - format.bias) << 23);
    const float steps = (float)(int32_t)magnitude * power_of_two(1 - format.bias - format.mantissa_bits);
    const uint32_t bits = magnitude >> format.mantissa_bits ? normal : bits_of_float(steps);
    return float_of_bits(bits | sign);
}

static inline float value_of_e4m3fn(uint8_t pattern) {
    return (pattern & 0x7F) == 0x7F ? float_of_bits(0x7FC00000) : finite_value_of(E4M3FN, pattern);
}

static inline float value_of_fp16(uint16_t pattern) {
    const uint32_t magnitude = pattern & 0x7FFF, sign = (uint32_t)(pattern & 0x8000) << 16;
    if (magnitude <= FP16.largest_code) return finite_value_of(FP16, pattern);
    return float_of_bits(sign | (magnitude == 0x7C00 ? 0x7F800000 : 0x7FC00000));
}

static inline float value_of_bf16(uint16_t pattern) { return float_of_bits((uint32_t)pattern << 16); }

/* Nearest, ties to even; a NaN stays one, whatever its payload. */
static inline uint16_t bf16_of(float value) {
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#endif
