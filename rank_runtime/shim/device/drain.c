/* Collectives that are still queued when the rank's program ends.
 *
 * A real GPU keeps running while its process ends: the host runs ahead, and peers may not have reached collectives that this
 * rank has called. Here, real time does not tell how far apart ranks are, so a rank that ends with status 0 first completes the
 * collectives queued in its streams. A rank that fails does not.
 *
 * In: the end of the program, from three places. Python's shutdown calls maya_complete_collectives() while the interpreter, its
 * process groups and their watchdogs still exist (rank_runtime/zygote/rank_exit.py); exit() and _exit() complete the rest. Out: a
 * Drain to the coordinator, which answers calls that can never complete with Abandoned. The coordinator's hang detection sees a
 * drain as the host waiting for its streams.
 *
 * A signal ends the wait, because a Python signal handler can only run after it. */

#define _GNU_SOURCE
#include "coordinator_client.h"
#include "engine.h"
#include "virtual_clock.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <unistd.h>

static sem_t completed;
static bool is_waiting;
static _Atomic bool given_up;

/* The process may end in a signal handler that interrupted the thread which holds the lock. */
static bool engine_answers(void) {
    for (int attempt = 0; attempt < 1000; attempt++) {
        if (pthread_mutex_trylock(&maya_engine_lock) == 0) {
            pthread_mutex_unlock(&maya_engine_lock);
            return true;
        }
        usleep(1000);
    }
    return false;
}

MAYA_API bool maya_collectives_are_queued(void) {
    bool others_may_wait = maya_client_is_connected() && maya_get_settings()->world_size > 1;
    if (given_up || !others_may_wait || !maya_commands_are_queued()) return false;
    return engine_answers() && maya_streams_hold_collectives();
}

static void *wait_for_streams(void *unused) {
    (void)unused;
    maya_pack_drain(maya_outgoing_begin(), &(maya_drain){.host_ns = (int64_t)maya_clock_last_ns()});
    maya_outgoing_end(NULL, 0);
    maya_outgoing_send();
    maya_streams_complete_collectives();
    sem_post(&completed);
    return NULL;
}

/* Returns when no collective is queued any more. false: a signal came first; call it again or give up. */
MAYA_API bool maya_complete_collectives(void) {
    MAYA_OWN_TIME;
    enum { STACK = 64 << 10 };
    if (!is_waiting) {
        if (!maya_collectives_are_queued()) return true;
        sem_init(&completed, 0, 0);
        is_waiting = maya_start_thread(wait_for_streams, NULL, STACK);
        if (!is_waiting) {
            maya_message(
                "cannot start a thread, so collectives still queued at the end of the program are lost: raise the process "
                "limit (ulimit -u)");
            return true;
        }
    }
    if (sem_wait(&completed) != 0) return false; /* only a signal handler interrupts it */
    is_waiting = false;
    return true;
}

/* The process ends without its queued collectives. */
MAYA_API void maya_give_up_collectives(void) { given_up = true; }

void maya_drain_at_exit(int status) {
    if (!maya_client_is_connected()) return; /* also in a child of vfork, which shares our memory */
    if (status != 0 || maya_is_stream_worker() || !maya_complete_collectives()) maya_give_up_collectives();
}
