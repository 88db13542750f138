/* The rendezvous of a communicator's members at the coordinator, and leaving a communicator.
 *
 * Out: the messages Join, Split and Shrink, which the coordinator answers when every member has sent its own, and Leave. In:
 * the answers, in the coordinator client's thread. A communicator of one rank needs no rendezvous and is ready at once. */

#include "device/attributes.h"
#include "device/late_rank.h"
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t nccl_changed = PTHREAD_COND_INITIALIZER;

/* A request that the coordinator has not answered. */
typedef struct request {
    int64_t number;
    nccl_communicator *communicator; /* NULL: the communicator was left meanwhile */
    struct request *next;
} request;

static request *requests;
static int64_t request_count;
static bool lost;             /* the coordinator no longer answers */
static const char *lost_text; /* the reason; NULL: this process is ending */

bool nccl_coordinator_is_lost(void) { return lost; }

/* ---- requests; nccl_lock is held ---- */

static int64_t new_request(nccl_communicator *communicator) {
    request *made = malloc(sizeof *made);
    if (made == NULL) abort();
    *made = (request){.number = ++request_count, .communicator = communicator, .next = requests};
    requests = made;
    return made->number;
}

/* true if there was such a request; *communicator is its communicator, or NULL. */
static bool take_request(int64_t number, nccl_communicator **communicator) {
    for (request **link = &requests; *link; link = &(*link)->next) {
        request *found = *link;
        if (found->number != number) continue;
        *communicator = found->communicator;
        *link = found->next;
        free(found);
        return true;
    }
    return false;
}

static void forget_requests_of(const nccl_communicator *communicator) {
    for (request *each = requests; each; each = each->next) {
        if (each->communicator == communicator) each->communicator = NULL;
    }
}

static void send_leave(int64_t identifier, bool aborted) {
    int ending = aborted ? MAYA_ENDING_ABORTED : MAYA_ENDING_DESTROYED;
    maya_pack_leave(maya_outgoing_begin(), &(maya_leave){.communicator = identifier, .ending = ending});
    maya_outgoing_end(NULL, 0);
    maya_outgoing_send();
}

void nccl_drop_reference(nccl_communicator *communicator) {
    if (--communicator->references > 0) return;
    free(communicator->description);
    free(communicator->members);
    free(communicator->sent);
    free(communicator->received);
    free(communicator);
}

void nccl_note_error(nccl_communicator *communicator, nccl_result result, const char *text, size_t length) {
    if (communicator->state != NCCL_SUCCESS && communicator->state != NCCL_IN_PROGRESS) return; /* keep the first error */
    communicator->state = result;
    if (length >= sizeof communicator->error) length = sizeof communicator->error - 1;
    memcpy(communicator->error, text, length);
    communicator->error[length] = '\0';
    nccl_keep_late_error(communicator->error);
    pthread_cond_broadcast(&nccl_changed);
}

/* ---- answers, in the coordinator client's thread ---- */

static void joined(const maya_joined *message) {
    nccl_communicator *communicator = NULL;
    pthread_mutex_lock(&nccl_lock);
    bool was_asked = take_request(message->request, &communicator);
    if (was_asked && communicator == NULL && message->communicator != 0) send_leave(message->communicator, true);
    if (communicator != NULL) {
        communicator->identifier = message->communicator;
        communicator->ranks = (int)message->members.count;
        communicator->rank = (int)message->member;
        communicator->instance = message->instance;
        size_t bytes = message->members.count * sizeof *communicator->members;
        communicator->members = malloc(bytes);
        if (communicator->members == NULL) abort();
        memcpy(communicator->members, message->members.items, bytes);
        communicator->state = NCCL_SUCCESS;
        pthread_cond_broadcast(&nccl_changed);
    }
    pthread_mutex_unlock(&nccl_lock);
}

static nccl_result valid_result(int64_t number) {
    return number > NCCL_SUCCESS && number <= NCCL_TIMEOUT ? (nccl_result)number : NCCL_INTERNAL_ERROR;
}

static void request_failed(const maya_request_failed *message) {
    nccl_communicator *communicator = NULL;
    maya_fold_errors(); /* before the program learns of the error */
    pthread_mutex_lock(&nccl_lock);
    take_request(message->request, &communicator);
    if (communicator != NULL) {
        nccl_note_error(communicator, valid_result(message->result), message->text.bytes, message->text.size);
    }
    pthread_mutex_unlock(&nccl_lock);
    nccl_debug_warn(message->text.bytes, message->text.size);
    maya_message("NCCL: %.*s", (int)message->text.size, message->text.bytes);
}

static void described(const maya_described *message) {
    nccl_communicator *communicator = NULL;
    pthread_mutex_lock(&nccl_lock);
    take_request(message->request, &communicator);
    if (communicator != NULL) communicator->description = strndup(message->text.bytes, message->text.size);
    pthread_cond_broadcast(&nccl_changed);
    pthread_mutex_unlock(&nccl_lock);
}

static void coordinator_lost(const char *why) {
    const char *text = why ? why : "the process ends";
    pthread_mutex_lock(&nccl_lock);
    lost = true;
    lost_text = why;
    for (request *each = requests; each; each = each->next) {
        if (each->communicator) nccl_note_error(each->communicator, NCCL_SYSTEM_ERROR, text, strlen(text));
        each->communicator = NULL;
    }
    pthread_mutex_unlock(&nccl_lock);
    nccl_drop_operations(NULL, why);
}

/* ---- rendezvous ---- */

static void before_fork(void) { pthread_mutex_lock(&nccl_lock); }

static void after_fork(void) { pthread_mutex_unlock(&nccl_lock); }

/* The threads that wait, and the connection that would answer, exist only in the parent. */
static void after_fork_in_child(void) {
    pthread_cond_init(&nccl_changed, NULL);
    nccl_operations_after_fork();
    requests = NULL;
    lost = true;
    lost_text = "this process was forked from the rank that is the member";
    after_fork();
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork_in_child); }

static nccl_result connect_to_coordinator(const char *function, int ranks) {
    static const maya_client_receiver receiver = {
        .joined = joined,
        .request_failed = request_failed,
        .described = described,
        .done = nccl_operation_done,
        .failed = nccl_operation_failed,
        .abandoned = nccl_operation_abandoned,
        .lost = coordinator_lost,
    };
    static const char no_peers[] =
        "the run has one rank, so no other process will join. If the script starts ranks itself (mp.spawn), run it below maya "
        "exec: maya exec -- python SCRIPT; otherwise give maya-torchrun the number of ranks (--nproc)";
    static pthread_once_t forks = PTHREAD_ONCE_INIT;
    static _Atomic bool said;
    bool has_no_peers = maya_get_settings()->virtual_clock && maya_get_settings()->world_size == 1 && !nccl_group_is_open();
    const char *problem = has_no_peers ? no_peers : maya_client_connect(&receiver);
    if (has_no_peers && !said) maya_message("NCCL: %s", problem);
    said |= has_no_peers;
    if (problem) return nccl_fail(NCCL_SYSTEM_ERROR, "%s: a communicator of %d ranks: %s", function, ranks, problem);
    pthread_once(&forks, watch_forks);
    maya_threads_wait_on(&nccl_changed);
    return NCCL_SUCCESS;
}

/* Hashes the unique id into the key that only the members of one communicator share. */
static void make_key(uint64_t key[2], const void *identifiers, size_t bytes) {
    const unsigned char *byte = identifiers;
    key[0] = 0xCBF29CE484222325u;
    key[1] = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < bytes; i++) {
        key[0] = (key[0] ^ byte[i]) * 0x100000001B3u;
        key[1] = (key[1] + byte[i]) * 0xD6E8FEB86659FD93u;
        key[1] ^= key[1] >> 32;
    }
}

/* NCCL reads the text of a PCI address, "0000:1B:00.0", as one hexadecimal number. */
int64_t nccl_bus_id(int device) { return (int64_t)maya_device_attribute_of(device, MAYA_ATTRIBUTE_PCI_BUS) << 12; }

static nccl_result init_one_rank(nccl_communicator *communicator) {
    static int64_t instances;
    pthread_mutex_lock(&nccl_lock);
    communicator->ranks = 1;
    communicator->rank = 0;
    communicator->instance = instances++;
    communicator->state = NCCL_SUCCESS;
    pthread_mutex_unlock(&nccl_lock);
    return NCCL_SUCCESS;
}

nccl_result nccl_join(nccl_communicator *communicator, const void *identifiers, size_t identifier_bytes) {
    uint64_t key[2];
    make_key(key, identifiers, identifier_bytes);
    communicator->key = key[0];
    nccl_debug_init_begins(communicator);
    if (communicator->ranks == 1) return init_one_rank(communicator);
    nccl_result result = connect_to_coordinator(communicator->function, communicator->ranks);
    if (result != NCCL_SUCCESS) return result;
    if (!nccl_group_is_open()) maya_place_by_communicator(communicator->rank, communicator->ranks, key);
    pthread_mutex_lock(&nccl_lock);
    maya_join message = {
        .request = new_request(communicator),
        .key = {(const char *)key, sizeof key},
        .member = communicator->rank,
        .ranks = communicator->ranks,
        .node = maya_get_settings()->rank / maya_get_settings()->ranks_per_node,
        .gpu = maya_visible_devices()->physical[communicator->device],
        .bus_id = nccl_bus_id(communicator->device),
    };
    maya_pack_join(maya_outgoing_begin(), &message);
    maya_outgoing_end(NULL, 0);
    pthread_mutex_unlock(&nccl_lock);
    maya_outgoing_send();
    if (maya_get_settings()->debug > 0) {
        maya_message("NCCL: %s: communicator %u: rank %d of %d joins %016llx%016llx", communicator->function,
                     communicator->number, communicator->rank, communicator->ranks, (unsigned long long)key[0],
                     (unsigned long long)key[1]);
    }
    return NCCL_SUCCESS;
}

nccl_result nccl_split(nccl_communicator *parent, nccl_communicator *communicator, int color, int key) {
    if (communicator) nccl_debug_init_begins(communicator);
    if (parent->identifier == 0) return communicator ? init_one_rank(communicator) : NCCL_SUCCESS;
    pthread_mutex_lock(&nccl_lock);
    maya_split message = {
        .request = new_request(communicator),
        .parent = parent->identifier,
        .sequence = parent->children++,
        .color = color,
        .key = key,
    };
    maya_pack_split(maya_outgoing_begin(), &message);
    maya_outgoing_end(NULL, 0);
    pthread_mutex_unlock(&nccl_lock);
    maya_outgoing_send();
    if (maya_get_settings()->debug > 0) {
        maya_message("NCCL: ncclCommSplit: communicator %u: color %d, key %d", parent->number, color, key);
    }
    return NCCL_SUCCESS;
}

nccl_result nccl_shrink(nccl_communicator *parent, nccl_communicator *communicator, const int *excluded, int count) {
    nccl_debug_init_begins(communicator);
    int64_t *ranks = malloc((size_t)count * sizeof *ranks);
    if (ranks == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    for (int i = 0; i < count; i++) ranks[i] = excluded[i];
    pthread_mutex_lock(&nccl_lock);
    maya_shrink message = {
        .request = new_request(communicator),
        .parent = parent->identifier,
        .sequence = parent->children++,
        .excluded = {ranks, (size_t)count},
    };
    maya_pack_shrink(maya_outgoing_begin(), &message);
    maya_outgoing_end(NULL, 0);
    pthread_mutex_unlock(&nccl_lock);
    free(ranks);
    maya_outgoing_send();
    if (maya_get_settings()->debug > 0) {
        maya_message("NCCL: ncclCommShrink: communicator %u: %d of %d ranks excluded", parent->number, count, parent->ranks);
    }
    return NCCL_SUCCESS;
}

char *nccl_describe(nccl_communicator *communicator, int seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&nccl_lock);
    maya_describe message = {
        .request = new_request(communicator),
        .communicator = communicator->identifier,
        .handle = (int64_t)(uintptr_t)communicator,
    };
    maya_pack_describe(maya_outgoing_begin(), &message);
    maya_outgoing_end(NULL, 0);
    maya_outgoing_send();
    while (communicator->description == NULL && !lost) {
        if (pthread_cond_timedwait(&nccl_changed, &nccl_lock, &until) != 0) break;
    }
    char *text = communicator->description;
    communicator->description = NULL;
    pthread_mutex_unlock(&nccl_lock);
    return text;
}

/* Charges the device memory of the communicator's buffers; false: the device has not enough. */
static bool charge_buffers(nccl_communicator *communicator) {
    int64_t bytes = nccl_buffer_bytes(communicator);
    if (bytes == 0) return true;
    if (maya_use_device(communicator->device) == 0 && maya_device_charge(communicator->device, bytes) == 0) {
        communicator->charged = bytes;
        return true;
    }
    char text[128];
    int length = snprintf(text, sizeof text, "out of memory: device %d has no room for NCCL's buffers of %lld MiB",
                          communicator->device, (long long)(bytes >> 20));
    pthread_mutex_lock(&nccl_lock);
    nccl_note_error(communicator, NCCL_CUDA_ERROR, text, (size_t)length);
    pthread_mutex_unlock(&nccl_lock);
    return false;
}

nccl_result nccl_finish_init(nccl_communicator *communicator) {
    pthread_mutex_lock(&nccl_lock);
    if (lost_text && communicator->identifier != 0) {
        nccl_note_error(communicator, NCCL_SYSTEM_ERROR, lost_text, strlen(lost_text));
    }
    nccl_result state = communicator->state;
    bool first = state == NCCL_SUCCESS && !communicator->init_finished;
    if (first) communicator->init_finished = true;
    pthread_mutex_unlock(&nccl_lock);
    if (!first) return state;
    if (!charge_buffers(communicator)) return NCCL_CUDA_ERROR;
    nccl_record_init(communicator);
    nccl_debug_init_ends(communicator);
    if (maya_get_settings()->debug > 0) {
        maya_message("NCCL: %s: communicator %u: rank %d of %d is ready", communicator->function, communicator->number,
                     communicator->rank, communicator->ranks);
    }
    return state;
}

/* ---- leaving ---- */

void nccl_cancel_operations(nccl_communicator *communicator) {
    pthread_mutex_lock(&nccl_lock);
    communicator->gone = true;
    pthread_mutex_unlock(&nccl_lock);
    nccl_drop_operations(communicator, NULL);
}

void nccl_leave(nccl_communicator *communicator, bool aborted) {
    nccl_cancel_operations(communicator);
    pthread_mutex_lock(&nccl_lock);
    communicator->destroyed = !aborted;
    forget_requests_of(communicator); /* a communicator whose answer is still to come is left when it comes */
    if (communicator->identifier != 0) send_leave(communicator->identifier, aborted);
    int device = communicator->device;
    int64_t charged = communicator->charged;
    nccl_drop_reference(communicator);
    pthread_mutex_unlock(&nccl_lock);
    if (charged > 0) maya_device_charge(device, -charged);
}
