/* Operations among several ranks.
 *
 * In: a closed group. Its operations on one stream become one asynchronous command: when the stream reaches it, each
 * operation is posted to the coordinator with the bytes that its send buffer holds then, and the stream stops until all are
 * answered. The coordinator client's thread writes the answers to the receive buffers. A send to the own rank whose receive is
 * in the same group and stream is copied locally. nccl_bytes.c reads and writes the buffers. */

#include "device/schedule.h"
#include "device/vector.h"
#include "device/virtual_clock.h"
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stream_posts;

typedef struct {
    nccl_operation operation;
    struct stream_posts *posts;
    const void *self_source; /* not NULL: a receive from the own rank, and the send buffer of the matching send */
    bool is_delivered;       /* the matching send of such a receive: nothing is left to do */
    void *ticket;            /* the clock's; NULL for such a send or receive */
} post;

/* The operations of one group on one stream. */
typedef struct stream_posts {
    maya_stream *stream; /* set when the stream reaches them */
    bool is_captured;    /* in a graph: the template for the graph's launches */
    uint64_t arrival_ns; /* when the stream reaches them, by the rank's clock */
    size_t unanswered;   /* guarded by nccl_lock */
    size_t count;
    post items[];
} stream_posts;

/* ---- unanswered operations, by the token that the coordinator's answer repeats; guarded by nccl_lock ---- */

typedef struct {
    post *waiting; /* NULL: the place is free */
    int64_t uses;  /* part of the token, so that a late answer does not match the next operation here */
} place;

enum { PLACE_BITS = 24 };

static MAYA_VECTOR(place) places;
static size_t first_free;

static int64_t new_token(post *waiting) {
    while (first_free < places.count && places.items[first_free].waiting) first_free++;
    if (first_free == 1u << PLACE_BITS) abort();
    maya_vector_extend(&places, first_free + 1);
    place *taken = &places.items[first_free];
    taken->waiting = waiting;
    return ++taken->uses << PLACE_BITS | (int64_t)first_free;
}

static post *take_place(size_t index) {
    post *waiting = places.items[index].waiting;
    places.items[index].waiting = NULL;
    if (index < first_free) first_free = index;
    return waiting;
}

/* NULL: no operation waits for it. */
static post *take_token(int64_t token) {
    size_t index = (size_t)token & ((1u << PLACE_BITS) - 1);
    if (index >= places.count) return NULL;
    const place *taken = &places.items[index];
    return taken->waiting && taken->uses == token >> PLACE_BITS ? take_place(index) : NULL;
}

void nccl_operations_after_fork(void) {
    memset(&places, 0, sizeof places);
    first_free = 0;
}

/* ---- sequence numbers; guarded by nccl_lock ---- */

static uint64_t *counters(uint64_t **of_peers, int ranks) {
    if (*of_peers == NULL) *of_peers = calloc((size_t)ranks, sizeof **of_peers);
    if (*of_peers == NULL) abort();
    return *of_peers;
}

static uint64_t next_sequence(const nccl_operation *operation) {
    nccl_communicator *communicator = operation->communicator;
    if (!nccl_is_p2p(operation)) return communicator->collectives++;
    uint64_t **of_peers = operation->call == NCCL_SEND ? &communicator->sent : &communicator->received;
    return counters(of_peers, communicator->ranks)[operation->peer]++;
}

/* ---- posting, when the stream reaches the operations ---- */

/* Adds the operation to the batch of messages and takes over the contribution's bytes. Call with nccl_lock held. */
static void send_post(post *item, nccl_contribution *given) {
    const nccl_operation *operation = &item->operation;
    maya_post message = {
        .token = new_token(item),
        .communicator = operation->communicator->identifier,
        .call = operation->call,
        .sequence = (int64_t)operation->sequence,
        .count = (int64_t)operation->count,
        .data_type = operation->type,
        .reduction = !nccl_is_reduction(operation) ? 0
                     : operation->scaling.used     ? MAYA_REDUCTION_PREMULSUM
                                                   : operation->operator,
        .peer = nccl_has_peer(operation) ? operation->peer : -1,
        .known = {given->known, given->known_count},
        .payload = given->bytes != NULL,
        .arrival_ns = (int64_t)item->posts->arrival_ns,
        .shared_bytes = operation->shared_bytes,
        .guessed = given->guessed,
        .site = operation->site ? operation->site->number : 0,
    };
    maya_pack_post(maya_outgoing_begin(), &message);
    maya_outgoing_end(given->bytes, given->size);
}

/* Counts an answer. true: it was the last, and the caller must continue the stream. Call with nccl_lock held. */
static bool answer_is_last(stream_posts *posts) { return --posts->unanswered == 0; }

static void report_destroyed(const nccl_communicator *communicator) {
    maya_message("NCCL: a graph launch contains an operation on communicator %u, which has been destroyed; it is skipped",
                 communicator->number);
}

/* Whether the operation is a send or receive of the own rank whose counterpart is in the same group and stream. */
static bool is_local(const post *item) { return item->self_source != NULL || item->is_delivered; }

/* Ends a call with an injected fault, which is not posted. */
static void apply_fault(post *item) {
    static const char text[] = "a call on it failed (injected by --inject)";
    nccl_communicator *communicator = item->operation.communicator;
    nccl_write_placeholders(&item->operation);
    if (item->operation.fault != MAYA_CALL_FAILS) return;
    pthread_mutex_lock(&nccl_lock);
    nccl_note_error(communicator, NCCL_REMOTE_ERROR, text, sizeof text - 1);
    pthread_mutex_unlock(&nccl_lock);
    maya_message("NCCL: communicator %u: %s", communicator->number, text);
}

/* Reports a pickled object that is too large; the program would find zeros in its place. Call without nccl_lock. */
static void report_lost_object(const nccl_operation *operation, const char *what) {
    nccl_communicator *communicator = operation->communicator;
    size_t sent = nccl_send_bytes(operation), received = nccl_receive_bytes(operation);
    char text[256];
    int length = snprintf(text, sizeof text,
                          "an operation %s %zu bytes of pickled objects, but a rank keeps at most %lld: raise "
                          "MAYA_OBJECT_BYTES, if every rank may use that much memory",
                          what, sent > received ? sent : received, (long long)maya_get_settings()->object_bytes);
    pthread_mutex_lock(&nccl_lock);
    bool first = communicator->state == NCCL_SUCCESS;
    nccl_note_error(communicator, NCCL_INVALID_USAGE, text, (size_t)length);
    pthread_mutex_unlock(&nccl_lock);
    if (first) maya_message("NCCL: %s", text);
}

/* Starts one operation; returns whether a message was added to the batch. */
static bool start_one(post *item) {
    nccl_communicator *communicator = item->operation.communicator;
    nccl_contribution given = {0};
    bool local = is_local(item);
    if (item->self_source) {
        size_t bytes = nccl_receive_bytes(&item->operation);
        maya_values_copy(item->operation.receive, item->self_source, bytes);
    }
    if (!local) nccl_read_contribution(&given, &item->operation);
    bool is_faulty = !local && item->operation.fault != MAYA_CALL_IS_FINE;
    if (is_faulty) apply_fault(item);
    if (!local && given.lost) report_lost_object(&item->operation, "sends");
    pthread_mutex_lock(&nccl_lock);
    bool dropped = is_faulty || communicator->gone || communicator->state != NCCL_SUCCESS || nccl_coordinator_is_lost();
    bool is_sent = !local && !dropped;
    void *ticket = item->ticket;
    if (is_sent) send_post(item, &given);
    else answer_is_last(item->posts);
    bool is_destroyed = communicator->destroyed;
    pthread_mutex_unlock(&nccl_lock);
    if (!local && dropped) {
        free(given.bytes);
        maya_clock_dropped(ticket);
        if (is_destroyed) report_destroyed(communicator);
    }
    free(given.known);
    if (is_sent && maya_get_settings()->debug > 1) {
        maya_message("NCCL: communicator %u: call %d number %llu on %zu elements is posted, with %zu bytes",
                     communicator->number, item->operation.call, (unsigned long long)item->operation.sequence,
                     item->operation.count, given.bytes ? given.size : 0);
    }
    return is_sent;
}

/* The random delay of --schedule-seed between the last answer and the continuation of the stream. */
static uint64_t schedule_delay(const stream_posts *posts) {
    const nccl_operation *first = &posts->items[0].operation;
    uint64_t which = maya_schedule_mix(first->communicator->number, (uint64_t)first->call);
    which = maya_schedule_mix(maya_schedule_mix(which, (uint64_t)first->peer), first->sequence);
    return maya_schedule_ns(MAYA_CALL_ENDS, which);
}

static void post_all(void *argument, uint64_t arrival_ns) {
    stream_posts *posts = argument;
    maya_stream *stream = posts->stream;
    posts->arrival_ns = arrival_ns;
    posts->unanswered = posts->count + 1; /* one for this function: answers may come while it still posts */
    bool any = false;
    for (size_t i = 0; i < posts->count; i++) any |= start_one(&posts->items[i]);
    if (any) maya_outgoing_send();
    pthread_mutex_lock(&nccl_lock);
    bool done = answer_is_last(posts);
    pthread_mutex_unlock(&nccl_lock);
    if (done) maya_command_done_after(stream, any ? schedule_delay(posts) : 0);
}

/* Posts the operations as soon as the virtual clock knows when the stream reached them. */
static void start_posts(void *argument, maya_stream *stream) {
    stream_posts *posts = argument;
    posts->stream = stream;
    size_t first = 0;
    while (first < posts->count && is_local(&posts->items[first])) first++;
    maya_clock_when_arrived(first < posts->count ? posts->items[first].ticket : NULL, post_all, posts);
}

static void release_posts(void *argument) {
    stream_posts *posts = argument;
    pthread_mutex_lock(&nccl_lock);
    for (size_t i = 0; i < posts->count; i++) {
        nccl_communicator *communicator = posts->items[i].operation.communicator;
        if (!posts->is_captured) communicator->outstanding--;
        nccl_drop_reference(communicator);
    }
    pthread_cond_broadcast(&nccl_changed);
    pthread_mutex_unlock(&nccl_lock);
    free(posts);
}

/* ---- answers, in the coordinator client's thread ---- */

/* The operation of the token; NULL: it was dropped. Its communicator cannot be left until end_delivery. */
static post *begin_delivery(int64_t token) {
    pthread_mutex_lock(&nccl_lock);
    post *item = take_token(token);
    if (item) item->operation.communicator->delivering++;
    pthread_mutex_unlock(&nccl_lock);
    return item;
}

static void end_delivery(post *item) {
    stream_posts *posts = item->posts;
    pthread_mutex_lock(&nccl_lock);
    item->operation.communicator->delivering--;
    pthread_cond_broadcast(&nccl_changed);
    bool done = answer_is_last(posts);
    pthread_mutex_unlock(&nccl_lock);
    if (done) maya_command_done_after(posts->stream, schedule_delay(posts));
}

void nccl_operation_done(const maya_done *message, const void *payload, size_t payload_bytes) {
    post *item = begin_delivery(message->token);
    if (item == NULL) return;
    const nccl_operation *operation = &item->operation;
    if (payload == NULL) nccl_write_placeholders(operation);
    else if (!nccl_write_result(operation, payload, payload_bytes, message->known, message->guessed)) {
        report_lost_object(operation, "receives");
    }
    maya_clock_ended(item->ticket, (uint64_t)message->started_ns, (uint64_t)message->ended_ns);
    end_delivery(item);
}

void nccl_operation_failed(const maya_failed *message) {
    post *item = begin_delivery(message->token);
    if (item == NULL) return;
    nccl_communicator *communicator = item->operation.communicator;
    nccl_result result =
        message->result > NCCL_SUCCESS && message->result <= NCCL_TIMEOUT ? (nccl_result)message->result : NCCL_INTERNAL_ERROR;
    maya_fold_errors(); /* before the program learns of the error */
    pthread_mutex_lock(&nccl_lock);
    bool first = communicator->state == NCCL_SUCCESS;
    nccl_note_error(communicator, result, message->text.bytes, message->text.size);
    pthread_mutex_unlock(&nccl_lock);
    if (first) nccl_debug_warn(message->text.bytes, message->text.size);
    if (first) maya_message("NCCL: %.*s", (int)message->text.size, message->text.bytes);
    maya_clock_dropped(item->ticket);
    end_delivery(item); /* the stream continues, so that the program can find the error and end */
}

/* This is no error of the communicator: torch's watchdog would abort a process whose program has finished. */
void nccl_operation_abandoned(const maya_abandoned *message) {
    post *item = begin_delivery(message->token);
    if (item == NULL) return;
    nccl_communicator *communicator = item->operation.communicator;
    pthread_mutex_lock(&nccl_lock);
    bool first = !communicator->abandoned;
    communicator->abandoned = true;
    pthread_mutex_unlock(&nccl_lock);
    if (first) maya_message("NCCL: %.*s", (int)message->text.size, message->text.bytes);
    maya_clock_dropped(item->ticket);
    end_delivery(item);
}

void nccl_drop_operations(nccl_communicator *communicator, const char *why) {
    pthread_mutex_lock(&nccl_lock);
    MAYA_VECTOR(maya_stream *) streams = {0};
    MAYA_VECTOR(void *) tickets = {0};
    for (size_t i = 0; i < places.count; i++) {
        post *waiting = places.items[i].waiting;
        if (waiting == NULL || (communicator && waiting->operation.communicator != communicator)) continue;
        take_place(i);
        *maya_vector_add(&tickets) = waiting->ticket;
        if (why) nccl_note_error(waiting->operation.communicator, NCCL_SYSTEM_ERROR, why, strlen(why));
        if (answer_is_last(waiting->posts)) *maya_vector_add(&streams) = waiting->posts->stream;
    }
    while (communicator && communicator->delivering > 0) pthread_cond_wait(&nccl_changed, &nccl_lock);
    pthread_mutex_unlock(&nccl_lock);
    for (size_t i = 0; i < tickets.count; i++) maya_clock_dropped(tickets.items[i]);
    for (size_t i = 0; i < streams.count; i++) maya_command_done(streams.items[i]);
    maya_vector_clear(&streams);
    maya_vector_clear(&tickets);
}

/* ---- groups ---- */

static void note_submitted(stream_posts *posts, bool is_captured) {
    posts->is_captured = is_captured;
    for (size_t i = 0; i < posts->count; i++) {
        posts->items[i].posts = posts;
        posts->items[i].operation.communicator->references++;
        if (!is_captured) posts->items[i].operation.communicator->outstanding++;
    }
}

/* Gives the operation a new sequence number at every launch of the graph that captured it. */
static void renew_number(maya_command *command) {
    post *item = command->argument;
    pthread_mutex_lock(&nccl_lock);
    command->value = item->operation.sequence = next_sequence(&item->operation);
    pthread_mutex_unlock(&nccl_lock);
}

/* Copies the captured operations, which have their new sequence numbers, for one launch. */
static void renew_posts(maya_command *command) {
    stream_posts *pattern = command->argument;
    size_t bytes = sizeof *pattern + pattern->count * sizeof *pattern->items;
    stream_posts *posts = malloc(bytes);
    if (posts == NULL) abort();
    memcpy(posts, pattern, bytes);
    pthread_mutex_lock(&nccl_lock);
    note_submitted(posts, false);
    pthread_mutex_unlock(&nccl_lock);
    command->argument = posts;
    command->release = release_posts;
}

/* Submits work to the operation's stream, on the communicator's device: the handle of a default stream means another stream on
 * every device. */
static int submit(const nccl_operation *operation, const maya_command *command) {
    int device = operation->communicator->device, before = maya_current_device();
    if (device != before) maya_set_device(device);
    int error = maya_submit(operation->stream, command);
    if (device != before) maya_set_device(before);
    return error;
}

static bool is_captured(const nccl_operation *operation) {
    int device = operation->communicator->device, before = maya_current_device();
    if (device != before) maya_set_device(device);
    bool capturing = maya_stream_is_capturing(operation->stream);
    if (device != before) maya_set_device(before);
    return capturing;
}

static bool is_self_p2p(const nccl_operation *operation) {
    return nccl_is_p2p(operation) && operation->peer == operation->communicator->rank;
}

/* The call that matches operations[index]: the nth send to the own rank matches the nth receive of its communicator. */
static const nccl_operation *counterpart(const nccl_operation *operations, size_t count, size_t index) {
    const nccl_operation *wanted = &operations[index];
    size_t before = 0;
    for (size_t i = 0; i < index; i++) {
        before += operations[i].call == wanted->call && operations[i].communicator == wanted->communicator &&
                  is_self_p2p(&operations[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (operations[i].call == wanted->call || operations[i].communicator != wanted->communicator) continue;
        if (is_self_p2p(&operations[i]) && before-- == 0) return &operations[i];
    }
    return NULL;
}

static nccl_result check_self_p2p(const nccl_operation *operations, size_t count, size_t index) {
    const nccl_operation *one = &operations[index], *other = counterpart(operations, count, index);
    const char *function = one->call == NCCL_SEND ? "ncclSend" : "ncclRecv";
    const char *missing = one->call == NCCL_SEND ? "ncclRecv" : "ncclSend";
    if (other == NULL) {
        return nccl_fail(NCCL_INVALID_USAGE, "%s to the own rank %d without a matching %s in the same group", function,
                         one->peer, missing);
    }
    size_t bytes = one->count * nccl_type_size(one->type), other_bytes = other->count * nccl_type_size(other->type);
    if (bytes != other_bytes) {
        return nccl_fail(NCCL_INVALID_USAGE, "%s of %zu bytes to the own rank meets %s of %zu bytes", function, bytes, missing,
                         other_bytes);
    }
    if (one->stream != other->stream && one->communicator->ranks == 1) {
        maya_unsupported_detail(function, "a send and a receive of the own rank on different streams");
        return nccl_fail(NCCL_INVALID_USAGE, "%s and its %s are on different streams", function, missing);
    }
    return NCCL_SUCCESS;
}

/* The handle of a default stream means another stream on every device. */
static bool same_stream(const nccl_operation *one, const nccl_operation *other) {
    return one->stream == other->stream && one->communicator->device == other->communicator->device;
}

static bool has_one_rank(const nccl_operation *operation) { return operation->communicator->ranks == 1; }

/* Collects the group's operations among several ranks that are on the stream of operations[first]. items[i] becomes the post of
 * operations[i]. */
static stream_posts *gather(const nccl_operation *operations, size_t count, size_t first, post **items) {
    stream_posts *posts = calloc(1, sizeof *posts + (count - first) * sizeof *posts->items);
    if (posts == NULL) abort();
    for (size_t i = first; i < count; i++) {
        const nccl_operation *operation = &operations[i];
        if (has_one_rank(operation) || !same_stream(operation, &operations[first])) continue;
        post *item = items[i] = &posts->items[posts->count++];
        item->operation = *operation;
        if (!is_self_p2p(operation)) continue;
        const nccl_operation *other = counterpart(operations, count, i);
        if (!same_stream(operation, other)) continue; /* on different streams, they are matched by the coordinator */
        if (operation->call == NCCL_RECEIVE && operation->count > 0) item->self_source = other->send;
        else item->is_delivered = true;
    }
    bool captured = is_captured(&operations[first]);
    pthread_mutex_lock(&nccl_lock);
    note_submitted(posts, captured);
    pthread_mutex_unlock(&nccl_lock);
    return posts;
}

/* Total bytes of a group's sends and receives by route: sent or received, inside the node or between nodes. P2P calls of the
 * own rank take no route; they have the total inside the node, so that the members of an all-to-all have the same record. */
typedef struct {
    int64_t bytes[2][2];
} p2p_routes;

static bool leaves_node(const nccl_operation *operation) {
    const nccl_communicator *communicator = operation->communicator;
    const maya_settings *settings = maya_get_settings();
    if (communicator->members == NULL) return false;
    return communicator->members[operation->peer] / settings->ranks_per_node != settings->rank / settings->ranks_per_node;
}

static int64_t *route_of(p2p_routes *routes, const nccl_operation *operation) {
    return &routes->bytes[operation->call == NCCL_RECEIVE][leaves_node(operation)];
}

static int64_t p2p_bytes(const nccl_operation *operation) {
    return (int64_t)(operation->count * nccl_type_size(operation->type));
}

/* Fills in the fields of each operation that depend on the rest of its group. */
static void describe_group(nccl_operation *operations, size_t count) {
    p2p_routes routes = {0};
    for (size_t i = 0; i < count; i++) {
        nccl_operation *operation = &operations[i];
        for (size_t j = 0; j < i && !operation->grouped; j++) operation->grouped = same_stream(&operations[j], operation);
        if (nccl_is_p2p(operation) && !is_self_p2p(operation)) *route_of(&routes, operation) += p2p_bytes(operation);
    }
    for (size_t i = 0; i < count; i++) {
        nccl_operation *operation = &operations[i];
        if (!nccl_is_p2p(operation)) continue;
        operation->shared_bytes = *route_of(&routes, operation);
    }
}

static nccl_result post_one_rank(const nccl_operation *operations, size_t count, size_t index) {
    nccl_operation operation = operations[index];
    const void *source = operation.send;
    if (operation.call == NCCL_RECEIVE) source = counterpart(operations, count, index)->send;
    pthread_mutex_lock(&nccl_lock);
    operation.sequence = next_sequence(&operation);
    pthread_mutex_unlock(&nccl_lock);
    return nccl_post_one_rank(&operation, source);
}

/* Assigns an operation's sequence number and submits its record. */
static int submit_record(post *item) {
    nccl_operation *operation = &item->operation;
    if (!item->posts->is_captured) {
        pthread_mutex_lock(&nccl_lock);
        operation->sequence = next_sequence(operation);
        pthread_mutex_unlock(&nccl_lock);
    }
    maya_command command = {.kind = MAYA_RECORD_COLLECTIVE,
                            .signature = nccl_signature(operation),
                            .value = operation->sequence,
                            .flags = nccl_record_flags(operation),
                            .argument = item,
                            .renew = renew_number,
                            .ticket = is_local(item) ? NULL : &item->ticket};
    return submit(operation, &command);
}

nccl_result nccl_post(nccl_operation *operations, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!is_self_p2p(&operations[i])) continue;
        nccl_result result = check_self_p2p(operations, count, i);
        if (result != NCCL_SUCCESS) return result;
    }
    describe_group(operations, count);
    post **items = calloc(count, sizeof *items);             /* the post of each operation */
    stream_posts **streams = calloc(count, sizeof *streams); /* the stream_posts that begin with this operation */
    if (items == NULL || streams == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    nccl_result result = NCCL_SUCCESS;
    int error = 0;
    /* First assign sequence numbers, in the order of the calls; then submit the work of each stream. */
    for (size_t i = 0; i < count && result == NCCL_SUCCESS && error == 0; i++) {
        if (has_one_rank(&operations[i])) {
            result = post_one_rank(operations, count, i);
        } else {
            if (items[i] == NULL) streams[i] = gather(operations, count, i, items);
            error = submit_record(items[i]);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (streams[i] == NULL) continue;
        maya_command command = {
            .start = start_posts, .release = release_posts, .argument = streams[i], .renew = renew_posts, .unrecorded = true};
        int status = submit(&operations[i], &command);
        if (error == 0) error = status;
    }
    free(items);
    free(streams);
    return error == 0 ? result : nccl_fail(NCCL_CUDA_ERROR, "CUDA error %d", error);
}
