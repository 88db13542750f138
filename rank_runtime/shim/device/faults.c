/* Injected faults (faults.h). */

#define _GNU_SOURCE
#include "faults.h"
#include "internal.h"
#include "process.h"
#include "schedule.h"
#include "vector.h"
#include "virtual_clock.h"

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum { KILL, RAISE, DELAY, DROP, FAIL, EXHAUST, KINDS } kind;
static const char *const kind_names[] = {
    [KILL] = "kill", [RAISE] = "raise", [DELAY] = "delay", [DROP] = "drop", [FAIL] = "error", [EXHAUST] = "oom",
};
typedef enum { CALL, STEP, ALLOCATION, BYTES, POINTS } point;
static const char *const point_names[] = {[CALL] = "call", [STEP] = "step", [ALLOCATION] = "allocation", [BYTES] = "bytes"};

typedef struct {
    kind kind;
    point at;
    uint64_t number;
    uint64_t delay_ns;
    bool happened;
    char text[128]; /* as the launcher wrote it */
} fault;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of the following; no other lock is taken under it */
static MAYA_VECTOR(fault) faults;
static uint64_t reached[POINTS]; /* calls, steps, allocations so far */
static size_t exhausted_size;    /* not 0: allocations of this size fail */
static pid_t rank_process;

/* ---- reading MAYA_FAULTS ---- */

static void __attribute__((noreturn)) refuse(const char *text) {
    fprintf(stderr, "maya: MAYA_FAULTS: %s is not a fault; start the program with maya-torchrun --inject\n", text);
    _exit(2);
}

static int index_of(const char *const *names, int size, const char *name) {
    for (int i = 0; i < size; i++) {
        if (strcmp(names[i], name) == 0) return i;
    }
    return -1;
}

static void add(const char *text) {
    fault made = {0};
    if (strlen(text) >= sizeof made.text) refuse(text);
    snprintf(made.text, sizeof made.text, "%s", text);
    char copy[sizeof made.text], *rest = copy;
    memcpy(copy, made.text, sizeof copy);
    int found = index_of(kind_names, KINDS, strsep(&rest, ":"));
    if (found < 0) refuse(text);
    made.kind = (kind)found;
    for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ",")) {
        char *value = item, *key = strsep(&value, "=");
        if (value == NULL) refuse(text);
        int at = index_of(point_names, POINTS, key);
        if (at >= 0) {
            made.at = (point)at;
            made.number = strtoull(value, NULL, 10);
        } else if (strcmp(key, "seconds") == 0) {
            made.delay_ns = (uint64_t)llround(strtod(value, NULL) * 1e9);
        } else if (strcmp(key, "rank") != 0) {
            refuse(text);
        }
    }
    if (made.number == 0) refuse(text);
    *maya_vector_add(&faults) = made;
}

void maya_faults_end(void) {
    if (getpid() != rank_process) return;
    rank_process = 0;
    for (size_t i = 0; i < faults.count; i++) {
        if (faults.items[i].happened) continue;
        maya_message("--inject %s never happened: the rank made %llu calls, %llu steps and %llu allocations",
                     faults.items[i].text, (unsigned long long)reached[CALL], (unsigned long long)reached[STEP],
                     (unsigned long long)reached[ALLOCATION]);
    }
}

void maya_faults_begin_rank(void) {
    const char *asked = getenv(MAYA_VARIABLE_FAULTS);
    faults.count = exhausted_size = 0;
    memset(reached, 0, sizeof reached);
    if (asked == NULL || *asked == '\0') return;
    char *copy = must_alloc(strdup(asked)), *rest = copy;
    for (char *item = strsep(&rest, ";"); item; item = strsep(&rest, ";")) add(item);
    free(copy);
    rank_process = getpid();
    maya_watch_forks();
    atexit(maya_faults_end);
}

void maya_faults_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    faults.count = exhausted_size = 0;
}

/* ---- NCCL calls ---- */

/* Takes the next fault that is due at this point; false: there is none. */
static bool take(fault *taken, bool (*is_due)(const fault *candidate, uint64_t now), uint64_t now) {
    for (size_t i = 0; i < faults.count; i++) {
        if (faults.items[i].happened || !is_due(&faults.items[i], now)) continue;
        faults.items[i].happened = true;
        *taken = faults.items[i];
        return true;
    }
    return false;
}

static bool is_at_call(const fault *candidate, uint64_t now) { return candidate->at == CALL && candidate->number == now; }

/* An oom fault after a step happens at the next allocation instead. */
static bool is_at_step(const fault *candidate, uint64_t now) {
    return candidate->at == STEP && candidate->number == now && candidate->kind != EXHAUST;
}

static void say(const fault *happening) { maya_message("--inject %s: now", happening->text); }

/* Delays the calling thread in real and in virtual time. */
static void delay(uint64_t ns) {
    maya_sleep_ns(ns);
    maya_clock_delay(ns);
}

/* Faults that can happen at any point. */
static void happen(const fault *happening) {
    if (happening->kind == KILL) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    if (happening->kind == DELAY) delay(happening->delay_ns);
}

maya_call_fault maya_fault_at_call(char *text, size_t size) {
    static const maya_call_fault results[KINDS] = {
        [RAISE] = MAYA_CALL_RAISES,
        [DROP] = MAYA_CALL_DROPPED,
        [FAIL] = MAYA_CALL_FAILS,
    };
    if (faults.count == 0) return MAYA_CALL_IS_FINE;
    fault happening;
    maya_call_fault result = MAYA_CALL_IS_FINE;
    pthread_mutex_lock(&lock);
    uint64_t now = ++reached[CALL];
    while (result == MAYA_CALL_IS_FINE && take(&happening, is_at_call, now)) {
        pthread_mutex_unlock(&lock);
        say(&happening);
        happen(&happening);
        result = results[happening.kind];
        snprintf(text, size, "call %llu of rank %d fails because of --inject %s", (unsigned long long)now,
                 maya_get_settings()->rank, happening.text);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- in Python's main thread, at its next opportunity ---- */

static void when_python_can(int (*then)(void *argument), void *argument) {
    int (*add_call)(int (*)(void *), void *) = (int (*)(int (*)(void *), void *))dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
    if (add_call == NULL || add_call(then, argument) != 0) {
        maya_message("--inject: the process does not run Python, so the fault cannot happen");
    }
}

static int raise_error(void *text) {
    void **type = dlsym(RTLD_DEFAULT, "PyExc_RuntimeError");
    void (*set)(void *, const char *) = (void (*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyErr_SetString");
    if (type && set) set(*type, text);
    free(text);
    return type && set ? -1 : 0;
}

/* Otherwise the allocator's cache could serve all further requests. The allocator also empties it before it gives up. */
static int empty_cache(void *unused) {
    (void)unused;
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    if (run) run("__import__('torch').cuda.empty_cache()");
    return 0;
}

static bool runs_out_after(uint64_t step) {
    for (size_t i = 0; i < faults.count; i++) {
        if (faults.items[i].kind == EXHAUST && faults.items[i].at == STEP && faults.items[i].number == step) return true;
    }
    return false;
}

void maya_fault_at_step(void) {
    if (faults.count == 0) return;
    fault happening;
    pthread_mutex_lock(&lock);
    uint64_t now = ++reached[STEP];
    bool exhausts = runs_out_after(now);
    while (take(&happening, is_at_step, now)) {
        pthread_mutex_unlock(&lock);
        say(&happening);
        happen(&happening);
        if (happening.kind == RAISE) {
            char *text = NULL;
            if (asprintf(&text, "rank %d fails after step %llu because of --inject %s", maya_get_settings()->rank,
                         (unsigned long long)now, happening.text) < 0) {
                abort();
            }
            when_python_can(raise_error, text);
        }
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    if (exhausts) when_python_can(empty_cache, NULL);
}

/* ---- memory ---- */

static bool exhausts_now(const fault *candidate, uint64_t size) {
    if (candidate->kind != EXHAUST) return false;
    switch (candidate->at) {
        case ALLOCATION: return candidate->number == reached[ALLOCATION];
        case BYTES: return size >= candidate->number;
        case STEP: return reached[STEP] >= candidate->number;
        default: return false;
    }
}

bool maya_fault_at_allocation(size_t size) {
    if (faults.count == 0 || size == 0) return false;
    fault happening;
    pthread_mutex_lock(&lock);
    bool again = size == exhausted_size, fails = again;
    if (!again) {
        reached[ALLOCATION]++;
        fails = take(&happening, exhausts_now, size);
    }
    if (fails) exhausted_size = size;
    pthread_mutex_unlock(&lock);
    if (fails && !again) say(&happening);
    return fails;
}

bool maya_fault_explains(void) {
    if (faults.count == 0) return false;
    pthread_mutex_lock(&lock);
    bool explains = exhausted_size != 0;
    exhausted_size = 0;
    pthread_mutex_unlock(&lock);
    return explains;
}
