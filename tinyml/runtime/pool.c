/* A pool of threads that run one kernel together.

   A caller cuts a kernel's blocks into shares of equal size, one a thread, and posts the call to
   its workers' mailboxes. Each thread takes its share a part at a time, and when that is done,
   half of what another one has not taken: blocks of one kernel differ in cost, and the system may
   give a core away. So a late worker costs time, never a wait; at the end the caller takes back
   the mail that nobody opened. Workers look at their mailbox for a while after each call and then
   sleep. Who sleeps has no mail for what would be done before he came. One caller uses the pool at
   a time; another one runs its kernel alone.
*/
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef void (*kernel_function)(void *const *buffers, long start, long end);
/* One that may find fault with values: it notes the first fault in two words. */
typedef void (*checking_function)(void *const *buffers, long start, long end, long *fault);

struct call {
    kernel_function run;
    void *const *buffers;
    long grid;
    int chunks, wakes; /* `wakes`: whether it is worth waking threads for */
    long *fault; /* NULL: the kernel finds no fault */
    long unit; /* blocks that are taken together, so that their count fits 32 bits */
};

/* What is left of a thread's blocks: its first unit above, its end below, in 32 bits each. */
struct share {
    _Alignas(128) _Atomic uint64_t left; /* a line of its own for each thread */
};

struct worker {
    _Alignas(128) _Atomic(const struct call *) mailbox;
    int place, called; /* which share is its own; whether it was posted the call of now */
    atomic_int asleep;
    pthread_mutex_t lock;
    pthread_cond_t posted;
    pthread_t thread;
};

enum { MOST_WORKERS = 1023, LOOKS_PER_CLOCK = 32, PARTS = 4 };
/* Nanoseconds that are waited awake. Who sleeps comes some 100 us late on a virtual machine, so
   workers stay awake over the last part of the others and the gap between two launches from
   Python; a caller, who waits for what has begun, stays awake longer. */
static const long SPIN = 200000, CALLER_SPIN = 1000000;

static struct worker *workers[MOST_WORKERS];
static int worker_count;
static struct share shares[MOST_WORKERS + 1]; /* the caller's is the first */
static const struct call stop; /* its address in a mailbox ends a worker */
static atomic_flag busy = ATOMIC_FLAG_INIT;
static atomic_int pending, caller_asleep;
static pthread_mutex_t finish_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void run_blocks(const struct call *call, long start, long end) {
    if (call->fault)
        ((checking_function)call->run)(call->buffers, start, end, call->fault);
    else
        call->run(call->buffers, start, end);
}

static uint64_t range(uint64_t first, uint64_t end) { return first << 32 | end; }

/* Take one of `parts` of what is left, at the front or at the back; 0 if nothing is left. */
static uint64_t take(struct share *share, int parts, int back) {
    uint64_t left = atomic_load(&share->left), taken, rest;
    do {
        uint64_t first = left >> 32, end = left & UINT32_MAX;
        if (first == end) return 0;
        uint64_t count = (end - first + parts - 1) / parts;
        taken = back ? range(end - count, end) : range(first, first + count);
        rest = back ? range(first, end - count) : range(first + count, end);
    } while (!atomic_compare_exchange_weak(&share->left, &left, rest));
    return taken;
}

/* Move half of what is left of another share to this empty one; 0 if nothing is left of any. */
static int steal(const struct call *call, int place) {
    for (int i = 1; i < call->chunks; i++) {
        uint64_t taken = take(&shares[(place + i) % call->chunks], 2, 1);
        if (!taken) continue;
        atomic_store(&shares[place].left, taken);
        return 1;
    }
    return 0;
}

static void run_share(const struct call *call, int place) {
    do {
        uint64_t part;
        while ((part = take(&shares[place], PARTS, 0))) {
            long end = (long)(part & UINT32_MAX) * call->unit;
            run_blocks(call, (long)(part >> 32) * call->unit, end < call->grid ? end : call->grid);
        }
    } while (steal(call, place));
}

/* The call in the mailbox, or NULL if none came within SPIN. */
static const struct call *look(struct worker *self) {
    long end = now() + SPIN;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (atomic_load_explicit(&self->mailbox, memory_order_relaxed)) {
                const struct call *call = atomic_exchange(&self->mailbox, NULL);
                if (call) return call;
            }
            relax();
        }
    } while (now() < end);
    return NULL;
}

/* A sleeper says so before it looks again, and a poster posts before it asks who sleeps: with
   both in one total order, one of them sees the other. Who is woken looks around for a while even
   if the call was taken back: more are likely to come. */
static void sleep_until_posted(struct worker *self) {
    pthread_mutex_lock(&self->lock);
    atomic_store(&self->asleep, 1);
    if (!atomic_load(&self->mailbox)) pthread_cond_wait(&self->posted, &self->lock);
    atomic_store(&self->asleep, 0);
    pthread_mutex_unlock(&self->lock);
}

static void post(struct worker *worker, const struct call *call) {
    atomic_store(&worker->mailbox, call);
    if (atomic_load(&worker->asleep)) {
        pthread_mutex_lock(&worker->lock);
        pthread_cond_signal(&worker->posted);
        pthread_mutex_unlock(&worker->lock);
    }
}

static void finish_share(void) {
    if (atomic_fetch_sub(&pending, 1) == 1 && atomic_load(&caller_asleep)) {
        pthread_mutex_lock(&finish_lock);
        pthread_cond_signal(&finished);
        pthread_mutex_unlock(&finish_lock);
    }
}

static void *work(void *argument) {
    struct worker *self = argument;
    for (;;) {
        const struct call *call;
        while (!(call = look(self))) sleep_until_posted(self);
        if (call == &stop) return NULL;
        run_share(call, self->place);
        finish_share();
    }
}

static void wait_for_workers(void) {
    long end = now() + CALLER_SPIN;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (!atomic_load_explicit(&pending, memory_order_acquire)) return;
            relax();
        }
    } while (now() < end);
    pthread_mutex_lock(&finish_lock);
    atomic_store(&caller_asleep, 1);
    while (atomic_load(&pending)) pthread_cond_wait(&finished, &finish_lock);
    atomic_store(&caller_asleep, 0);
    pthread_mutex_unlock(&finish_lock);
}

/* A child process has only the thread that forked: the pool starts again from nothing. */
static void forget_workers(void) {
    worker_count = 0;
    atomic_flag_clear(&busy);
    atomic_store(&pending, 0);
    atomic_store(&caller_asleep, 0);
    pthread_mutex_init(&finish_lock, NULL);
    pthread_cond_init(&finished, NULL);
}

static int start_worker(void) {
    struct worker *worker;
    if (posix_memalign((void **)&worker, 128, sizeof *worker)) return 0;
    *worker = (struct worker){.place = worker_count + 1};
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->posted, NULL);
    if (pthread_create(&worker->thread, NULL, work, worker)) {
        free(worker);
        return 0;
    }
    workers[worker_count++] = worker;
    return 1;
}

/* As many workers as can be had, up to `wanted`. */
static int ensure_workers(int wanted) {
    static int prepared;
    if (!prepared) {
        pthread_atfork(NULL, NULL, forget_workers);
        prepared = 1;
    }
    if (wanted > MOST_WORKERS) wanted = MOST_WORKERS;
    while (worker_count < wanted && start_worker()) continue;
    return worker_count < wanted ? worker_count : wanted;
}

static void run_together(struct call *call) {
    int chunks = call->chunks < call->grid ? call->chunks : (int)call->grid;
    int helpers = ensure_workers(chunks - 1);
    call->chunks = helpers + 1;
    call->unit = (call->grid >> 31) + 1;
    uint64_t units = (call->grid - 1) / call->unit + 1;
    for (uint64_t i = 0; i <= (uint64_t)helpers; i++) {
        uint64_t end = units * (i + 1) / call->chunks;
        atomic_store(&shares[i].left, range(units * i / call->chunks, end));
    }
    int called = 0;
    for (int i = 0; i < helpers; i++)
        called += workers[i]->called = call->wakes || !atomic_load(&workers[i]->asleep);
    atomic_store(&pending, called);
    for (int i = 0; i < helpers; i++)
        if (workers[i]->called) post(workers[i], call);
    run_share(call, 0);
    for (int i = 0; i < helpers; i++)
        if (workers[i]->called && atomic_exchange(&workers[i]->mailbox, NULL))
            atomic_fetch_sub(&pending, 1);
    wait_for_workers();
}

static void run(struct call *call) {
    if (call->chunks < 2 || call->grid < 2 || atomic_flag_test_and_set(&busy)) {
        run_blocks(call, 0, call->grid);
        return;
    }
    run_together(call);
    atomic_flag_clear(&busy);
}

/* Run blocks 0 to grid - 1 of a kernel on `chunks` threads, or on those of them that are awake
   unless it `wakes`, and wait for them. Whether it found a fault, which `fault` then holds (NULL
   for a kernel that finds none). */
int tinyml_run(
    kernel_function function, void *const *buffers, long grid, int chunks, int wakes, long *fault
) {
    struct call call = {function, buffers, grid, chunks, wakes, fault, 1};
    run(&call);
    return fault && fault[0];
}

/* One launch of a plan. `first` is the place of its first buffer among all the plan's. */
struct launch {
    kernel_function run;
    long first, grid;
    int most_chunks, checks; /* `checks`: whether the kernel may find fault */
};

/* Run launches one after the other, each as `tinyml_run` does, on at most `threads` threads. The
   number (from 1 on) of one that found a fault, after which no other is run; 0 if none did. */
int tinyml_run_plan(
    const struct launch *launches, long count, void *const *buffers, int threads, int wakes,
    long *fault
) {
    for (long i = 0; i < count; i++) {
        const struct launch *launch = &launches[i];
        int chunks = launch->most_chunks < threads ? launch->most_chunks : threads;
        long *own = launch->checks ? fault : NULL;
        void *const *own_buffers = buffers + launch->first;
        struct call call = {launch->run, own_buffers, launch->grid, chunks, wakes, own, 1};
        run(&call);
        if (own && own[0]) return (int)i + 1;
    }
    return 0;
}

/* End all workers and wait for them; a later kernel starts them again. */
int tinyml_stop(void) {
    while (atomic_flag_test_and_set(&busy)) sched_yield();
    int stopped = worker_count;
    for (int i = 0; i < worker_count; i++) post(workers[i], &stop);
    for (int i = 0; i < worker_count; i++) {
        pthread_join(workers[i]->thread, NULL);
        free(workers[i]);
    }
    worker_count = 0;
    atomic_flag_clear(&busy);
    return stopped;
}
