/* torch's NCCL watchdogs, which poll in virtual time (watchdogs.c). */
#pragma once

#include "internal.h"

#include <pthread.h>
#include <time.h>

typedef int (*maya_timed_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

/* A thread wants to wait until `deadline`. If it is a watchdog, it waits until it is asked to poll, and at most until `latest`.
 * false: it is not a watchdog and has not waited. */
bool maya_watchdog_waits(maya_timed_wait wait, pthread_cond_t *condition, pthread_mutex_t *held,
                         const struct timespec *deadline, const struct timespec *latest, int *error);
/* Whether a query may tell the calling thread that a completed event is complete. Always true outside of watchdogs. */
bool maya_watchdog_sees(const void *event, uint32_t number);
/* Before the calling thread calls NCCL, without any lock: lets the watchdogs poll if they would have by its virtual time. */
MAYA_API void maya_watchdogs_poll(void);
