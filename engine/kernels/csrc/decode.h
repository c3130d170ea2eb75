/* Rows of a plane as float32 numbers: code times scale, exact (reference/codecs.py says why). */

#ifndef KV_DECODE_H
#define KV_DECODE_H

#include "planes.h"
#include "small_floats.h"

static inline float scale_value(const struct side *side, const uint8_t *scales, int64_t group) {
    if (side->scale == SCALE_E4M3FN) return value_of_e4m3fn(scales[group]);
    uint16_t pattern;
    memcpy(&pattern, scales + 2 * group, sizeof pattern);
    return value_of_fp16(pattern);
}

/* Write the `dim` numbers of one row to `to`. */
static inline void decode_row(const struct side *side, const uint8_t *codes, const uint8_t *scales, float *to) {
    const int64_t dim = side->dim;
    if (side->code == CODE_FLOAT32) {
        memcpy(to, codes, (size_t)dim * sizeof *to);
    } else if (side->code == CODE_BFLOAT16) {
        const uint16_t *patterns = (const uint16_t *)codes;
        for (int64_t d = 0; d < dim; d++) to[d] = value_of_bf16(patterns[d]);
    } else {
        for (int64_t first = 0, group = 0; first < dim; first += side->group, group++) {
            const float scale = scale_value(side, scales, group);
            const int64_t stop = first + side->group;
            if (side->code == CODE_INT8) {
                for (int64_t d = first; d < stop; d++) to[d] = (float)(int8_t)codes[d] * scale;
            } else if (side->code == CODE_E4M3FN) {
                for (int64_t d = first; d < stop; d++) to[d] = value_of_e4m3fn(codes[d]) * scale;
            } else {
                for (int64_t d = first; d < stop; d += 2) {
                    const uint32_t pair = codes[d / 2];
                    to[d] = value_of_e2m1(pair & 15) * scale;
                    to[d + 1] = value_of_e2m1(pair >> 4) * scale;
                }
            }
        }
    }
}

#endif
