/* What Python hands over: planes, and how their bytes are found.  engine/kernels/cpu_library.py mirrors each struct.

   Every offset is a 64-bit number of bytes: a pool may pass 2^31 elements. */

#ifndef KV_PLANES_H
#define KV_PLANES_H

#include <stdint.h>

enum code { CODE_FLOAT32, CODE_BFLOAT16, CODE_INT8, CODE_E4M3FN, CODE_E2M1 };
enum scale { SCALE_NONE, SCALE_FLOAT16, SCALE_E4M3FN };

/* One plane, seen as [page, head, offset, stored] whatever its order in memory; rows are contiguous. */
struct plane {
    uint8_t *bytes;
    int64_t page_stride, head_stride, offset_stride, row_bytes;
};

/* Keys or values of one layer; `scales.bytes` is null where the numbers themselves are stored. */
struct side {
    struct plane codes, scales;
    int64_t dim, group;
    int32_t code, scale;
};

static inline uint8_t *row_of(const struct plane *plane, int64_t page, int64_t head, int64_t offset) {
    return plane->bytes + page * plane->page_stride + head * plane->head_stride + offset * plane->offset_stride;
}

#endif
