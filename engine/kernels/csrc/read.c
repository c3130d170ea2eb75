/* Reads memory as fast as the kernels could: the yardstick that measurements hold them to. */

#include "threads.h"
#include "vector.h"

enum { FLOATS_AN_ITEM = 1 << 16 };

struct read_job {
    const float *from;
    int64_t count; /* floats, a multiple of FLOATS_AN_ITEM is read */
    float seen;    /* written, so that no compiler leaves the reading out */
};

static void read_item(void *argument, int64_t item, int worker) {
    (void)worker;
    struct read_job *job = argument;
    const float *from = job->from + item * FLOATS_AN_ITEM;
    vec sums[4] = {};
    for (int64_t at = 0; at < FLOATS_AN_ITEM; at += 4 * LANES)
        for (int part = 0; part < 4; part++) sums[part] += load(from + at + part * LANES);
    const float sum = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (sum == 1.0f) job->seen = sum;
}

void kv_read(struct read_job *job, int threads) {
    for_each_item(read_item, job, job->count / FLOATS_AN_ITEM, threads);
}
