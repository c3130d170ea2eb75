/* Paged attention: online softmax over tiles that are read where they lie, split over the context, then reduced.

   The work of an entry (one row of the batch) is cut into *items*: a *block* of lines, a *span* of KV heads, and a
   *split* of the context.  A line is one query of one head of the KV head's group, so that everything that reads the
   same keys is in one product; an item has at most LINES of them over all its heads.  A tile is at most TILE tokens of
   one page; its page id is looked up once.  An item reads only columns inside the context, so that what lies beyond
   never has to be masked away.

   Why spans: in a page-major plane the heads of a page lie side by side, so a decode step, which has few lines a head,
   reads keys and then values in runs of whole pages.  One head of a page at a time is a third slower.

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
    int64_t splits, pages_a_split, blocks, lines_a_block, heads_a_span, spans;
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
    int32_t *splits_left;  /* by block and span */
    int64_t table_stride, entry_count, item_count;
    int64_t page_size, kv_heads, group, dim, padded_dim, scratch_stride;
    float scale;
    int32_t causal, q_is_bf16;
};

/* A worker's memory; `_scratch_floats` of cpu_backend.py says how much. */
struct scratch {
    float *q, *weighted, *scores, *decoded, *most, *total;
};

static struct scratch scratch_of(const struct attention_job *job, int worker) {
    struct scratch at;
    at.q = job->scratch + worker * job->scratch_stride;
    at.weighted = at.q + LINES * job->padded_dim;
    at.scores = at.weighted + LINES * job->padded_dim;
    at.decoded = at.scores + LINES * TILE;
    at.most = at.decoded + TILE * job->padded_dim;
    at.total = at.most + LINES;
    return at;
}

/* Rows of a tile as numbers, float32 or (`is_bf16`) bfloat16, up to the padded dimension; `stride` is in bytes. */
struct rows {
    const uint8_t *first;
    int64_t stride;
    int is_bf16;
};

/* Bytes that will be read after these: `row_bytes` of each row, token by token. */
struct ahead {
    const uint8_t *first;
    int64_t stride, row_bytes;
};

enum { CACHE_LINE = 64, TO_SECOND_CACHE = 2 };

/* Processors fetch ahead by themselves, but not from one page to the next, nor from keys to values; and a tile is too
   short for them to learn.  So rows of the next tile are asked for while those of this one are worked on. */
INLINE void fetch_row(struct ahead ahead, int64_t token) {
    const uint8_t *row = ahead.first + token * ahead.stride;
    for (int64_t byte = 0; byte < ahead.row_bytes; byte += CACHE_LINE) __builtin_prefetch(row + byte, 0, TO_SECOND_CACHE);
}

static struct ahead ahead_of(const struct side *side, int64_t page, int64_t head, int64_t offset) {
    return (struct ahead){row_of(&side->codes, page, head, offset), side->codes.offset_stride, side->codes.row_bytes};
}

/* Rows [offset, offset + count) of a page: the plane's own where it holds numbers in whole vectors, else decoded to
   `decoded`, with zeros up to the padded dimension. */
static struct rows tile_rows(const struct attention_job *job, const struct side *side, int64_t page, int64_t head,
                             int64_t offset, int64_t count, float *decoded) {
    const uint8_t *codes = row_of(&side->codes, page, head, offset);
    if (side->scale == SCALE_NONE && job->padded_dim == job->dim)
        return (struct rows){codes, side->codes.offset_stride, side->code == CODE_BFLOAT16};
    const uint8_t *scales = side->scale == SCALE_NONE ? 0 : row_of(&side->scales, page, head, offset);
    for (int64_t token = 0; token < count; token++) {
        float *to = decoded + token * job->padded_dim;
        decode_row(side, codes + token * side->codes.offset_stride,
                   scales ? scales + token * side->scales.offset_stride : 0, to);
        for (int64_t d = job->dim; d < job->padded_dim; d++) to[d] = 0.0f;
    }
    return (struct rows){(const uint8_t *)decoded, job->padded_dim * (int64_t)sizeof(float), 0};
}

INLINE vec load_number(int is_bf16, const uint8_t *row, int64_t d) {
    return is_bf16 ? load_bf16((const uint16_t *)row + d) : load((const float *)row + d);
}

/* Scores of `lines` queries against `count` keys, line after line TILE apart.  `lines` and `is_bf16` are constants at
   each call. */
INLINE void score_lines(int lines, int is_bf16, const float *q, struct rows keys, int64_t dim, int64_t count,
                        float *scores, struct ahead ahead) {
    int64_t token = 0;
    for (; token + 4 <= count; token += 4) {
        const uint8_t *key = keys.first + token * keys.stride;
        vec sums[4][4] = {};
        for (int64_t d = 0; d < dim; d += LANES) {
            const vec k0 = load_number(is_bf16, key, d), k1 = load_number(is_bf16, key + keys.stride, d);
            const vec k2 = load_number(is_bf16, key + 2 * keys.stride, d);
            const vec k3 = load_number(is_bf16, key + 3 * keys.stride, d);
            for (int line = 0; line < lines; line++) {
                const vec x = load(q + line * dim + d);
                sums[line][0] += x * k0;
                sums[line][1] += x * k1;
                sums[line][2] += x * k2;
                sums[line][3] += x * k3;
            }
        }
        for (int next = 0; next < 4; next++) fetch_row(ahead, token + next);
        for (int line = 0; line < lines; line++) {
            const quad four = sums_of(sums[line][0], sums[line][1], sums[line][2], sums[line][3]);
            memcpy(scores + line * TILE + token, &four, sizeof four);
        }
    }
    for (; token < count; token++) {
        const uint8_t *key = keys.first + token * keys.stride;
        fetch_row(ahead, token);
        for (int line = 0; line < lines; line++) {
            vec sum = {};
            for (int64_t d = 0; d < dim; d += LANES) sum += load(q + line * dim + d) * load_number(is_bf16, key, d);
            scores[line * TILE + token] = sum_of(sum);
        }
    }
}

/* Add `count` weighted values, from element `d` on, to `lines` sums of `vectors` vectors each; the first three are
   constants at each call. */
INLINE void add_block(int lines, int vectors, int is_bf16, float *sums, int64_t dim, int64_t d, const float *weights,
                      struct rows values, int64_t count, struct ahead ahead) {
    vec held[4][4];
    for (int line = 0; line < lines; line++)
        for (int part = 0; part < vectors; part++) held[line][part] = load(sums + line * dim + d + part * LANES);
    for (int64_t token = 0; token < count; token++) {
        const uint8_t *value = values.first + token * values.stride;
        if (d == 0) fetch_row(ahead, token);
        for (int part = 0; part < vectors; part++) {
            const vec v = load_number(is_bf16, value, d + part * LANES);
            for (int line = 0; line < lines; line++) held[line][part] += weights[line * TILE + token] * v;
        }
    }
    for (int line = 0; line < lines; line++)
        for (int part = 0; part < vectors; part++) store(sums + line * dim + d + part * LANES, held[line][part]);
}

INLINE void add_lines(int lines, int is_bf16, float *sums, int64_t dim, const float *weights, struct rows values,
                      int64_t count, struct ahead ahead) {
    int64_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES)
        add_block(lines, 4, is_bf16, sums, dim, d, weights, values, count, ahead);
    for (; d < dim; d += LANES) add_block(lines, 1, is_bf16, sums, dim, d, weights, values, count, ahead);
}

/* `call` with the constants `taken`, for each number of lines that are taken together, and `is_bf16`. */
#define BY_KIND(rows, call) if ((rows).is_bf16) { enum { is_bf16 = 1 }; call; } else { enum { is_bf16 = 0 }; call; }
#define BY_FOURS(lines, rows, call)                                                    \
    for (int first = 0; first < (lines);) {                                            \
        const int left = (int)(lines)-first;                                           \
        if (left >= 4) { enum { taken = 4 }; BY_KIND(rows, call) first += taken; }      \
        else if (left >= 2) { enum { taken = 2 }; BY_KIND(rows, call) first += taken; } \
        else { enum { taken = 1 }; BY_KIND(rows, call) first += taken; }                \
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

/* What an item works on. */
struct work {
    const struct entry *entry;
    int64_t block, span, split, first_head, heads, first_line, lines;
};

/* A split's results for one line: the weighted values, then sum and maximum. */
static float *partial_of(const struct attention_job *job, const struct work *work, int64_t split, int64_t head,
                         int64_t line) {
    const struct entry *entry = work->entry;
    const int64_t place = (work->block * job->kv_heads + work->first_head + head) * entry->splits + split;
    return job->partials + entry->first_partial +
           (place * entry->lines_a_block + line) * (job->padded_dim + LANES);
}

static void reduce_line(const struct attention_job *job, const struct work *work, int64_t head, int64_t line,
                        float *sums) {
    const int64_t dim = job->padded_dim, splits = work->entry->splits;
    float most = -INFINITY, total = 0.0f;
    for (int64_t split = 0; split < splits; split++) {
        const float found = partial_of(job, work, split, head, line)[dim + 1];
        most = found > most ? found : most;
    }
    memset(sums, 0, (size_t)dim * sizeof *sums);
    for (int64_t split = 0; split < splits; split++) {
        const float *partial = partial_of(job, work, split, head, line);
        if (partial[dim] == 0.0f) continue; /* the line sees nothing of this split */
        const float shrink = exp_of_one(partial[dim + 1] - most);
        total += partial[dim] * shrink;
        for (int64_t d = 0; d < dim; d += LANES) store(sums + d, load(sums + d) + load(partial + d) * shrink);
    }
    finish_line(job, place_of(job, work->entry, work->first_head + head, work->first_line + line), sums, total, most);
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

/* Where a tile is: `next_page` and `next_offset` say which one follows. */
struct tile {
    int64_t page, position, offset, count, next_page, next_offset;
};

/* Keys of all heads, then values of all heads; what is fetched ahead is the next head's, the values' first head behind
   the keys' last, and the next tile's keys behind the values' last. */
static void attend_tile(const struct attention_job *job, const struct work *work, struct scratch at, struct tile tile) {
    const int64_t dim = job->padded_dim, count = tile.count, lines = work->lines;
    for (int64_t head = 0; head < work->heads; head++) {
        const int64_t absolute = work->first_head + head, last = head + 1 == work->heads;
        const float *q = at.q + head * lines * dim;
        float *scores = at.scores + head * lines * TILE;
        const struct rows keys = tile_rows(job, &job->key, tile.page, absolute, tile.offset, count, at.decoded);
        const struct ahead ahead = last ? ahead_of(&job->value, tile.page, work->first_head, tile.offset)
                                        : ahead_of(&job->key, tile.page, absolute + 1, tile.offset);
        BY_FOURS(lines, keys,
                 score_lines(taken, is_bf16, q + first * dim, keys, dim, count, scores + first * TILE,
                             first == 0 ? ahead : (struct ahead){}))
        for (int64_t line = 0; line < lines; line++) {
            const int64_t visible = visible_to(job, work->entry, work->first_line + line) - tile.position;
            const int64_t slot = head * lines + line;
            weigh(scores + line * TILE, count, visible, at.most + slot, at.total + slot, at.weighted + slot * dim, dim);
        }
    }
    for (int64_t head = 0; head < work->heads; head++) {
        const int64_t absolute = work->first_head + head, last = head + 1 == work->heads;
        float *weighted = at.weighted + head * lines * dim;
        const float *weights = at.scores + head * lines * TILE;
        const struct rows values = tile_rows(job, &job->value, tile.page, absolute, tile.offset, count, at.decoded);
        const struct ahead ahead = last ? ahead_of(&job->key, tile.next_page, work->first_head, tile.next_offset)
                                        : ahead_of(&job->value, tile.page, absolute + 1, tile.offset);
        BY_FOURS(lines, values,
                 add_lines(taken, is_bf16, weighted + first * dim, dim, weights + first * TILE, values, count,
                           first == 0 ? ahead : (struct ahead){}))
    }
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

static struct work work_of(const struct attention_job *job, int64_t item) {
    const struct entry *entry = entry_of(job, item);
    const int64_t within = item - entry->first_item;
    struct work work = {.entry = entry};
    work.span = within % entry->spans;
    work.split = within / entry->spans % entry->splits;
    work.block = within / entry->spans / entry->splits;
    work.first_head = work.span * entry->heads_a_span;
    const int64_t heads_left = job->kv_heads - work.first_head;
    work.heads = heads_left < entry->heads_a_span ? heads_left : entry->heads_a_span;
    work.first_line = work.block * entry->lines_a_block;
    const int64_t lines_left = entry->queries * job->group - work.first_line;
    work.lines = lines_left < entry->lines_a_block ? lines_left : entry->lines_a_block;
    return work;
}

/* Go through the tiles of one split. */
static void attend_split(const struct attention_job *job, const struct work *work, struct scratch at) {
    const int64_t split_tokens = work->entry->pages_a_split * job->page_size, start = work->split * split_tokens;
    const int64_t sees = visible_to(job, work->entry, work->first_line + work->lines - 1);
    const int64_t stop = start + split_tokens < sees ? start + split_tokens : sees;
    const int32_t *table = job->tables + work->entry->row * job->table_stride;
    const int64_t step = job->page_size < TILE ? job->page_size : TILE;
    struct tile tile = {.next_page = start < stop ? table[start / job->page_size] : 0};
    for (int64_t position = start; position < stop; position += step) {
        const int64_t next = position + step;
        tile.page = tile.next_page, tile.offset = tile.next_offset, tile.position = position;
        tile.count = stop - position < step ? stop - position : step;
        tile.next_offset = next & (job->page_size - 1);
        if (tile.next_offset == 0 && next < stop) tile.next_page = table[next / job->page_size];
        attend_tile(job, work, at, tile);
    }
}

static void attend_item(void *argument, int64_t item, int worker) {
    const struct attention_job *job = argument;
    const struct work work = work_of(job, item);
    const struct entry *entry = work.entry;
    const struct scratch at = scratch_of(job, worker);
    const int64_t dim = job->padded_dim, lines = work.lines, slots = work.heads * lines;

    for (int64_t head = 0; head < work.heads; head++)
        load_queries(job, entry, work.first_head + head, work.first_line, lines, at.q + head * lines * dim);
    memset(at.weighted, 0, (size_t)(slots * dim) * sizeof(float));
    for (int64_t slot = 0; slot < slots; slot++) at.most[slot] = -INFINITY, at.total[slot] = 0.0f;
    attend_split(job, &work, at);

    for (int64_t slot = 0; slot < slots; slot++) {
        const int64_t head = slot / lines, line = slot % lines;
        const float *weighted = at.weighted + slot * dim;
        if (entry->splits == 1) {
            const int64_t place = place_of(job, entry, work.first_head + head, work.first_line + line);
            finish_line(job, place, weighted, at.total[slot], at.most[slot]);
        } else {
            float *partial = partial_of(job, &work, work.split, head, line);
            memcpy(partial, weighted, (size_t)dim * sizeof *partial);
            partial[dim] = at.total[slot], partial[dim + 1] = at.most[slot];
        }
    }
    if (entry->splits == 1) return;
    _Atomic int32_t *left = (_Atomic int32_t *)&job->splits_left[entry->first_block + work.block * entry->spans + work.span];
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) > 1) return;
    for (int64_t slot = 0; slot < slots; slot++) reduce_line(job, &work, slot / lines, slot % lines, at.weighted);
}

void kv_attention(struct attention_job *job, int threads) {
    for (int64_t index = 0; index < job->entry_count; index++) {
        const struct entry *entry = &job->entries[index];
        for (int64_t block = 0; block < entry->blocks * entry->spans; block++)
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
