/* Copies of whole bytes: columns from page to page, and runs of pages to and from the Host layout. */

#include <string.h>

#include "planes.h"
#include "threads.h"

/* Columns [0, columns) of page `source` to page `destination`, in each of `planes`. */
struct page_copy {
    int64_t source, destination, columns;
};

struct copy_job {
    const struct plane *planes;
    const struct page_copy *copies;
    int64_t plane_count, copy_count, heads;
};

static void copy_item(void *argument, int64_t item, int worker) {
    (void)worker;
    const struct copy_job *job = argument;
    const struct plane *plane = &job->planes[item % job->plane_count];
    const struct page_copy *copy = &job->copies[item / job->plane_count];
    for (int64_t head = 0; head < job->heads; head++) {
        const uint8_t *from = row_of(plane, copy->source, head, 0);
        uint8_t *to = row_of(plane, copy->destination, head, 0);
        /* Rows of one page and head follow one another. */
        memcpy(to, from, (size_t)(copy->columns * plane->row_bytes));
    }
}

void kv_copy_columns(struct copy_job *job, int threads) {
    for_each_item(copy_item, job, job->plane_count * job->copy_count, threads);
}

/* One section of an extent: [outer, slots, page_bytes] at `host`, against [outer, pages, page_bytes] at `device`. */
struct section {
    uint8_t *host, *device;
    int64_t outer, slots, pages, page_bytes;
};

struct run {
    int64_t device_page, slot, pages;
};

struct transfer_job {
    const struct section *sections;
    const struct run *runs;
    int64_t section_count, run_count;
    int32_t to_host;
};

static void transfer_item(void *argument, int64_t item, int worker) {
    (void)worker;
    const struct transfer_job *job = argument;
    const struct section *section = &job->sections[item / job->run_count];
    const struct run *run = &job->runs[item % job->run_count];
    const size_t size = (size_t)(run->pages * section->page_bytes);
    for (int64_t row = 0; row < section->outer; row++) {
        uint8_t *host = section->host + (row * section->slots + run->slot) * section->page_bytes;
        uint8_t *device = section->device + (row * section->pages + run->device_page) * section->page_bytes;
        memcpy(job->to_host ? host : device, job->to_host ? device : host, size);
    }
}

void kv_transfer(struct transfer_job *job, int threads) {
    for_each_item(transfer_item, job, job->section_count * job->run_count, threads);
}
