/* What happens to the virtual device when its process forks, becomes a rank, or ends.
 *
 * DataLoader workers are forked children of a rank, and other threads of the rank (autograd's, the streams', the
 * connection's) may be anywhere at that moment. Around a fork all locks are held, so that the child finds everything whole;
 * in the child, which has none of the threads, no work is under way. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* The locks of libmaya_device.so, in the order in which a thread may take them: whoever holds one may only take those after
 * it. Locks of the libraries above (nccl_rendezvous.c) come before all of them. */
extern pthread_mutex_t maya_connect_lock;   /* coordinator_client.c */
extern pthread_mutex_t maya_pool_lock;      /* pool.c */
extern pthread_mutex_t maya_kernels_lock;   /* kernels.c */
extern pthread_mutex_t maya_vmm_lock;       /* vmm.c */
extern pthread_mutex_t maya_context_lock;   /* context.c */
extern pthread_mutex_t maya_memory_lock;    /* memory.c */
extern pthread_mutex_t maya_blocks_lock;    /* blocks.c */
extern pthread_mutex_t maya_values_lock;    /* values.c, contents.c; who holds it may try to take maya_hold_lock, not wait */
extern pthread_mutex_t maya_engine_lock;    /* stream.c, graph.c */
extern pthread_mutex_t maya_outgoing_lock;  /* coordinator_client.c */
extern pthread_mutex_t maya_recorder_lock;  /* recorder.c, blocks.c, and the trace file */
extern pthread_mutex_t maya_insertion_lock; /* intern.c */
extern pthread_mutex_t maya_reported_lock;  /* report.c */

/* A thread of ours, which nobody joins and which takes no signals: they are the program's. A thousand ranks share a machine,
 * so it gets the stack it needs and no more; 0: as much as any other thread. false: there can be no further one. */
bool maya_start_thread(void *(*run)(void *argument), void *argument, size_t stack_bytes);

/* Points `slot`, a thread-local pointer, to zeros that go with the thread. What is large must not be thread-local itself: then
 * the library could only be preloaded, and not opened by a process that runs already. */
void maya_thread_table(void **slot, size_t bytes);

/* How many processors the process may use. */
int maya_processors(void);

/* From now on, for as long as the process lives, forks are cared for. */
void maya_watch_forks(void);

/* In a forked child, all locks held; each forgets what only the parent goes on with. */
void maya_streams_after_fork(void);
void maya_values_after_fork(void);
void maya_client_after_fork(void);
void maya_recorder_after_fork(void);
void maya_stacks_after_fork(void);
void maya_faults_after_fork(void);
void maya_watchdogs_after_fork(void);

/* In a process that becomes a rank (maya_begin_rank). */
void maya_settings_begin_rank(void);
void maya_devices_begin_rank(void);
void maya_contexts_begin_rank(void);
void maya_client_begin_rank(void);
void maya_recorder_begin_rank(void);
void maya_stacks_begin_rank(void);
void maya_faults_begin_rank(void);
void maya_schedule_begin_rank(void);

/* The process ends: names the faults that never happened. */
void maya_faults_end(void);
/* The process ends with this status: completes the collectives that its streams hold, if it is 0 (drain.c). */
void maya_drain_at_exit(int status);
/* The process ends: says goodbye to the coordinator. Waits for a second at most. */
void maya_client_end(void);
