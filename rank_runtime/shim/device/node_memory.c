/* The memory that the processes of this node hold on its devices.
 *
 * In: this process, and if it is not a rank (nvidia-smi, a monitor that a rank has started), the ranks of the run on the
 * same node, which it asks through their sockets (stacks.c, question "memory"). Out: one entry for each process and device.
 *
 * A rank never asks others: the answer would depend on the real time at which it asks. */

#include "engine.h"
#include "internal.h"
#include "stacks_socket.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE_MILLISECONDS = 500, LONGEST_ANSWER = 8192 };

typedef struct {
    maya_memory_use *uses;
    int count, capacity;
} use_list;

static void add_use(use_list *list, int process, int device, uint64_t bytes) {
    if (bytes == 0 || list->count == list->capacity) return;
    list->uses[list->count++] = (maya_memory_use){.process = process, .device = device, .bytes = bytes};
}

static void add_own(use_list *list) {
    if (maya_is_copy_of_rank()) return;               /* its devices are the rank's */
    const maya_devices *visible = maya_known_devices; /* before CUDA is used, nothing is */
    for (int device = 0; visible && device < visible->count; device++) {
        size_t free_bytes, total_bytes;
        maya_memory_info(device, &free_bytes, &total_bytes);
        add_use(list, (int)getpid(), visible->physical[device], total_bytes - free_bytes);
    }
}

static int node_of_rank(void) {
    const maya_settings *settings = maya_get_settings();
    return settings->rank / settings->ranks_per_node;
}

void maya_answer_memory(int to) {
    maya_memory_use uses[MAYA_MAX_DEVICES];
    use_list list = {.uses = uses, .capacity = MAYA_MAX_DEVICES};
    add_own(&list);
    dprintf(to, "node %d\n", node_of_rank());
    for (int i = 0; i < list.count; i++) {
        dprintf(to, "device %d %llu\n", uses[i].device, (unsigned long long)uses[i].bytes);
    }
}

/* ---- other processes ---- */

/* Asks the process behind an abstract socket. An empty answer: it has ended, or does not answer in time. */
static void ask(const char *name, char answer[LONGEST_ANSWER]) {
    static const char question[] = "memory\n";
    answer[0] = '\0';
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length >= sizeof address.sun_path) return;
    memcpy(address.sun_path + 1, name, length);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0) return;
    struct timeval patience = {.tv_usec = PATIENCE_MILLISECONDS * 1000};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    size_t used = 0;
    if (connect(connection, (struct sockaddr *)&address, size) == 0 && maya_peer_is_ours(connection) &&
        send(connection, question, sizeof question - 1, MSG_NOSIGNAL) == (ssize_t)sizeof question - 1) {
        for (ssize_t got;
             used < LONGEST_ANSWER - 1 && (got = recv(connection, answer + used, LONGEST_ANSWER - 1 - used, 0)) > 0;) {
            used += (size_t)got;
        }
    }
    answer[used] = '\0';
    close(connection);
}

static void add_answer(use_list *list, int process, char *answer) {
    int node = -1;
    for (char *line = strsep(&answer, "\n"); line; line = strsep(&answer, "\n")) {
        int device;
        unsigned long long bytes;
        if (sscanf(line, "node %d", &node) == 1) continue;
        if (node == node_of_rank() && sscanf(line, "device %d %llu", &device, &bytes) == 2) {
            add_use(list, process, device, bytes);
        }
    }
}

/* The kernel lists the sockets of this machine; the run's have its hash in their names. */
static void add_ranks(use_list *list) {
    char run[32], *answer = malloc(LONGEST_ANSWER), line[512];
    FILE *sockets = fopen("/proc/net/unix", "re");
    snprintf(run, sizeof run, "-%016llx\n", (unsigned long long)maya_hash_of_run());
    while (answer && sockets && fgets(line, sizeof line, sockets)) {
        char *name = strstr(line, " @" MAYA_STACKS_SOCKET "-"), *end = name ? strstr(name, run) : NULL;
        unsigned flags;
        if (end == NULL || sscanf(line, "%*s %*x %*x %x", &flags) != 1 || flags == 0) continue; /* not the listening one */
        int process = atoi(name + sizeof " @" MAYA_STACKS_SOCKET);
        end[sizeof "-0123456789abcdef" - 1] = '\0';
        if (process == (int)getpid()) continue;
        ask(name + 2, answer);
        add_answer(list, process, answer);
    }
    if (sockets) fclose(sockets);
    free(answer);
}

int maya_node_memory(maya_memory_use *uses, int capacity) {
    use_list list = {.uses = uses, .capacity = capacity};
    add_own(&list);
    if (!maya_is_rank() && maya_get_settings()->coordinator[0] != '\0') add_ranks(&list);
    return list.count;
}
