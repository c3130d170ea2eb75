#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST_THREADS = 256 };

struct crew {
    item_function work;
    void *job;
    int64_t items;
    _Atomic int64_t next;
};

struct hand {
    struct crew *crew;
    int worker;
};

static void *take_items(void *argument) {
    const struct hand *hand = argument;
    struct crew *crew = hand->crew;
    for (;;) {
        const int64_t item = atomic_fetch_add_explicit(&crew->next, 1, memory_order_relaxed);
        if (item >= crew->items) return 0;
        crew->work(crew->job, item, hand->worker);
    }
}

void for_each_item(item_function work, void *job, int64_t items, int threads) {
    struct crew crew = {work, job, items, 0};
    struct hand hands[MOST_THREADS];
    pthread_t started[MOST_THREADS];
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > items) threads = (int)items;
    int running = 1;
    hands[0] = (struct hand){&crew, 0};
    while (running < threads) {
        hands[running] = (struct hand){&crew, running};
        /* Where the system grants no more threads, those that run do all the work. */
        if (pthread_create(&started[running], 0, take_items, &hands[running])) break;
        running++;
    }
    take_items(&hands[0]);
    for (int thread = 1; thread < running; thread++) pthread_join(started[thread], 0);
}
