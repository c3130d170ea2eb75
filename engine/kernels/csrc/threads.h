/* Independent items over threads that live as long as the call: nothing survives it, so a fork between calls is safe. */

#ifndef KV_THREADS_H
#define KV_THREADS_H

#include <stdint.h>

/* `worker` is 0 to the number of threads less one; which worker takes an item is left to chance. */
typedef void (*item_function)(void *job, int64_t item, int worker);

void for_each_item(item_function work, void *job, int64_t items, int threads);

#endif
