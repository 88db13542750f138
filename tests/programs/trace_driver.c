/* A program that records, for test_trace_recorder.py: the real recorder with stand-ins for the settings and for messages.
 * In: a mode, its arguments, the trace path in TRACE. Out: a trace, and on stdout what the test asks for. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "process.h"
#include "trial.h"

const maya_settings *maya_known_settings; /* asked for each time: the environment may change */

const maya_settings *maya_read_settings(void) {
    static maya_settings settings = {.rank = 3, .device.name = "Test GPU"};
    snprintf(settings.trace_path, sizeof settings.trace_path, "%s", getenv("TRACE"));
    settings.bare = getenv("BARE") != NULL;
    return &settings;
}

void maya_message(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* Forks and the end of a process as process.c and coordinator_client.c see to them, for the recorder alone. */
static void before_fork(void) {
    pthread_mutex_lock(&maya_recorder_lock);
    pthread_mutex_lock(&maya_insertion_lock);
}
static void after_fork(void) {
    pthread_mutex_unlock(&maya_insertion_lock);
    pthread_mutex_unlock(&maya_recorder_lock);
}
static void after_fork_in_child(void) {
    maya_recorder_after_fork();
    after_fork();
}
void maya_watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork_in_child); }
void maya_client_end(void) {}
void maya_drain_at_exit(int status) { (void)status; }
void maya_faults_end(void) {}
bool maya_waits_to_appear(void) { return false; }
/* There is no virtual clock. */
void maya_clock_begin(void) {}
void maya_clock_after_record(void) {}
bool maya_clock_shares_first_cursor(const maya_thread *thread) { return thread->number == 1; }
bool maya_trial_hides(maya_thread *thread, maya_record_kind kind, uint32_t signature, uint64_t value) {
    (void)kind, (void)signature, (void)value;
    return thread->trials > 0;
}

/* With --wrap: allocation number `failing_allocation` fails, and so do all after it. */
static long failing_allocation = -1, allocations;
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
static bool allocation_fails(void) {
    return failing_allocation >= 0 && allocations++ >= failing_allocation;
}
void *__wrap_malloc(size_t size) {
    return allocation_fails() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size) {
    return allocation_fails() ? NULL : __real_calloc(count, size);
}

/* With --wrap: write number `failing_write` stops halfway, and the rest of it fails with `write_error`. */
static long failing_write = -1, writes;
static int write_error;
ssize_t __real_writev(int file, const struct iovec *pieces, int count);
ssize_t __wrap_writev(int file, const struct iovec *pieces, int count) {
    long number = writes++;
    if (failing_write < 0 || number < failing_write || number > failing_write + 1)
        return __real_writev(file, pieces, count); /* what follows the failure says so in the file */
    if (number == failing_write)
        return __real_writev(file, pieces, 1);
    errno = write_error;
    return -1;
}

static uint32_t kernel_signature(int which) {
    char text[160];
    int length = snprintf(text, sizeof text,
                          "{\"kernel\":\"_ZN2at6native6kernelILi%dEEEvPf\",\"grid\":[%d,1,1],\"block\":[128,1,1],"
                          "\"shared\":0}",
                          which, which);
    return maya_intern(text, (size_t)length);
}

static void launch(int count) {
    for (int i = 0; i < count; i++)
        maya_record(MAYA_RECORD_KERNEL, 7, kernel_signature(i % 300), (uint64_t)i, 0);
}

static int launches_per_thread;

/* Like a training loop: ops begin, some of them launch, the stream and the signature follow the thread and the loop. */
static void *launch_in_thread(void *stream) {
    maya_thread *thread = maya_this_thread();
    for (int i = 0; i < launches_per_thread; i++) {
        uint64_t began = maya_now_ns();
        thread->current_op = maya_next_op();
        thread->ops_uncounted += 2;
        maya_record(MAYA_RECORD_KERNEL, (uint32_t)(uintptr_t)stream, kernel_signature(i % 300), (uint64_t)i, 0);
        if (i % 10 == 0)
            maya_record_op(MAYA_RECORD_OP, thread->current_op, 0, kernel_signature(i % 7), began, maya_now_ns() - began,
                           UINT32_MAX);
    }
    if (thread->device_work != (uint32_t)launches_per_thread)
        printf("device_work is %u\n", thread->device_work);
    return NULL;
}

static void two_threads(int count) {
    pthread_t threads[2];
    launches_per_thread = count;
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, launch_in_thread, (void *)(i + 1));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* Records as they come from stdin, so that a test can choose every field. */
static void from_stdin(void) {
    struct __attribute__((packed)) {
        uint64_t value;
        uint32_t stream, signature, op, ops;
        uint8_t kind, flags;
    } given;
    while (fread(&given, sizeof given, 1, stdin) == 1) {
        maya_this_thread()->current_op = given.op;
        maya_this_thread()->ops_uncounted = given.ops;
        maya_record(given.kind, given.stream, given.signature, given.value, given.flags);
    }
}

static void ops(void) {
    static const char mm[] = "{\"op\":\"aten::mm\",\"inputs\":["
                             "{\"shape\":[2,3],\"dtype\":\"bfloat16\",\"strides\":[1,2]},"
                             "{\"shape\":[3,4],\"dtype\":\"bfloat16\",\"strides\":[4,1]},null,[1,2]]}";
    static const char step[] = "{\"op\":\"ProfilerStep#1\"}";
    static const char gemm[] = "{\"call\":\"cublasGemmEx\",\"m\":2,\"n\":4,\"k\":3,\"batch\":5,\"a_type\":\"bf16\"}";
    static const char copy[] = "{\"copy\":\"DtoH\"}";
    static const char read[] = "{\"read\":\"aten::_local_scalar_dense\",\"at\":\"train.py:33\",\"bytes\":4}";
    maya_thread *thread = maya_this_thread();
    uint32_t outer = maya_next_op(), inner = maya_next_op();
    thread->current_op = inner;
    thread->ops_uncounted = 2;
    maya_record(MAYA_RECORD_LIBRARY, 0, maya_intern(gemm, strlen(gemm)), 0, 0);
    maya_record_op(MAYA_RECORD_OP, inner, outer, maya_intern(mm, strlen(mm)), 100, 2500, 17);
    thread->current_op = outer;
    maya_record(MAYA_RECORD_MEMCPY, 0, maya_intern(copy, strlen(copy)), 4096, 0);
    maya_record(MAYA_RECORD_PLACEHOLDER_READ, 0, maya_intern(read, strlen(read)), 4, 0);
    maya_record(MAYA_RECORD_STREAM_CREATE, 5, 0, (uint64_t)-1, 0);
    maya_record_op(MAYA_RECORD_ANNOTATION, outer, 0, maya_intern(step, strlen(step)), 50, 6000000000, UINT32_MAX);
    thread->current_op = 0;
    maya_record(MAYA_RECORD_KERNEL, 5, kernel_signature(1), 0, MAYA_FLAG_FROM_GRAPH);
}

/* A child that records 5, then leaves as `leave` says; the parent goes on and says the child's number. */
static void fork_one(const char *leave) {
    launch(10);
    pid_t child = fork();
    if (child == 0) {
        if (strcmp(leave, "silently") != 0)
            launch(5);
        if (strcmp(leave, "exit") == 0)
            exit(0);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    launch(10);
    printf("%d\n", (int)child);
}

static void vfork_one(void) {
    launch(10);
    pid_t child = vfork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    launch(10);
}

/* While this process records, it runs another one with the same settings. */
static void sibling(const char *program) {
    launch(10);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "launch", "5", NULL);
        _exit(1);
    }
    waitpid(child, NULL, 0);
    launch(10);
    printf("%d\n", (int)child);
}

static void limited_file(int count, rlim_t bytes) {
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, bytes});
    launch(count);
    puts("the program went on");
}

static void broken_disk(int error) {
    write_error = error;
    failing_write = 5; /* after the header, three blocks of strings and one of records */
    launch(3 * 4096);
    puts("the program went on");
}

/* The number that the program's stderr had is free when the trace is opened. */
static void without_stderr(void) {
    close(STDERR_FILENO);
    launch(10);
    if (write(STDERR_FILENO, "to nobody", 9) < 0)
        puts("the program went on");
}

/* The program closes what it did not open, and gets the number for a file of its own. */
static void closed_descriptor(const char *other_file) {
    launch(5000);
    for (int i = 3; i < 64; i++)
        close(i);
    open(other_file, O_WRONLY | O_CREAT, 0600);
    launch(5000);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ns for a record and for a look-up of a signature. */
static void benchmark(int count) {
    double began = seconds();
    for (int i = 0; i < count; i++)
        maya_record(MAYA_RECORD_KERNEL, 7, (uint32_t)(i % 300), 0, 0);
    double recorded = seconds();
    char text[] = "{\"kernel\":\"_ZN2at6native29vectorized_elementwise_kernelILi4E\",\"grid\":[1024,1,1],"
                  "\"block\":[128,1,1]}";
    uint32_t sum = 0;
    for (int i = 0; i < count; i++) {
        text[20] = (char)('A' + i % 16);
        sum += maya_intern(text, sizeof text - 1);
    }
    double interned = seconds();
    double per_record = (recorded - began) / count * 1e9, per_string = (interned - recorded) / count * 1e9;
    printf("record %.1f ns, intern %.1f ns (%u)\n", per_record, per_string, sum);
}

int main(int argc, char **argv) {
    const char *mode = argv[1];
    const char *argument = argc > 2 ? argv[2] : "";
    int count = atoi(argument);
    if (strcmp(mode, "launch") == 0) {
        launch(count);
    } else if (strcmp(mode, "two-threads") == 0) {
        two_threads(count);
    } else if (strcmp(mode, "stdin") == 0) {
        from_stdin();
    } else if (strcmp(mode, "ops") == 0) {
        ops();
    } else if (strcmp(mode, "fork") == 0) {
        fork_one(argument);
    } else if (strcmp(mode, "vfork") == 0) {
        vfork_one();
    } else if (strcmp(mode, "sibling") == 0) {
        sibling(argv[0]);
    } else if (strcmp(mode, "limited") == 0) {
        limited_file(count, (rlim_t)atol(argv[3]));
    } else if (strcmp(mode, "broken-disk") == 0) {
        broken_disk(count);
    } else if (strcmp(mode, "without-stderr") == 0) {
        without_stderr();
    } else if (strcmp(mode, "closed") == 0) {
        closed_descriptor(argument);
    } else if (strcmp(mode, "killed") == 0) {
        launch(count);
        raise(SIGKILL);
    } else if (strcmp(mode, "flush") == 0) {
        launch(count);
        maya_record_flush();
        raise(SIGKILL);
    } else if (strcmp(mode, "slow") == 0) {
        launch(1);
        usleep(1100000);
        launch(1);
        raise(SIGKILL);
    } else if (strcmp(mode, "_exit") == 0) {
        launch(count);
        _exit(0);
    } else if (strcmp(mode, "no-memory") == 0) {
        failing_allocation = count;
        launch(1000);
    } else if (strcmp(mode, "benchmark") == 0) {
        benchmark(count);
    }
    return 0;
}
