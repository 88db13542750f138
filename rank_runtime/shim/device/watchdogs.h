/* Torch's NCCL watchdogs, which look by the rank's time (watchdogs.c). */
#pragma once

#include "internal.h"

#include <pthread.h>
#include <time.h>

typedef int (*maya_timed_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

/* A thread waits, as torch wants until `deadline`: if it is a watchdog, until it is asked to look, and at most until `latest`.
 * false: it is none, and has not waited. */
bool maya_watchdog_waits(maya_timed_wait wait, pthread_cond_t *condition, pthread_mutex_t *held,
                         const struct timespec *deadline, const struct timespec *latest, int *error);
/* Of an event that is done: is the calling thread to know, if it is a watchdog? Others are. */
bool maya_watchdog_sees(const void *event, uint32_t number);
/* The calling thread is about to call NCCL, without any lock: the watchdogs look, if they would have by its time. */
MAYA_API void maya_watchdogs_poll(void);
