/* Messages to the user: lines on stderr that name the rank. */

#include "device.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

pthread_mutex_t maya_reported_lock = PTHREAD_MUTEX_INITIALIZER;

static void message(const char *format, va_list arguments) {
    char line[1024];
    int used = snprintf(line, sizeof line, "maya: [rank %d] ", maya_get_settings()->rank);
    int body = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    size_t length = (size_t)used + (size_t)(body > 0 ? body : 0);
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    /* a single write, so that lines of several ranks do not mix */
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written;
}

void maya_message(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    message(format, arguments);
    va_end(arguments);
}

/* true at the first call with this text. */
static bool first_time(const char *what) {
    enum { LIMIT = 512 };
    static uint64_t seen[LIMIT];
    static int count;
    uint64_t hash = 1469598103934665603u;
    for (const char *c = what; *c; c++) hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    pthread_mutex_lock(&maya_reported_lock);
    bool is_new = true;
    for (int i = 0; i < count; i++) is_new = is_new && seen[i] != hash;
    if (is_new && count < LIMIT) seen[count++] = hash;
    else if (is_new) is_new = false;
    pthread_mutex_unlock(&maya_reported_lock);
    return is_new;
}

void maya_unsupported(const char *function) {
    if (first_time(function)) {
        maya_message("%s is not emulated; it returns its library's 'not supported' error (see docs/limitations.md)", function);
    }
}

void maya_unsupported_detail(const char *function, const char *format, ...) {
    char detail[512], whole[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "%s (%s)", function, detail);
    maya_unsupported(whole);
}

/* The file is beside that of the tracebacks; maya/launcher/folded_lines.py reads it. */
static void fold_errors(void) {
    const unsigned long least_room = 1 << 20;
    const char *tracebacks = getenv(MAYA_VARIABLE_TRACEBACKS);
    const char *name = tracebacks ? strrchr(tracebacks, '/') : NULL;
    if (name == NULL) return;
    char path[4096];
    int length =
        snprintf(path, sizeof path, "%.*s/stderr-%d", (int)(name - tracebacks), tracebacks, maya_get_settings()->rank);
    if (length >= (int)sizeof path) return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return;
    struct statvfs disk;
    if (fstatvfs(file, &disk) == 0 && disk.f_bavail * disk.f_frsize >= least_room) dup2(file, STDERR_FILENO);
    close(file);
}

void maya_fold_errors(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fold_errors);
}
