/* The process of the virtual device: threads, forks, becoming a rank, and the end.
 *
 * DataLoader workers are forked children of a rank, and other threads of the rank (autograd's, the streams', the client's) may
 * be anywhere at that time. All locks are held around a fork, so that the child finds consistent state. The child has none of
 * the other threads, so no work is in flight there. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The locks of libmaya_device.so, in locking order: a thread that holds one may only take those after it. Locks of the
 * libraries above (nccl_rendezvous.c) come before all of them. */
extern pthread_mutex_t maya_connect_lock;   /* coordinator_client.c */
extern pthread_mutex_t maya_place_lock;     /* late_rank.c */
extern pthread_mutex_t maya_pool_lock;      /* pool.c */
extern pthread_mutex_t maya_kernels_lock;   /* kernels.c */
extern pthread_mutex_t maya_vmm_lock;       /* vmm.c */
extern pthread_mutex_t maya_context_lock;   /* context.c */
extern pthread_mutex_t maya_memory_lock;    /* memory.c */
extern pthread_mutex_t maya_blocks_lock;    /* blocks.c */
extern pthread_mutex_t maya_values_lock;    /* values.c, contents.c; its holder may try maya_hold_lock but not wait for it */
extern pthread_mutex_t maya_engine_lock;    /* stream.c, graph.c */
extern pthread_mutex_t maya_outgoing_lock;  /* coordinator_client.c */
extern pthread_mutex_t maya_recorder_lock;  /* recorder.c, blocks.c, and the trace file */
extern pthread_mutex_t maya_insertion_lock; /* intern.c */
extern pthread_mutex_t maya_reported_lock;  /* report.c */
extern pthread_mutex_t maya_host_lock;      /* host_values.c */

/* Starts a detached thread of ours with all signals blocked, because they are the program's. A thousand ranks share a machine,
 * so the thread gets only the stack it needs; 0: the default. false: the system allows no further thread. */
bool maya_start_thread(void *(*run)(void *argument), void *argument, size_t stack_bytes);

/* Points `slot`, a thread-local pointer, to zeros that are freed with the thread. Large data must not be thread-local itself:
 * the library could then be preloaded but not opened by a running process. */
void maya_thread_table(void **slot, size_t bytes);

/* How many processors the process may use. */
int maya_processors(void);

/* Installs the fork handlers, once for the life of the process. */
void maya_watch_forks(void);

/* In a forked child, with all locks held: each forgets the state that only the parent continues with. */
void maya_streams_after_fork(void);
void maya_values_after_fork(void);
void maya_host_values_after_fork(void);
void maya_client_after_fork(void);
void maya_recorder_after_fork(void);
void maya_stacks_after_fork(void);
void maya_faults_after_fork(void);
void maya_watchdogs_after_fork(void);

/* In a process that becomes a rank (maya_begin_rank). */
void maya_settings_begin_rank(void);
void maya_host_values_begin_rank(void);
void maya_devices_begin_rank(void);
void maya_contexts_begin_rank(void);
void maya_client_begin_rank(void);
void maya_recorder_begin_rank(void);
void maya_stacks_begin_rank(void);
/* Whether this process was forked from a rank without executing a program: a DataLoader's worker. */
bool maya_is_copy_of_rank(void);
/* Part of the name of the run's sockets. */
uint64_t maya_hash_of_run(void);
/* Whether the process at the other end of a local connection belongs to this user, or to root. */
bool maya_peer_is_ours(int connection);
/* node_memory.c: the answer to the question "memory". */
void maya_answer_memory(int to);
void maya_faults_begin_rank(void);
void maya_schedule_begin_rank(void);

/* In a process that becomes a rank when it first uses a GPU (late_rank.c). */
void maya_settings_begin_late_rank(void);
void maya_begin_what_ranks_have(void);
/* The place in the job. ranks_per_node: 0 if unknown. */
void maya_settings_set_place(int rank, int world_size, int ranks_per_node);

/* At the end of the process: reports the faults that never happened. */
void maya_faults_end(void);
/* At the end of the process: completes the collectives queued in its streams if the exit status is 0 (drain.c). */
void maya_drain_at_exit(int status);
/* At the end of the process: sends the last message to the coordinator. Waits for a second at most. */
void maya_client_end(void);
