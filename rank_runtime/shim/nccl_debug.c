/* NCCL_DEBUG: the lines that NCCL logs, about what is emulated.
 *
 * In: NCCL_DEBUG, NCCL_DEBUG_FILE and NCCL_DEBUG_SUBSYS, read at the first init of a communicator; for rings, trees,
 * transports and the tuner's choices the coordinator's answer to Describe. Out: lines on stdout or in the file, each in one
 * write, so that lines of several ranks do not mix. */

#define _GNU_SOURCE
#include "device/attributes.h"
#include "nccl_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef enum { LEVEL_NONE, LEVEL_VERSION, LEVEL_WARN, LEVEL_INFO } debug_level;

enum { LONGEST_HOST = 64, LONGEST_PREFIX = 256, PATIENCE_SECONDS = 30 };

/* Subsystems that have lines here. NCCL's others exist, and nothing is logged about them. */
static const char *const subsystems[] = {"INIT",  "COLL", "P2P",   "SHM",  "NET",       "GRAPH", "TUNING",  "ENV",
                                         "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG",   "PROFILE", "RAS"};
enum { SUBSYSTEMS = sizeof subsystems / sizeof *subsystems, DEFAULT_SUBSYSTEMS = 1 << 0 | 1 << 7 | 1 << 12 };

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static debug_level level;
static unsigned chosen = DEFAULT_SUBSYSTEMS;
static int target = STDOUT_FILENO;
static char host[LONGEST_HOST];

static unsigned subsystem_of(const char *name, size_t length) {
    if (length == 3 && strncasecmp(name, "ALL", length) == 0) return ~0u;
    for (int i = 0; i < SUBSYSTEMS; i++) {
        if (strlen(subsystems[i]) == length && strncasecmp(name, subsystems[i], length) == 0) return 1u << i;
    }
    return 0;
}

/* "INIT,GRAPH", or with "^" in front all but these. */
static void read_subsystems(const char *text) {
    bool inverted = *text == '^';
    unsigned named = 0;
    for (text += inverted; *text != '\0';) {
        size_t length = strcspn(text, ",");
        named |= subsystem_of(text, length);
        text += length + (text[length] == ',');
    }
    chosen = inverted ? ~named : named;
}

/* %h is the host, %p the process. */
static void open_file(const char *pattern) {
    char path[4096];
    size_t used = 0;
    for (; *pattern != '\0' && used + LONGEST_HOST < sizeof path; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'h') used += (size_t)snprintf(path + used, sizeof path - used, "%s", host);
        else if (pattern[0] == '%' && pattern[1] == 'p') {
            used += (size_t)snprintf(path + used, sizeof path - used, "%d", (int)getpid());
        } else {
            path[used++] = *pattern;
            if (pattern[0] == '%' && pattern[1] == '%') pattern++;
            continue;
        }
        pattern++;
    }
    path[used] = '\0';
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0666);
    if (file >= 0) target = file;
}

static void read_environment(void) {
    const char *text = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE"), *subsystem = getenv("NCCL_DEBUG_SUBSYS");
    if (text == NULL) return;
    if (strcasecmp(text, "VERSION") == 0) level = LEVEL_VERSION;
    else if (strcasecmp(text, "WARN") == 0) level = LEVEL_WARN;
    else if (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "ABORT") == 0 || strcasecmp(text, "TRACE") == 0) {
        level = LEVEL_INFO; /* TRACE: NCCL's releases are built without its further lines */
    }
    if (gethostname(host, sizeof host - 1) != 0) strcpy(host, "unknown");
    host[strcspn(host, ".")] = '\0';
    if (subsystem && *subsystem) read_subsystems(subsystem);
    if (file && *file && level > LEVEL_VERSION) open_file(file);
}

static bool logs(debug_level wanted) {
    pthread_once(&read_once, read_environment);
    return level >= wanted;
}

static void write_line(const char *line, size_t length) {
    while (length > 0) {
        ssize_t written = write(target, line, length);
        if (written <= 0) return;
        line += written;
        length -= (size_t)written;
    }
}

static void log_text(const char *kind, int device, const char *text, size_t length) {
    char *line = malloc(LONGEST_PREFIX + length + 2);
    if (line == NULL) return;
    int used = snprintf(line, LONGEST_PREFIX, "%s:%d:%d [%d] NCCL %s ", host, (int)getpid(), (int)gettid(), device, kind);
    memcpy(line + used, text, length);
    line[(size_t)used + length] = '\n';
    write_line(line, (size_t)used + length + 1);
    free(line);
}

void nccl_debug_warn(const char *text, size_t length) {
    if (logs(LEVEL_WARN)) log_text("WARN", maya_current_device(), text, length);
}

static void __attribute__((format(printf, 2, 3))) info(int device, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text) length = sizeof text - 1;
    if (length > 0) log_text("INFO", device, text, (size_t)length);
}

/* ---- init ---- */

static void say_version(void) {
    char line[128];
    int length = snprintf(line, sizeof line, "NCCL version %d.%d.%d+cuda%d.%d\n", MAYA_NCCL_VERSION / 10000,
                          MAYA_NCCL_VERSION / 100 % 100, MAYA_NCCL_VERSION % 100, MAYA_CUDA_VERSION / 1000,
                          MAYA_CUDA_VERSION % 1000 / 10);
    write_line(line, (size_t)length);
}

/* The parts that an init's first and last line have in common. */
static void say_init(const nccl_communicator *communicator, const char *stage) {
    int device = communicator->device, rank = communicator->rank, ranks = communicator->ranks;
    char members[64] = "", identity[48] = "";
    if (rank >= 0) snprintf(members, sizeof members, " rank %d nranks %d", rank, ranks);
    if (communicator->key) snprintf(identity, sizeof identity, " commId 0x%llx", (unsigned long long)communicator->key);
    info(device, "%s comm %p%s cudaDev %d nvmlDev %d busId %llx%s - Init %s", communicator->function,
         (const void *)communicator, members, device, maya_visible_devices()->physical[device],
         (unsigned long long)nccl_bus_id(device), identity, stage);
}

void nccl_debug_init_begins(const nccl_communicator *communicator) {
    static _Atomic bool said_version;
    if (logs(LEVEL_VERSION) && communicator->rank == 0 && !said_version) {
        said_version = true;
        say_version();
    }
    if (logs(LEVEL_INFO) && chosen & 1) say_init(communicator, "START");
}

/* Lines of a subsystem, a tab and a text. */
static void say_description(int device, const char *text) {
    while (*text != '\0') {
        size_t length = strcspn(text, "\n"), name = strcspn(text, "\t");
        if (name < length && subsystem_of(text, name) & chosen) log_text("INFO", device, text + name + 1, length - name - 1);
        text += length + (text[length] == '\n');
    }
}

void nccl_debug_init_ends(nccl_communicator *communicator) {
    if (!logs(LEVEL_INFO)) return;
    if (communicator->identifier != 0) {
        char *text = nccl_describe(communicator, PATIENCE_SECONDS);
        if (text) say_description(communicator->device, text);
        free(text);
    }
    if (chosen & 1) say_init(communicator, "COMPLETE");
}
