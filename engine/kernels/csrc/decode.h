/* Rows of a plane as float32 numbers: code times scale, exact (reference/codecs.py says why). */

#ifndef KV_DECODE_H
#define KV_DECODE_H

#include "planes.h"
#include "small_floats.h"
#include "vector.h"

static inline float scale_value(const struct side *side, const uint8_t *scales, int64_t group) {
    if (side->scale == SCALE_E4M3FN) return value_of_e4m3fn(scales[group]);
    uint16_t pattern;
    memcpy(&pattern, scales + 2 * group, sizeof pattern);
    return value_of_fp16(pattern);
}

/* finite_value_of, a pattern a lane. */
INLINE vec finite_values_of(struct small_float format, words patterns) {
    const words magnitude = patterns & (format.sign_bit - 1), sign = patterns & format.sign_bit;
    const words normal = (magnitude << (23 - format.mantissa_bits)) + ((uint32_t)(127 - format.bias) << 23);
    const float step = power_of_two(1 - format.bias - format.mantissa_bits);
    const vec steps = __builtin_convertvector((ivec)magnitude, vec) * step;
    const vec value = chosen((ivec)(magnitude < 1u << format.mantissa_bits), steps, (vec)normal);
    return (vec)((words)value | sign * (0x80000000u / format.sign_bit));
}

INLINE vec e4m3fn_values(const uint8_t *codes) {
    const words patterns = load_bytes(codes);
    return chosen((ivec)((patterns & 0x7F) == 0x7F), splat(NAN), finite_values_of(E4M3FN, patterns));
}

/* Write the `dim` numbers of one row to `to`.  Groups are whole vectors (Python sees to it). */
static inline void decode_row(const struct side *side, const uint8_t *codes, const uint8_t *scales, float *to) {
    const int64_t dim = side->dim;
    if (side->code == CODE_FLOAT32) {
        memcpy(to, codes, (size_t)dim * sizeof *to);
        return;
    }
    if (side->code == CODE_BFLOAT16) {
        const uint16_t *patterns = (const uint16_t *)codes;
        for (int64_t d = 0; d < dim; d++) to[d] = value_of_bf16(patterns[d]);
        return;
    }
    for (int64_t first = 0, group = 0; first < dim; first += side->group, group++) {
        const float scale = scale_value(side, scales, group);
        const int64_t stop = first + side->group;
        if (side->code == CODE_INT8) {
            for (int64_t d = first; d < stop; d += LANES) store(to + d, load_int8(codes + d) * scale);
        } else if (side->code == CODE_E4M3FN) {
            for (int64_t d = first; d < stop; d += LANES) store(to + d, e4m3fn_values(codes + d) * scale);
        } else {
            for (int64_t d = first; d < stop; d += LANES)
                store(to + d, finite_values_of(E2M1, load_nibbles(codes + d / 2)) * scale);
        }
    }
}

#endif
