/* Operations among several ranks.
 *
 * A group comes in. Its operations on one stream become one piece of asynchronous work: when its turn has come, each of them
 * is posted to the coordinator with the bytes that its send buffer holds then, and the stream stands still until all are
 * answered. In the thread of the connection the answers are written to the receive buffers. A message to the own rank that
 * meets its counterpart in the same group and stream goes nowhere. What an operation sends, and what becomes of its receive
 * buffer, is in nccl_bytes.c. */

#include "device/schedule.h"
#include "device/virtual_clock.h"
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stream_posts;

typedef struct {
    nccl_operation operation;
    struct stream_posts *posts;
    const void *own_message; /* not NULL: a receive from the own rank, and where its bytes are */
    bool is_delivered;       /* the other end of such a message: nothing is left to do */
    void *ticket;            /* the clock's, unless it is such a message */
} post;

/* The operations of one group on one stream. */
typedef struct stream_posts {
    maya_stream *stream; /* set when its turn has come */
    bool is_captured;    /* in a graph: a pattern for those of its launches */
    uint64_t arrival_ns; /* by the rank's clock: when its stream has come to them */
    size_t unanswered;   /* guarded by nccl_lock */
    size_t count;
    post items[];
} stream_posts;

/* ---- what is not answered yet: tokens by which the coordinator's answers find their operation; under nccl_lock ---- */

typedef struct {
    post *waiting; /* NULL: a free place */
    int64_t uses;  /* so that an answer that comes too late does not find the next one here */
} place;

enum { PLACE_BITS = 24 };

static place *places;
static size_t place_count, first_free;

static int64_t new_token(post *waiting) {
    while (first_free < place_count && places[first_free].waiting) first_free++;
    if (first_free == place_count) {
        size_t count = place_count * 2 + 64;
        places = realloc(places, count * sizeof *places);
        if (places == NULL || count > 1u << PLACE_BITS) abort();
        memset(places + place_count, 0, (count - place_count) * sizeof *places);
        place_count = count;
    }
    place *taken = &places[first_free];
    taken->waiting = waiting;
    return ++taken->uses << PLACE_BITS | (int64_t)first_free;
}

static post *take_place(size_t index) {
    post *waiting = places[index].waiting;
    places[index].waiting = NULL;
    if (index < first_free) first_free = index;
    return waiting;
}

/* NULL: nobody waits for it (any more). */
static post *take_token(int64_t token) {
    size_t index = (size_t)token & ((1u << PLACE_BITS) - 1);
    if (index >= place_count || places[index].waiting == NULL || places[index].uses != token >> PLACE_BITS) return NULL;
    return take_place(index);
}

void nccl_operations_after_fork(void) {
    places = NULL;
    place_count = first_free = 0;
}

/* ---- sequence numbers; under nccl_lock ---- */

static uint64_t *counters(uint64_t **of_peers, int ranks) {
    if (*of_peers == NULL) *of_peers = calloc((size_t)ranks, sizeof **of_peers);
    if (*of_peers == NULL) abort();
    return *of_peers;
}

static uint64_t next_sequence(const nccl_operation *operation) {
    nccl_communicator *communicator = operation->communicator;
    if (!nccl_is_message(operation)) return communicator->collectives++;
    uint64_t **of_peers = operation->call == NCCL_SEND ? &communicator->sent : &communicator->received;
    return counters(of_peers, communicator->ranks)[operation->peer]++;
}

/* ---- the turn of a stream's operations ---- */

/* Adds the operation to the batch. nccl_lock is held; takes over the contribution's bytes. */
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
    };
    maya_pack_post(maya_outgoing_begin(), &message);
    maya_outgoing_end(given->bytes, given->size);
}

/* One answer less is missing. true: it was the last, and the caller says so to the stream. nccl_lock is held. */
static bool is_answered(stream_posts *posts) { return --posts->unanswered == 0; }

static void say_destroyed(const nccl_communicator *communicator) {
    maya_message("NCCL: a graph comes to an operation on communicator %u, which has been destroyed: it is left out",
                 communicator->number);
}

/* A message to the own rank that meets its counterpart in the same group and stream. */
static bool is_local(const post *item) { return item->own_message != NULL || item->is_delivered; }

/* What becomes of a call that was spoilt on purpose and is not going to be posted. */
static void suffer(post *item) {
    static const char text[] = "a call on it has failed, as --inject asks for";
    nccl_communicator *communicator = item->operation.communicator;
    nccl_write_nothing(&item->operation);
    if (item->operation.fault != MAYA_CALL_FAILS) return;
    pthread_mutex_lock(&nccl_lock);
    nccl_note_error(communicator, NCCL_REMOTE_ERROR, text, sizeof text - 1);
    pthread_mutex_unlock(&nccl_lock);
    maya_message("NCCL: communicator %u: %s", communicator->number, text);
}

/* Where an object is, the program would find zeros. nccl_lock is not held. */
static void say_lost(const nccl_operation *operation, const char *what) {
    nccl_communicator *communicator = operation->communicator;
    size_t sent = nccl_send_bytes(operation), received = nccl_receive_bytes(operation);
    char text[256];
    int length = snprintf(text, sizeof text,
                          "an operation %s %zu bytes of objects, of which a rank keeps at most %lld: set MAYA_OBJECT_BYTES to "
                          "more, if every rank may take so much memory",
                          what, sent > received ? sent : received, (long long)maya_get_settings()->object_bytes);
    pthread_mutex_lock(&nccl_lock);
    bool first = communicator->state == NCCL_SUCCESS;
    nccl_note_error(communicator, NCCL_INVALID_USAGE, text, (size_t)length);
    pthread_mutex_unlock(&nccl_lock);
    if (first) maya_message("NCCL: %s", text);
}

/* Returns whether something is to be sent. */
static bool start_one(post *item) {
    nccl_communicator *communicator = item->operation.communicator;
    nccl_contribution given = {0};
    bool local = is_local(item);
    if (item->own_message) {
        size_t bytes = nccl_receive_bytes(&item->operation);
        maya_values_copy(item->operation.receive, item->own_message, bytes);
    }
    if (!local) nccl_read_contribution(&given, &item->operation);
    bool is_faulty = !local && item->operation.fault != MAYA_CALL_IS_FINE;
    if (is_faulty) suffer(item);
    if (!local && given.lost) say_lost(&item->operation, "sends");
    pthread_mutex_lock(&nccl_lock);
    bool dropped = is_faulty || communicator->gone || communicator->state != NCCL_SUCCESS || nccl_coordinator_is_lost();
    bool is_sent = !local && !dropped;
    void *ticket = item->ticket;
    if (is_sent) send_post(item, &given);
    else is_answered(item->posts);
    bool is_destroyed = communicator->destroyed;
    pthread_mutex_unlock(&nccl_lock);
    if (!local && dropped) {
        free(given.bytes);
        maya_clock_dropped(ticket);
        if (is_destroyed) say_destroyed(communicator);
    }
    free(given.known);
    if (is_sent && maya_get_settings()->debug > 1) {
        maya_message("NCCL: communicator %u: call %d number %llu on %zu elements is posted, with %zu bytes",
                     communicator->number, item->operation.call, (unsigned long long)item->operation.sequence,
                     item->operation.count, given.bytes ? given.size : 0);
    }
    return is_sent;
}

/* How much later than the last answer the stream goes on, if the order of events is another one on purpose. */
static uint64_t lateness(const stream_posts *posts) {
    const nccl_operation *first = &posts->items[0].operation;
    uint64_t which = maya_schedule_mix(first->communicator->number, (uint64_t)first->call);
    which = maya_schedule_mix(maya_schedule_mix(which, (uint64_t)first->peer), first->sequence);
    return maya_schedule_ns(MAYA_CALL_ENDS, which);
}

static void post_all(void *argument, uint64_t arrival_ns) {
    stream_posts *posts = argument;
    maya_stream *stream = posts->stream;
    posts->arrival_ns = arrival_ns;
    posts->unanswered = posts->count + 1; /* one for ourselves: answers may come while we still post */
    bool any = false;
    for (size_t i = 0; i < posts->count; i++) any |= start_one(&posts->items[i]);
    if (any) maya_outgoing_send();
    pthread_mutex_lock(&nccl_lock);
    bool done = is_answered(posts);
    pthread_mutex_unlock(&nccl_lock);
    if (done) maya_work_done_after(stream, any ? lateness(posts) : 0);
}

/* By the virtual clock it may take a while until it is known when that was: then they are posted when it is. */
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

/* ---- answers, in the thread of the connection ---- */

/* The operation that the token belongs to, if its answer is still wanted. Its communicator waits until it is delivered. */
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
    bool done = is_answered(posts);
    pthread_mutex_unlock(&nccl_lock);
    if (done) maya_work_done_after(posts->stream, lateness(posts));
}

void nccl_operation_done(const maya_done *message, const void *payload, size_t payload_bytes) {
    post *item = begin_delivery(message->token);
    if (item == NULL) return;
    const nccl_operation *operation = &item->operation;
    if (payload == NULL) nccl_write_nothing(operation);
    else if (!nccl_write_result(operation, payload, payload_bytes, message->known, message->guessed)) {
        say_lost(operation, "receives");
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
    pthread_mutex_lock(&nccl_lock);
    bool first = communicator->state == NCCL_SUCCESS;
    nccl_note_error(communicator, result, message->text.bytes, message->text.size);
    pthread_mutex_unlock(&nccl_lock);
    if (first) maya_message("NCCL: %.*s", (int)message->text.size, message->text.bytes);
    maya_clock_dropped(item->ticket);
    end_delivery(item); /* the stream goes on, so that the program can find the error and end */
}

/* No error of the communicator: torch's watchdog would end a process that has done all it was asked to. */
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
    maya_stream **streams = malloc((place_count + 1) * sizeof *streams);
    void **tickets = malloc((place_count + 1) * sizeof *tickets);
    if (streams == NULL || tickets == NULL) abort();
    size_t count = 0, ticket_count = 0;
    for (size_t i = 0; i < place_count; i++) {
        post *waiting = places[i].waiting;
        if (waiting == NULL || (communicator && waiting->operation.communicator != communicator)) continue;
        take_place(i);
        tickets[ticket_count++] = waiting->ticket;
        if (why) nccl_note_error(waiting->operation.communicator, NCCL_SYSTEM_ERROR, why, strlen(why));
        if (is_answered(waiting->posts)) streams[count++] = waiting->posts->stream;
    }
    while (communicator && communicator->delivering > 0) pthread_cond_wait(&nccl_changed, &nccl_lock);
    pthread_mutex_unlock(&nccl_lock);
    for (size_t i = 0; i < ticket_count; i++) maya_clock_dropped(tickets[i]);
    for (size_t i = 0; i < count; i++) maya_work_done(streams[i]);
    free(streams);
    free(tickets);
}

/* ---- groups ---- */

static void note_begun(stream_posts *posts, bool is_captured) {
    posts->is_captured = is_captured;
    for (size_t i = 0; i < posts->count; i++) {
        posts->items[i].posts = posts;
        posts->items[i].operation.communicator->references++;
        if (!is_captured) posts->items[i].operation.communicator->outstanding++;
    }
}

/* A graph that captured the operation is launched: it has a number of its own every time. */
static void renew_number(maya_work *work) {
    post *item = work->argument;
    pthread_mutex_lock(&nccl_lock);
    work->value = item->operation.sequence = next_sequence(&item->operation);
    pthread_mutex_unlock(&nccl_lock);
}

/* This launch gets operations of its own; they have just been given their numbers. */
static void renew_posts(maya_work *work) {
    stream_posts *pattern = work->argument;
    size_t bytes = sizeof *pattern + pattern->count * sizeof *pattern->items;
    stream_posts *posts = malloc(bytes);
    if (posts == NULL) abort();
    memcpy(posts, pattern, bytes);
    pthread_mutex_lock(&nccl_lock);
    note_begun(posts, false);
    pthread_mutex_unlock(&nccl_lock);
    work->argument = posts;
    work->release = release_posts;
}

/* On the stream of the operation, whose handle may be that of a default stream: which one depends on the device. */
static int submit(const nccl_operation *operation, const maya_work *work) {
    int device = operation->communicator->device, before = maya_current_device();
    if (device != before) maya_set_device(device);
    int error = maya_submit(operation->stream, work);
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

static bool is_own_message(const nccl_operation *operation) {
    return nccl_is_message(operation) && operation->peer == operation->communicator->rank;
}

/* The call that completes operations[index]: the nth send to the own rank goes to the nth receive of its communicator. */
static const nccl_operation *counterpart(const nccl_operation *operations, size_t count, size_t index) {
    const nccl_operation *wanted = &operations[index];
    size_t before = 0;
    for (size_t i = 0; i < index; i++) {
        before += operations[i].call == wanted->call && operations[i].communicator == wanted->communicator &&
                  is_own_message(&operations[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (operations[i].call == wanted->call || operations[i].communicator != wanted->communicator) continue;
        if (is_own_message(&operations[i]) && before-- == 0) return &operations[i];
    }
    return NULL;
}

static nccl_result check_own_message(const nccl_operation *operations, size_t count, size_t index) {
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
        maya_unsupported_detail(function, "a message to the own rank whose two ends are on different streams");
        return nccl_fail(NCCL_INVALID_USAGE, "%s and its %s are on different streams", function, missing);
    }
    return NCCL_SUCCESS;
}

/* Handles of default streams mean another stream on every device. */
static bool same_stream(const nccl_operation *one, const nccl_operation *other) {
    return one->stream == other->stream && one->communicator->device == other->communicator->device;
}

static bool is_alone(const nccl_operation *operation) { return operation->communicator->ranks == 1; }

/* Those of the group that are on the stream of operations[first] and among several ranks; `items` says for each where it
 * is. */
static stream_posts *gather(const nccl_operation *operations, size_t count, size_t first, post **items) {
    stream_posts *posts = calloc(1, sizeof *posts + (count - first) * sizeof *posts->items);
    if (posts == NULL) abort();
    for (size_t i = first; i < count; i++) {
        const nccl_operation *operation = &operations[i];
        if (is_alone(operation) || !same_stream(operation, &operations[first])) continue;
        post *item = items[i] = &posts->items[posts->count++];
        item->operation = *operation;
        if (!is_own_message(operation)) continue;
        const nccl_operation *other = counterpart(operations, count, i);
        if (!same_stream(operation, other)) continue; /* two streams of one rank: they meet at the coordinator, too */
        if (operation->call == NCCL_RECEIVE && operation->count > 0) item->own_message = other->send;
        else item->is_delivered = true;
    }
    bool captured = is_captured(&operations[first]);
    pthread_mutex_lock(&nccl_lock);
    note_begun(posts, captured);
    pthread_mutex_unlock(&nccl_lock);
    return posts;
}

/* Of the messages of a group, how many bytes take each way: sent or received, inside the node or out of it. Those to the own
 * rank take none. */
typedef struct {
    int64_t bytes[2][2];
} message_ways;

static bool leaves_node(const nccl_operation *operation) {
    const nccl_communicator *communicator = operation->communicator;
    const maya_settings *settings = maya_get_settings();
    if (communicator->members == NULL) return false;
    return communicator->members[operation->peer] / settings->ranks_per_node != settings->rank / settings->ranks_per_node;
}

static int64_t *way_of(message_ways *ways, const nccl_operation *operation) {
    return &ways->bytes[operation->call == NCCL_RECEIVE][leaves_node(operation)];
}

static int64_t message_bytes(const nccl_operation *operation) {
    return (int64_t)(operation->count * nccl_type_size(operation->type));
}

/* What an operation's record says of the group around it. */
static void look_around(nccl_operation *operations, size_t count) {
    message_ways ways = {0};
    for (size_t i = 0; i < count; i++) {
        nccl_operation *operation = &operations[i];
        for (size_t j = 0; j < i && !operation->grouped; j++) operation->grouped = same_stream(&operations[j], operation);
        if (nccl_is_message(operation) && !is_own_message(operation)) *way_of(&ways, operation) += message_bytes(operation);
    }
    for (size_t i = 0; i < count; i++) {
        nccl_operation *operation = &operations[i];
        if (!nccl_is_message(operation)) continue;
        operation->shared_bytes = is_own_message(operation) ? message_bytes(operation) : *way_of(&ways, operation);
    }
}

static nccl_result post_alone(const nccl_operation *operations, size_t count, size_t index) {
    nccl_operation operation = operations[index];
    const void *source = operation.send;
    if (operation.call == NCCL_RECEIVE) source = counterpart(operations, count, index)->send;
    pthread_mutex_lock(&nccl_lock);
    operation.sequence = next_sequence(&operation);
    pthread_mutex_unlock(&nccl_lock);
    return nccl_post_to_oneself(&operation, source);
}

/* The record of an operation, and its number. */
static int submit_record(post *item) {
    nccl_operation *operation = &item->operation;
    if (!item->posts->is_captured) {
        pthread_mutex_lock(&nccl_lock);
        operation->sequence = next_sequence(operation);
        pthread_mutex_unlock(&nccl_lock);
    }
    maya_work work = {.kind = MAYA_RECORD_COLLECTIVE,
                      .signature = nccl_signature(operation),
                      .value = operation->sequence,
                      .flags = operation->grouped ? MAYA_FLAG_GROUPED : 0,
                      .argument = item,
                      .renew = renew_number,
                      .ticket = is_local(item) ? NULL : &item->ticket};
    return submit(operation, &work);
}

nccl_result nccl_post(nccl_operation *operations, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!is_own_message(&operations[i])) continue;
        nccl_result result = check_own_message(operations, count, i);
        if (result != NCCL_SUCCESS) return result;
    }
    look_around(operations, count);
    post **items = calloc(count, sizeof *items);             /* where each operation is, until its stream has it ... */
    stream_posts **streams = calloc(count, sizeof *streams); /* ... and those that begin with it */
    if (items == NULL || streams == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
    nccl_result result = NCCL_SUCCESS;
    int error = 0;
    /* First the numbers, in the order of the calls, whatever streams they are on; then the work of each stream. */
    for (size_t i = 0; i < count && result == NCCL_SUCCESS && error == 0; i++) {
        if (is_alone(&operations[i])) {
            result = post_alone(operations, count, i);
        } else {
            if (items[i] == NULL) streams[i] = gather(operations, count, i, items);
            error = submit_record(items[i]);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (streams[i] == NULL) continue;
        maya_work work = {
            .start = start_posts, .release = release_posts, .argument = streams[i], .renew = renew_posts, .unrecorded = true};
        int status = submit(&operations[i], &work);
        if (error == 0) error = status;
    }
    free(items);
    free(streams);
    return error == 0 ? result : nccl_fail(NCCL_CUDA_ERROR, "CUDA error %d", error);
}
