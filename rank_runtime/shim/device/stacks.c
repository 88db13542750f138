/* Answers questions about this process, such as the Python stacks of its threads. The coordinator asks them when the job seems
 * to hang.
 *
 * In: connections to a local socket whose name contains the process id and a hash of the coordinator's address
 * (rank_runtime/stacks_socket.py), each with one line:
 *
 *     stacks              the streams that a host thread waits for, the conditions that threads wait on for the device, and the
 *                         Python stacks of all threads
 *     memory              the rank's node and the memory that it holds on each device (node_memory.c)
 *     recorder            torch's flight recorder, as torch pickles it: incomplete collectives; empty without a recorder
 *     recorder all        the same with completed collectives
 *     recorder all FILE   the same into a file; the answer is its size
 *     run PROGRAM         runs a Python program of Maya's, whose path is given in hexadecimal digits; from then on the
 *                         connection is the program's: Python's debugger (rank_runtime/debugger.py), the values of
 *                         variables (rank_runtime/frame_values.py)
 *
 * Out: the answer; then the connection is closed. Only processes of the same user, or of root, get one. Every question has a
 * thread of its own, so that one that can never be answered (the flight recorder needs the GIL) does not delay others.
 *
 * A process that asks for more than memory may also inspect the system calls of the threads (PR_SET_PTRACER): a futex inside
 * one of the conditions marks a thread that waits for the device.
 *
 * Stacks are read with the GIL if possible, because running threads change them. If the GIL cannot be taken, its owner is
 * blocked, and they are read without it. */

#define _GNU_SOURCE
#include "coordinator_client.h"
#include "engine.h"
#include "stacks_socket.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    SMALL_STACK = 64 << 10,
    LARGE_STACK = 1 << 20, /* torch's code runs there */
    LOCK_MILLISECONDS = 300,
    MOST_STREAMS = 16,
    MOST_CONDITIONS = 4,
};

static int listening = -1;
static bool copy_of_rank;
static pthread_t main_thread;
static const pthread_cond_t *_Atomic conditions[MOST_CONDITIONS];

void maya_threads_wait_on(const pthread_cond_t *condition) {
    for (int i = 0; i < MOST_CONDITIONS; i++) {
        const pthread_cond_t *known = NULL;
        if (atomic_compare_exchange_strong(&conditions[i], &known, condition) || known == condition) return;
    }
}

/* ---- the GIL ---- */

typedef struct {
    sem_t taken, to_release;
    _Atomic int users;
} python_lock;

static void leave_lock(python_lock *lock) {
    if (atomic_fetch_sub(&lock->users, 1) == 1) free(lock);
}

static void *hold_lock(void *argument) {
    python_lock *lock = argument;
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int state = ensure();
    sem_post(&lock->taken);
    while (sem_wait(&lock->to_release) != 0) {
    }
    release(state);
    leave_lock(lock);
    return NULL;
}

static bool python_runs(void) {
    int (*is_initialized)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    int (*is_finalizing)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (is_finalizing == NULL) is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return is_initialized && is_initialized() && !(is_finalizing && is_finalizing());
}

/* Waits briefly for the GIL, which another thread of ours takes. NULL: that thread cannot be started. */
static python_lock *take_lock(void) {
    python_lock *lock = calloc(1, sizeof *lock);
    if (lock == NULL) return NULL;
    lock->users = 2;
    sem_init(&lock->taken, 0, 0);
    sem_init(&lock->to_release, 0, 0);
    if (!maya_start_thread(hold_lock, lock, LARGE_STACK)) {
        free(lock);
        return NULL;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOCK_MILLISECONDS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    while (sem_timedwait(&lock->taken, &until) != 0 && errno == EINTR) {
    }
    return lock;
}

static void give_lock_back(python_lock *lock) {
    if (lock == NULL) return;
    sem_post(&lock->to_release); /* a thread that gets the GIL only later releases it at once */
    leave_lock(lock);
}

/* ---- answers ---- */

static void write_all(int descriptor, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t written = write(descriptor, bytes, size);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        bytes += written;
        size -= (size_t)written;
    }
}

/* For Python 3.13 and later, which do not export _Py_DumpTracebackThreads. */
static void dump_by_module(int to) {
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    if (ensure == NULL || release == NULL || run == NULL) return;
    char program[128];
    snprintf(program, sizeof program, "__import__('faulthandler').dump_traceback(%d, all_threads=True)", to);
    int state = ensure();
    run(program);
    release(state);
}

static void answer_stacks(int to) {
    uint32_t streams[MOST_STREAMS], count = maya_streams_awaited(streams, MOST_STREAMS);
    dprintf(to, "main 0x%016lx\n", (unsigned long)main_thread);
    for (uint32_t i = 0; i < count; i++) dprintf(to, "stream %u\n", streams[i]);
    for (int i = 0; i < MOST_CONDITIONS && conditions[i]; i++) {
        dprintf(to, "condition 0x%016lx %zu\n", (unsigned long)(uintptr_t)conditions[i], sizeof *conditions[i]);
    }
    if (!python_runs()) return;
    dprintf(to, "python\n");
    const char *(*dump)(int, void *, void *) =
        (const char *(*)(int, void *, void *))dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads");
    if (dump == NULL) {
        dump_by_module(to);
        return;
    }
    python_lock *lock = take_lock();
    dump(to, NULL, NULL);
    give_lock_back(lock);
}

/* A std::string of libstdc++. */
typedef struct {
    char *bytes;
    size_t size;
    char here[16];
} cxx_string;

static cxx_string kept_recorder; /* includes completed collectives */

static bool read_recorder(cxx_string *text, bool all) {
    if (!python_runs()) { /* torch needs it for the stacks */
        *text = kept_recorder;
        return text->bytes != NULL;
    }
    void *torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (torch == NULL) return false;
    /* std::string c10d::dump_nccl_trace(bool collectives, bool stacks, bool only_active) */
    void (*dump)(cxx_string *, bool, bool, bool) =
        (void (*)(cxx_string *, bool, bool, bool))dlsym(torch, "_ZN4c10d15dump_nccl_traceB5cxx11Ebbb");
    maya_this_thread()->inspects = true; /* torch queries the events of its collectives */
    if (dump) dump(text, true, true, !all);
    maya_this_thread()->inspects = false;
    dlclose(torch);
    return dump != NULL;
}

static void answer_recorder(int to, bool all, const char *path) {
    cxx_string text;
    if (!read_recorder(&text, all)) return;
    if (path) {
        int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (file >= 0) {
            write_all(file, text.bytes, text.size);
            close(file);
            dprintf(to, "%zu\n", text.size);
        }
    } else {
        write_all(to, text.bytes, text.size);
    }
    void (*delete)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "_ZdlPv");
    if (text.bytes != text.here && text.bytes != kept_recorder.bytes && delete) delete(text.bytes);
}

/* Keeps the flight recorder for questions after Python has ended while collectives are still queued. Call without the GIL. */
MAYA_API void maya_keep_recorder(void) {
    if (kept_recorder.bytes == NULL && !read_recorder(&kept_recorder, true)) kept_recorder.bytes = NULL;
}

/* ---- programs ---- */

typedef struct {
    int connection;
    char program[]; /* Python code to run */
} program_run;

static void *run_program(void *argument) {
    program_run *session = argument;
    prctl(PR_SET_NAME, "maya-debugger");
    maya_this_thread()->debugs = true;
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    int state = ensure();
    run(session->program);
    release(state);
    close(session->connection);
    free(session);
    return NULL;
}

/* Starts a thread with a normal stack, because the program's own code may run there. It takes over the connection. */
static void answer_program(int connection, const char *path) {
    static const char form[] =
        "(lambda file, scope: exec(compile(open(file, encoding='utf-8').read(), file, 'exec'), scope))"
        "(bytes.fromhex('%s').decode(), {'__name__': 'maya_program', 'connection': %d, 'main_thread': %lu})";
    int mine = fcntl(connection, F_DUPFD_CLOEXEC, 0);
    size_t size = sizeof form + strlen(path) + 64;
    program_run *session = malloc(sizeof *session + size);
    if (session && mine >= 0 && python_runs() && path[strspn(path, "0123456789abcdef")] == '\0') {
        session->connection = mine;
        snprintf(session->program, size, form, path, mine, (unsigned long)main_thread);
        struct timeval for_ever = {0};
        setsockopt(mine, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof for_ever);
        if (maya_start_thread(run_program, session, 0)) return;
    }
    free(session);
    if (mine >= 0) close(mine);
}

static void allow_inspection(int connection) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
    prctl(PR_SET_PTRACER, (unsigned long)peer.pid); /* an error where Yama does not restrict it anyway */
}

static void answer(int to, const char *question) {
    static const char to_file[] = "recorder all ", runs[] = "run ";
    if (strcmp(question, "memory") == 0) {
        maya_answer_memory(to);
        return;
    }
    allow_inspection(to);
    if (strcmp(question, "stacks") == 0) answer_stacks(to);
    else if (strncmp(question, runs, sizeof runs - 1) == 0) answer_program(to, question + sizeof runs - 1);
    else if (strcmp(question, "recorder") == 0) answer_recorder(to, false, NULL);
    else if (strcmp(question, "recorder all") == 0) answer_recorder(to, true, NULL);
    else if (strncmp(question, to_file, sizeof to_file - 1) == 0) {
        answer_recorder(to, true, question + sizeof to_file - 1);
    }
}

/* ---- questions ---- */

bool maya_peer_is_ours(int connection) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
    return peer.uid == geteuid() || peer.uid == 0;
}

static void *serve_one(void *argument) {
    int connection = (int)(intptr_t)argument;
    char question[4096];
    size_t used = 0;
    prctl(PR_SET_NAME, "maya-stacks");
    struct timeval patience = {.tv_sec = 5};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    while (used < sizeof question) {
        ssize_t received = recv(connection, question + used, sizeof question - used, 0);
        if (received <= 0) break;
        used += (size_t)received;
        char *end = memchr(question, '\n', used);
        if (end) {
            *end = '\0';
            answer(connection, question);
            break;
        }
    }
    close(connection);
    return NULL;
}

static void *serve(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "maya-stacks");
    for (;;) {
        int connection = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (connection < 0) return NULL;
        if (!maya_peer_is_ours(connection) || !maya_start_thread(serve_one, (void *)(intptr_t)connection, LARGE_STACK)) {
            close(connection);
        }
    }
}

/* FNV-1a of the coordinator's address: keeps runs apart that reuse a process id. */
uint64_t maya_hash_of_run(void) {
    uint64_t hash = MAYA_FNV_OFFSET;
    for (const char *coordinator = maya_get_settings()->coordinator; *coordinator; coordinator++) {
        hash = (hash ^ (unsigned char)*coordinator) * MAYA_FNV_PRIME;
    }
    return hash;
}

bool maya_is_rank(void) { return listening >= 0; }

bool maya_is_copy_of_rank(void) { return copy_of_rank; }

void maya_stacks_begin_rank(void) {
    if (maya_get_settings()->coordinator[0] == '\0' || listening >= 0) return;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, MAYA_STACKS_SOCKET "-%d-%016llx", (int)getpid(),
                          (unsigned long long)maya_hash_of_run());
    int opened = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (opened < 0) return;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    if (bind(opened, (struct sockaddr *)&address, size) != 0 || listen(opened, 8) != 0) {
        maya_message("cannot listen at @%s: %s. If the job hangs, the report will lack this rank's stacks",
                     address.sun_path + 1, strerror(errno));
        close(opened);
        return;
    }
    maya_watch_forks();
    listening = opened;
    main_thread = pthread_self();
    maya_threads_wait_on(maya_streams_condition());
    if (!maya_start_thread(serve, NULL, SMALL_STACK)) {
        close(opened);
        listening = -1;
    }
}

void maya_stacks_after_fork(void) {
    if (listening >= 0) {
        close(listening);
        copy_of_rank = true;
    }
    listening = -1;
}
