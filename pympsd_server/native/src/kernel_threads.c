// The threads that help a batch's own thread. The process keeps them; they sleep while there is no batch to help.
//
// A batch is open while its thread runs it. A thread of the pool joins an open batch as the next of its workers, and
// leaves when this worker has nothing more to run. `kernels_close` waits only for the threads that have joined.
#define _GNU_SOURCE
#include "kernels.h"
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened, left;
    Batch *open;
    uint32_t threads, asleep;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0};

static Batch *find_open(void) {
    Batch *b = pool.open;
    while (b && b->joined == b->worker_count)
        b = b->next_open;
    return b;
}

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        Batch *b = find_open();
        if (!b) {
            pool.asleep++;
            pthread_cond_wait(&pool.opened, &pool.lock);
            pool.asleep--;
            continue;
        }
        Worker *c = worker_of(b, b->joined++);
        b->running++;
        pthread_mutex_unlock(&pool.lock);
        kernels_work(c);
        pthread_mutex_lock(&pool.lock);
        if (--b->running == 0)
            pthread_cond_broadcast(&pool.left);
    }
    return NULL;
}

// A forked process does not have the threads.
static void forget_threads(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.opened, NULL);
    pthread_cond_init(&pool.left, NULL);
    pool.open = NULL, pool.threads = pool.asleep = 0;
}

static void start_thread(void) {
    pthread_t thread;
    sigset_t all, before;
    static int knows_forks;
    if (!knows_forks)
        knows_forks = pthread_atfork(NULL, NULL, forget_threads) == 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals must go to Python's own threads
    if (pthread_create(&thread, NULL, help, NULL) == 0) {
        pthread_detach(thread);
        pool.threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void kernels_open(Batch *b) {
    pthread_mutex_lock(&pool.lock);
    uint32_t helpers = b->worker_count - 1;
    while (pool.threads < helpers) {
        uint32_t before = pool.threads;
        start_thread();
        if (pool.threads == before)
            break; // the system refuses another thread: do the work with those that exist
    }
    atomic_store(&b->is_open, 1);
    b->next_open = pool.open, pool.open = b;
    if (helpers >= pool.asleep)
        pthread_cond_broadcast(&pool.opened);
    for (uint32_t i = 0; i < helpers && helpers < pool.asleep; i++)
        pthread_cond_signal(&pool.opened);
    pthread_mutex_unlock(&pool.lock);
}

void kernels_close(Batch *b) {
    if (!atomic_load(&b->is_open))
        return;
    pthread_mutex_lock(&pool.lock);
    Batch **place = &pool.open;
    while (*place != b)
        place = &(*place)->next_open;
    *place = b->next_open;
    while (b->running)
        pthread_cond_wait(&pool.left, &pool.lock);
    atomic_store(&b->is_open, 0);
    pthread_mutex_unlock(&pool.lock);
}
