/* Ranks that appear when they first use a GPU (late_rank.h).
 *
 * In: the first context of the process, and its place from the program, its environment or a communicator. Out: a trace, a
 * clock and a connection from then on, and the message RankPlace. */

#define _GNU_SOURCE
#include "late_rank.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator_client.h"
#include "process.h"

enum { JOB_BYTES = 512, MOST_RANKS = 1 << 24 };

/* How a launcher tells a process its place. */
typedef struct {
    const char *rank, *ranks, *ranks_per_node;
} launcher;

static const launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}, /* torchrun, and most others */
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"},
};

/* Variables that tell jobs apart. */
static const char *const jobs[] = {
    "MASTER_ADDR",    "MASTER_PORT",  "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID",
};

typedef enum { UNKNOWN, GUESSED, CERTAIN } knowledge;

pthread_mutex_t maya_place_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool appeared;
static knowledge known;
static maya_rank_place place;
static char job[JOB_BYTES];

bool maya_waits_to_appear(void) { return maya_get_settings()->late_ranks && !appeared; }

/* For Python, which polls it: never reads the settings of a process that has not used CUDA. */
MAYA_API bool maya_rank_has_appeared(void) { return appeared; }

/* ---- the place; maya_place_lock is held ---- */

static void send(void) {
    maya_pack_rank_place(maya_outgoing_begin(), &place);
    maya_outgoing_end(NULL, 0);
    maya_outgoing_send();
}

static void set(knowledge how, int rank, int ranks, int ranks_per_node) {
    known = how;
    place = (maya_rank_place){
        .rank = rank,
        .ranks = ranks,
        .ranks_per_node = ranks_per_node,
        .job = {job, strlen(job)},
        .certain = how == CERTAIN,
    };
    maya_settings_set_place(rank, ranks, ranks_per_node);
}

/* -1: not set, or no number that may be meant. */
static int number_in(const char *variable) {
    const char *text = getenv(variable);
    if (text == NULL || *text == '\0') return -1;
    char *end;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value >= 0 && value <= MOST_RANKS ? (int)value : -1;
}

static void read_place(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers && known == UNKNOWN; i++) {
        int rank = number_in(launchers[i].rank), ranks = number_in(launchers[i].ranks);
        int ranks_per_node = number_in(launchers[i].ranks_per_node);
        if (rank < 0 || ranks < 1 || rank >= ranks) continue;
        size_t used = (size_t)snprintf(job, sizeof job, "environment");
        for (size_t j = 0; j < sizeof jobs / sizeof *jobs && used < sizeof job; j++) {
            const char *text = getenv(jobs[j]);
            used += (size_t)snprintf(job + used, sizeof job - used, ",%s", text ? text : "");
        }
        set(GUESSED, rank, ranks, ranks_per_node > 0 ? ranks_per_node : 0);
    }
}

/* ---- events ---- */

void maya_appear(void) {
    if (!maya_waits_to_appear()) return;
    pthread_mutex_lock(&maya_place_lock);
    bool is_first = !appeared;
    if (is_first) {
        maya_settings_begin_late_rank();
        read_place();
        maya_begin_what_ranks_have();
        appeared = true;
    }
    pthread_mutex_unlock(&maya_place_lock);
}

/* From Python: the rank and size of the program's job, and a text that only its ranks share. The first statement counts,
 * because a process has one trace. */
MAYA_API void maya_set_place(int rank, int ranks, const char *job_name) {
    if (!maya_get_settings()->late_ranks) return;
    pthread_mutex_lock(&maya_place_lock);
    if (known != CERTAIN) {
        int ranks_per_node = number_in(launchers[0].ranks_per_node);
        for (size_t i = 1; i < sizeof launchers / sizeof *launchers && ranks_per_node < 1; i++)
            if (number_in(launchers[i].ranks) == ranks) ranks_per_node = number_in(launchers[i].ranks_per_node);
        snprintf(job, sizeof job, "%s", job_name);
        set(CERTAIN, rank, ranks, ranks_per_node > 0 ? ranks_per_node : 0);
        send(); /* without a connection nothing is sent; maya_send_place does it later */
    }
    pthread_mutex_unlock(&maya_place_lock);
}

void maya_send_place(void) {
    pthread_mutex_lock(&maya_place_lock);
    if (known != UNKNOWN) send();
    pthread_mutex_unlock(&maya_place_lock);
}

void maya_place_by_communicator(int member, int ranks, const uint64_t key[2]) {
    if (!maya_get_settings()->late_ranks) return;
    pthread_mutex_lock(&maya_place_lock);
    if (known == UNKNOWN) {
        snprintf(job, sizeof job, "communicator %016llx%016llx", (unsigned long long)key[0], (unsigned long long)key[1]);
        set(GUESSED, member, ranks, 0);
        send();
    }
    pthread_mutex_unlock(&maya_place_lock);
}

/* ---- the end ---- */

static void leave(int status, void *unused) {
    (void)unused;
    if (maya_waits_to_appear()) return;
    fflush(NULL);
    _exit(status); /* ends the trace and the connection (recorder_exit.c) */
}

static void register_leave(void) { on_exit(leave, NULL); }

/* From Python, when torch has been imported: exit() then runs the exit functions registered later, but no destructors of
 * torch's libraries. While these run, watchdogs of process groups that the program has not destroyed would find the libraries
 * half torn down, and abort the process; on a GPU the process has ended before they look. */
MAYA_API void maya_skip_destructors(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_leave);
}
