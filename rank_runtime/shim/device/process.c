/* Threads and forks (process.h). Every lock is taken before a fork and released after it on both sides. */

#include "process.h"
#include "internal.h"
#include "vector.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- threads ---- */

bool maya_start_thread(void *(*run)(void *argument), void *argument, size_t stack_bytes) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack_bytes > 0) pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

/* ---- tables of threads ---- */

typedef struct thread_table {
    struct thread_table *next; /* of the same thread */
    void **slot;
    _Alignas(16) char zeros[];
} thread_table;

static pthread_key_t tables_key;

static void free_tables(void *first) {
    for (thread_table *table = first, *next; table; table = next) {
        next = table->next;
        *table->slot = NULL; /* code that still runs at the end of the thread makes a new one */
        free(table);
    }
}

static void make_tables_key(void) {
    if (pthread_key_create(&tables_key, free_tables) != 0) abort();
}

void maya_thread_table(void **slot, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_tables_key);
    thread_table *table = must_alloc(calloc(1, sizeof *table + bytes));
    table->next = pthread_getspecific(tables_key);
    table->slot = slot;
    pthread_setspecific(tables_key, table);
    *slot = table->zeros;
}

/* ---- forks ---- */

static pthread_mutex_t *const locks[] = {
    &maya_connect_lock,  &maya_place_lock,    &maya_pool_lock,      &maya_kernels_lock,  &maya_vmm_lock,
    &maya_context_lock,  &maya_memory_lock,   &maya_blocks_lock,    &maya_values_lock,   &maya_engine_lock,
    &maya_outgoing_lock, &maya_recorder_lock, &maya_insertion_lock, &maya_reported_lock,
    &maya_host_lock,
};
enum { LOCKS = sizeof locks / sizeof *locks };

static void before_fork(void) {
    for (int i = 0; i < LOCKS; i++) pthread_mutex_lock(locks[i]);
}

static void in_parent(void) {
    for (int i = LOCKS - 1; i >= 0; i--) pthread_mutex_unlock(locks[i]);
}

static void in_child(void) {
    maya_streams_after_fork();
    maya_values_after_fork();
    maya_host_values_after_fork();
    maya_client_after_fork();
    maya_recorder_after_fork();
    maya_stacks_after_fork();
    maya_faults_after_fork();
    maya_watchdogs_after_fork();
    in_parent();
}

static void watch(void) { pthread_atfork(before_fork, in_parent, in_child); }

void maya_watch_forks(void) {
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    pthread_once(&watched, watch);
}

void maya_begin_what_ranks_have(void) {
    maya_stacks_begin_rank();
    maya_faults_begin_rank();
    maya_schedule_begin_rank();
}

/* In a rank that was executed, not forked; programs that it starts have another process id. */
__attribute__((constructor)) static void at_load(void) {
    const char *process = getenv(MAYA_VARIABLE_RANK_PROCESS);
    if (process && atoi(process) == (int)getpid()) maya_begin_what_ranks_have();
}

/* Called by a child of the zygote right after fork(), when the rank's environment is set and only the calling thread exists.
 * Afterwards settings are read again at their next use, a new trace begins under the rank's own name, no device is in use, and
 * there is no connection to the coordinator.
 *
 * The following survives, because the parent's libraries refer to it: registered kernels, interned strings, streams, events,
 * graphs, device allocations with their contents (charged to the rank), the op observer if it was loaded, and the numbers of
 * all of these. A parent that has only imported torch or initialized CUDA leaves nothing but kernels. */
MAYA_API void maya_begin_rank(void) {
    maya_contexts_begin_rank(); /* first: needs the settings that the parent was charged by */
    maya_settings_begin_rank();
    maya_host_values_begin_rank();
    maya_devices_begin_rank();
    maya_client_begin_rank();
    maya_recorder_begin_rank();
    maya_begin_what_ranks_have();
}
