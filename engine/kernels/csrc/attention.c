/* Paged attention: online softmax over tiles that are read where they lie, split over the context, then reduced.

   The work of an entry (one row of the batch) is cut into *items*: a KV head, a *block* of at most LINES lines, and a
   *split* of the context.  A line is one query of one head of the KV head's group, so that everything that reads the
   same keys is in one product.  A tile is at most TILE tokens of one page; its page id is looked up once.  An item
   reads only columns inside the context, so that what lies beyond never has to be masked away.

   An item's arithmetic depends on its own entry alone: neither page ids, nor the rest of the batch, nor which worker
   takes it change a bit of the result.  The block is finished by whoever finishes its last split, in the order of
   splits. */

#include <stdatomic.h>

#include "decode.h"
#include "planes.h"
#include "threads.h"
#include "vector.h"

enum { LINES = 32, TILE = 64 };

/* One row of the batch; `first_` numbers count over the entries before it. */
struct entry {
    int64_t row, first_query, queries, context;
    int64_t splits, pages_a_split, blocks;
    int64_t first_item, first_block, first_partial;
};

struct attention_job {
    struct side key, value;
    const void *q; /* [query, head, dim], contiguous */
    void *out;
    float *lse; /* [query, head] */
    const int32_t *tables;
    const struct entry *entries;
    float *scratch;        /* one region for each worker */
    float *partials;       /* a line's weighted values, sum and maximum, by split */
    int32_t *splits_left;  /* by block */
    int64_t table_stride, entry_count, item_count;
    int64_t page_size, kv_heads, group, dim, padded_dim, scratch_stride;
    float scale;
    int32_t causal, q_is_bf16;
};

/* A worker's memory; Python sizes it as SCRATCH_FLOATS says (cpu_backend.py). */
struct scratch {
    float *q, *weighted, *scores, *keys, *values, *most, *total;
};

static struct scratch scratch_of(const struct attention_job *job, int worker) {
    struct scratch at;
    at.q = job->scratch + worker * job->scratch_stride;
    at.weighted = at.q + LINES * job->padded_dim;
    at.scores = at.weighted + LINES * job->padded_dim;
    at.keys = at.scores + LINES * TILE;
    at.values = at.keys + TILE * job->padded_dim;
    at.most = at.values + TILE * job->padded_dim;
    at.total = at.most + LINES;
    return at;
}

/* Rows [offset, offset + count) of a page as float32 with zeros up to the padded dimension: the plane itself where it
   is that already, else a decoded copy in `decoded`.  `stride` counts floats. */
static const float *tile_rows(const struct attention_job *job, const struct side *side, int64_t page, int64_t head,
                              int64_t offset, int64_t count, float *decoded, int64_t *stride) {
    const uint8_t *codes = row_of(&side->codes, page, head, offset);
    if (side->code == CODE_FLOAT32 && job->padded_dim == job->dim) {
        *stride = side->codes.offset_stride / (int64_t)sizeof(float);
        return (const float *)codes;
    }
    const uint8_t *scales = side->scale == SCALE_NONE ? 0 : row_of(&side->scales, page, head, offset);
    *stride = job->padded_dim;
    for (int64_t token = 0; token < count; token++) {
        float *to = decoded + token * job->padded_dim;
        decode_row(side, codes + token * side->codes.offset_stride,
                   scales ? scales + token * side->scales.offset_stride : 0, to);
        for (int64_t d = job->dim; d < job->padded_dim; d++) to[d] = 0.0f;
    }
    return decoded;
}

/* Scores of `lines` queries against `count` keys, line after line TILE apart.  `lines` is a constant at each call. */
INLINE void score_lines(int lines, const float *q, const float *keys, int64_t stride, int64_t dim, int64_t count,
                        float *scores) {
    int64_t token = 0;
    for (; token + 4 <= count; token += 4) {
        const float *key = keys + token * stride;
        vec sums[4][4] = {};
        for (int64_t d = 0; d < dim; d += LANES) {
            const vec k0 = load(key + d), k1 = load(key + stride + d);
            const vec k2 = load(key + 2 * stride + d), k3 = load(key + 3 * stride + d);
            for (int line = 0; line < lines; line++) {
                const vec x = load(q + line * dim + d);
                sums[line][0] += x * k0;
                sums[line][1] += x * k1;
                sums[line][2] += x * k2;
                sums[line][3] += x * k3;
            }
        }
        for (int line = 0; line < lines; line++) {
            const quad four = sums_of(sums[line][0], sums[line][1], sums[line][2], sums[line][3]);
            memcpy(scores + line * TILE + token, &four, sizeof four);
        }
    }
    for (; token < count; token++) {
        const float *key = keys + token * stride;
        for (int line = 0; line < lines; line++) {
            vec sum = {};
            for (int64_t d = 0; d < dim; d += LANES) sum += load(q + line * dim + d) * load(key + d);
            scores[line * TILE + token] = sum_of(sum);
        }
    }
}

/* Add `count` weighted values to `lines` sums of `vectors` vectors each; both are constants at each call. */
INLINE void add_block(int lines, int vectors, float *sums, int64_t dim, const float *weights, const float *values,
                      int64_t stride, int64_t count) {
    vec held[4][4];
    for (int line = 0; line < lines; line++)
        for (int part = 0; part < vectors; part++) held[line][part] = load(sums + line * dim + part * LANES);
    for (int64_t token = 0; token < count; token++) {
        const float *value = values + token * stride;
        for (int part = 0; part < vectors; part++) {
            const vec v = load(value + part * LANES);
            for (int line = 0; line < lines; line++) held[line][part] += weights[line * TILE + token] * v;
        }
    }
    for (int line = 0; line < lines; line++)
        for (int part = 0; part < vectors; part++) store(sums + line * dim + part * LANES, held[line][part]);
}

INLINE void add_lines(int lines, float *sums, int64_t dim, const float *weights, const float *values, int64_t stride,
                      int64_t count) {
    int64_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES)
        add_block(lines, 4, sums + d, dim, weights, values + d, stride, count);
    for (; d < dim; d += LANES) add_block(lines, 1, sums + d, dim, weights, values + d, stride, count);
}

/* One constant for each number of lines that are taken together. */
#define BY_FOURS(lines, call)                                                         \
    for (int first = 0; first < (lines);) {                                           \
        const int left = (lines)-first;                                               \
        if (left >= 4) { enum { taken = 4 }; call; first += taken; }                  \
        else if (left >= 2) { enum { taken = 2 }; call; first += taken; }             \
        else { enum { taken = 1 }; call; first += taken; }                            \
    }

/* Turn the scores of one line into weights, and bring its sum and its weighted values to the new maximum.  Columns at
   and beyond `visible` get the weight 0. */
static void weigh(float *scores, int64_t count, int64_t visible, float *most, float *total, float *weighted,
                  int64_t dim) {
    if (visible > count) visible = count;
    if (visible <= 0) {
        memset(scores, 0, (size_t)count * sizeof *scores);
        return;
    }
    const int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t column = visible; column < padded; column++) scores[column] = -INFINITY;
    vec best = load(scores);
    for (int64_t column = LANES; column < padded; column += LANES) best = larger(load(scores + column), best);
    const float tile_most = largest_of(best);
    const float new_most = tile_most > *most ? tile_most : *most;
    if (new_most > *most) {
        const float shrink = exp_of_one(*most - new_most);
        *total *= shrink;
        for (int64_t d = 0; d < dim; d += LANES) store(weighted + d, load(weighted + d) * shrink);
        *most = new_most;
    }
    vec sum = {};
    for (int64_t column = 0; column < padded; column += LANES) {
        const vec weight = exp_of(load(scores + column) - new_most);
        store(scores + column, weight);
        sum += weight;
    }
    *total += sum_of(sum);
}

static void store_number(void *to, int64_t index, float value, int is_bf16) {
    if (is_bf16) ((uint16_t *)to)[index] = bf16_of(value);
    else ((float *)to)[index] = value;
}

/* Where line `line` of an entry stands in q, out and lse, in rows of `dim`. */
static int64_t place_of(const struct attention_job *job, const struct entry *entry, int64_t head, int64_t line) {
    const int64_t query = entry->first_query + line / job->group;
    return (query * job->kv_heads + head) * job->group + line % job->group;
}

static void finish_line(const struct attention_job *job, int64_t place, const float *weighted, float total,
                        float most) {
    for (int64_t d = 0; d < job->dim; d++)
        store_number(job->out, place * job->dim + d, weighted[d] / total, job->q_is_bf16);
    job->lse[place] = most + logf(total);
}

static int64_t lines_of_block(const struct attention_job *job, const struct entry *entry, int64_t block) {
    const int64_t left = entry->queries * job->group - block * LINES;
    return left < LINES ? left : LINES;
}

/* A split's results for one block and head: for each line the weighted values, then sum and maximum. */
static float *partial_of(const struct attention_job *job, const struct entry *entry, int64_t block, int64_t head,
                         int64_t split, int64_t line) {
    const int64_t held = entry->queries * job->group < LINES ? entry->queries * job->group : LINES;
    const int64_t index = (((block * job->kv_heads + head) * entry->splits + split) * held) + line;
    return job->partials + entry->first_partial + index * (job->padded_dim + LANES);
}

static void reduce_block(const struct attention_job *job, const struct entry *entry, int64_t block, int64_t head,
                         float *sums) {
    const int64_t dim = job->padded_dim;
    for (int64_t line = 0; line < lines_of_block(job, entry, block); line++) {
        float most = -INFINITY, total = 0.0f;
        for (int64_t split = 0; split < entry->splits; split++) {
            const float found = partial_of(job, entry, block, head, split, line)[dim + 1];
            most = found > most ? found : most;
        }
        memset(sums, 0, (size_t)dim * sizeof *sums);
        for (int64_t split = 0; split < entry->splits; split++) {
            const float *partial = partial_of(job, entry, block, head, split, line);
            if (partial[dim] == 0.0f) continue; /* the line sees nothing of this split */
            const float shrink = exp_of_one(partial[dim + 1] - most);
            total += partial[dim] * shrink;
            for (int64_t d = 0; d < dim; d += LANES) store(sums + d, load(sums + d) + load(partial + d) * shrink);
        }
        finish_line(job, place_of(job, entry, head, block * LINES + line), sums, total, most);
    }
}

static void load_queries(const struct attention_job *job, const struct entry *entry, int64_t head, int64_t first_line,
                         int64_t lines, float *to) {
    for (int64_t line = 0; line < lines; line++, to += job->padded_dim) {
        const int64_t first = place_of(job, entry, head, first_line + line) * job->dim;
        for (int64_t d = 0; d < job->dim; d++) {
            const float x = job->q_is_bf16 ? value_of_bf16(((const uint16_t *)job->q)[first + d])
                                           : ((const float *)job->q)[first + d];
            to[d] = x * job->scale;
        }
        for (int64_t d = job->dim; d < job->padded_dim; d++) to[d] = 0.0f;
    }
}

/* The number of positions that a line sees. */
static int64_t visible_to(const struct attention_job *job, const struct entry *entry, int64_t line) {
    return job->causal ? entry->context - entry->queries + 1 + line / job->group : entry->context;
}

static void attend_tile(const struct attention_job *job, const struct entry *entry, struct scratch at, int64_t head,
                        int64_t page, int64_t position, int64_t count, int64_t first_line, int64_t lines) {
    const int64_t dim = job->padded_dim, offset = position & (job->page_size - 1);
    int64_t stride;
    const float *keys = tile_rows(job, &job->key, page, head, offset, count, at.keys, &stride);
    BY_FOURS(lines, score_lines(taken, at.q + first * dim, keys, stride, dim, count, at.scores + first * TILE))
    for (int64_t line = 0; line < lines; line++) {
        const int64_t visible = visible_to(job, entry, first_line + line) - position;
        weigh(at.scores + line * TILE, count, visible, at.most + line, at.total + line, at.weighted + line * dim, dim);
    }
    const float *values = tile_rows(job, &job->value, page, head, offset, count, at.values, &stride);
    BY_FOURS(lines, add_lines(taken, at.weighted + first * dim, dim, at.scores + first * TILE, values, stride, count))
}

static const struct entry *entry_of(const struct attention_job *job, int64_t item) {
    int64_t low = 0, high = job->entry_count;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (job->entries[middle].first_item <= item) low = middle;
        else high = middle;
    }
    return &job->entries[low];
}

static void attend_item(void *argument, int64_t item, int worker) {
    const struct attention_job *job = argument;
    const struct entry *entry = entry_of(job, item);
    const struct scratch at = scratch_of(job, worker);
    const int64_t dim = job->padded_dim, within = item - entry->first_item;
    const int64_t head = within % job->kv_heads;
    const int64_t split = within / job->kv_heads % entry->splits;
    const int64_t block = within / job->kv_heads / entry->splits;
    const int64_t first_line = block * LINES, lines = lines_of_block(job, entry, block);

    load_queries(job, entry, head, first_line, lines, at.q);
    memset(at.weighted, 0, (size_t)(lines * dim) * sizeof(float));
    for (int64_t line = 0; line < lines; line++) at.most[line] = -INFINITY, at.total[line] = 0.0f;

    const int64_t start = split * entry->pages_a_split * job->page_size;
    const int64_t sees = visible_to(job, entry, first_line + lines - 1);
    int64_t stop = start + entry->pages_a_split * job->page_size;
    if (stop > sees) stop = sees;
    const int32_t *table = job->tables + entry->row * job->table_stride;
    const int64_t tile = job->page_size < TILE ? job->page_size : TILE;
    int64_t page = 0;
    for (int64_t position = start; position < stop; position += tile) {
        if ((position & (job->page_size - 1)) == 0) page = table[position / job->page_size];
        const int64_t count = stop - position < tile ? stop - position : tile;
        attend_tile(job, entry, at, head, page, position, count, first_line, lines);
    }

    if (entry->splits == 1) {
        for (int64_t line = 0; line < lines; line++)
            finish_line(job, place_of(job, entry, head, first_line + line), at.weighted + line * dim, at.total[line],
                        at.most[line]);
        return;
    }
    for (int64_t line = 0; line < lines; line++) {
        float *partial = partial_of(job, entry, block, head, split, line);
        memcpy(partial, at.weighted + line * dim, (size_t)dim * sizeof *partial);
        partial[dim] = at.total[line], partial[dim + 1] = at.most[line];
    }
    _Atomic int32_t *left = (_Atomic int32_t *)&job->splits_left[entry->first_block + block * job->kv_heads + head];
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) == 1)
        reduce_block(job, entry, block, head, at.weighted);
}

void kv_attention(struct attention_job *job, int threads) {
    for (int64_t index = 0; index < job->entry_count; index++) {
        const struct entry *entry = &job->entries[index];
        for (int64_t block = 0; block < entry->blocks * job->kv_heads; block++)
            job->splits_left[entry->first_block + block] = (int32_t)entry->splits;
    }
    for_each_item(attend_item, job, job->item_count, threads);
}

/* Changes with every struct above; Python refuses a library that answers otherwise. */
int32_t kv_interface(void) { return 1; }

/* For the tests: e to the power of each of `count` numbers, a multiple of LANES apart from the last few. */
void kv_exp(const float *x, float *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = exp_of_one(x[i]);
}
