/* Append: encodes rows and writes them to slots; the bits of reference/codecs.py, by the steps of codec.py. */

#include "planes.h"
#include "small_floats.h"
#include "threads.h"

enum { LARGEST_GROUP = 1024, TOKENS_AN_ITEM = 16 };

struct append_job {
    struct side sides[2];
    const void *rows[2]; /* [token, head, dim], contiguous */
    const int64_t *slots;
    int64_t tokens, heads, page_size;
    int32_t rows_are_bf16;
};

static float scale_of_pattern(int32_t kind, uint32_t pattern) {
    return kind == SCALE_E4M3FN ? value_of_e4m3fn((uint8_t)pattern) : value_of_fp16((uint16_t)pattern);
}

/* The smallest normal scale with scale * top >= largest, or the largest scale there is. */
static uint32_t scale_pattern_for(int32_t kind, float largest, float top) {
    const struct small_float format = kind == SCALE_E4M3FN ? E4M3FN : FP16;
    const float least = scale_of_pattern(kind, 1u << format.mantissa_bits);
    const float most = scale_of_pattern(kind, format.largest_code);
    float wanted = largest / top;
    wanted = wanted < least ? least : wanted > most ? most : wanted;
    const uint32_t nearest = pattern_of(format, wanted);
    /* The nearest may lie below; scale * top is exact, so one comparison tells, and one step up is enough. */
    const int is_short = scale_of_pattern(kind, nearest) * top < largest;
    return is_short && nearest < format.largest_code ? nearest + 1 : nearest;
}

static void encode_group(const struct side *side, const float *x, uint8_t *codes, uint8_t *scale) {
    const int64_t group = side->group;
    const float top = side->code == CODE_INT8 ? 127.0f : side->code == CODE_E4M3FN ? 448.0f : 6.0f;
    const struct small_float format = side->scale == SCALE_E4M3FN ? E4M3FN : FP16;
    uint32_t most = 0;
    for (int64_t d = 0; d < group; d++) {
        /* Magnitudes compare as their patterns do, and a NaN as more than infinity. */
        const uint32_t magnitude = bits_of_float(x[d]) & 0x7FFFFFFF;
        most = magnitude > most ? magnitude : most;
    }
    const int is_void = most >= 0x7F800000;
    const uint32_t pattern = is_void ? format.nan_code : scale_pattern_for(side->scale, float_of_bits(most), top);
    if (side->scale == SCALE_E4M3FN) {
        *scale = (uint8_t)pattern;
    } else {
        const uint16_t half = (uint16_t)pattern;
        memcpy(scale, &half, sizeof half);
    }
    if (is_void) {
        const int64_t bytes = side->code == CODE_E2M1 ? group / 2 : group;
        memset(codes, side->code == CODE_E2M1 ? 0x77 : 0x7F, (size_t)bytes);
        return;
    }
    const float divisor = scale_of_pattern(side->scale, pattern);
    float quotients[LARGEST_GROUP];
    for (int64_t d = 0; d < group; d++) {
        const float quotient = x[d] / divisor;
        quotients[d] = quotient > top ? top : quotient < -top ? -top : quotient;
    }
    if (side->code == CODE_INT8) {
        for (int64_t d = 0; d < group; d++) codes[d] = (uint8_t)(int8_t)(int32_t)rintf(quotients[d]);
    } else if (side->code == CODE_E4M3FN) {
        for (int64_t d = 0; d < group; d++) codes[d] = (uint8_t)pattern_of(E4M3FN, quotients[d]);
    } else {
        for (int64_t d = 0; d < group; d += 2)
            codes[d / 2] = (uint8_t)(pattern_of(E2M1, quotients[d]) | pattern_of(E2M1, quotients[d + 1]) << 4);
    }
}

/* Encode element `first` on of a contiguous array of rows into one row of the planes. */
static void encode_row(const struct append_job *job, int which, int64_t first, uint8_t *codes, uint8_t *scales) {
    const struct side *side = &job->sides[which];
    const float *wide = (const float *)job->rows[which] + first;
    const uint16_t *narrow = (const uint16_t *)job->rows[which] + first;
    const int64_t dim = side->dim;
    if (side->code == CODE_FLOAT32) {
        float *to = (float *)codes;
        if (!job->rows_are_bf16) memcpy(to, wide, (size_t)dim * sizeof *to);
        else for (int64_t d = 0; d < dim; d++) to[d] = value_of_bf16(narrow[d]);
        return;
    }
    if (side->code == CODE_BFLOAT16) {
        uint16_t *to = (uint16_t *)codes;
        if (job->rows_are_bf16) memcpy(to, narrow, (size_t)dim * sizeof *to);
        else for (int64_t d = 0; d < dim; d++) to[d] = bf16_of(wide[d]);
        return;
    }
    const int64_t scale_bytes = side->scale == SCALE_E4M3FN ? 1 : 2;
    for (int64_t start = 0, group = 0; start < dim; start += side->group, group++) {
        float widened[LARGEST_GROUP];
        const float *x = wide + start;
        if (job->rows_are_bf16) {
            for (int64_t d = 0; d < side->group; d++) widened[d] = value_of_bf16(narrow[start + d]);
            x = widened;
        }
        uint8_t *group_codes = codes + (side->code == CODE_E2M1 ? start / 2 : start);
        encode_group(side, x, group_codes, scales + group * scale_bytes);
    }
}

static void append_item(void *argument, int64_t item, int worker) {
    (void)worker;
    const struct append_job *job = argument;
    const int64_t last = (item + 1) * TOKENS_AN_ITEM;
    for (int64_t token = item * TOKENS_AN_ITEM; token < job->tokens && token < last; token++) {
        const int64_t page = job->slots[token] / job->page_size, offset = job->slots[token] % job->page_size;
        for (int which = 0; which < 2; which++) {
            const struct side *side = &job->sides[which];
            for (int64_t head = 0; head < job->heads; head++) {
                uint8_t *scales = side->scale == SCALE_NONE ? 0 : row_of(&side->scales, page, head, offset);
                const int64_t first = (token * job->heads + head) * side->dim;
                encode_row(job, which, first, row_of(&side->codes, page, head, offset), scales);
            }
        }
    }
}

void kv_append(struct append_job *job, int threads) {
    for_each_item(append_item, job, (job->tokens + TOKENS_AN_ITEM - 1) / TOKENS_AN_ITEM, threads);
}
