/* The streams on the virtual clock (clock_internal.h): the time up to which each is busy, and its queue.
 *
 * In: kernels, copies, events, waits and collectives in the order of the trace. Out: times. A stream's cursor moves at once if
 * all times are known. It is blocked at a collective that has not ended, at work of unknown duration, and at an event of a
 * blocked stream; later entries queue, and clock_advance continues when another time becomes known. An entry depends on earlier
 * records only, so visiting all streams in turn resolves everything that can be resolved. docs/timeline.md specifies the rules,
 * which the replay in Python follows as well (virtual_clock.h). */

#include "clock_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef enum { WORK, MARK, WAIT, COLLECTIVE } entry_kind;

typedef struct {
    uint8_t kind;
    bool counts;          /* WORK: slows down beside a collective */
    uint32_t other;       /* WAIT: the stream of the event */
    uint64_t collectives; /* WAIT: how many collectives that stream had when the event was recorded */
    clock_host_time ready;
    const clock_duration *duration; /* WORK, local COLLECTIVE */
    union {
        clock_future *future; /* MARK: is set; WAIT: is waited for */
        maya_ticket *ticket;  /* COLLECTIVE */
    };
} entry;

typedef struct {
    uint64_t start, end;
} span;

/* The last of a growing number of spans: a ring once it has reached its limit. */
typedef struct {
    span *items;
    uint64_t count;
    size_t capacity;
} spans;

enum { KERNELS_KEPT = 2048, COLLECTIVES_KEPT = 4096, ENTRIES_KEPT = 256 };

typedef struct {
    uint32_t other;
    uint64_t collectives;
} settled_pair;

typedef struct {
    uint64_t cursor;
    uint32_t home;  /* the default stream of its device */
    bool blocking;  /* waits for that stream, and that stream for this one */
    entry *entries; /* the queue: a ring */
    size_t first, count, capacity;
    clock_future *last_arrival; /* when the rank arrives at the collective recorded last */
    uint64_t collectives;       /* recorded so far */
    clock_unsynced *unsynced;   /* its own collectives, and those it has waited for */
    spans kernels, collective_spans;
    /* by other stream: how many of its collectives have been charged for their overlap with this stream's kernels */
    MAYA_VECTOR(settled_pair) settled;
} clock_stream;

static MAYA_VECTOR(clock_stream *) streams; /* by number; NULL: not used yet */
static uint32_t blocking_count;
_Atomic size_t clock_queued;

uint32_t clock_stream_count(void) { return (uint32_t)streams.count; }

static clock_stream *stream_of(uint32_t number) {
    if (number < streams.count && streams.items[number]) return streams.items[number];
    maya_vector_extend(&streams, (size_t)number + 1);
    streams.items[number] = must_alloc(calloc(1, sizeof(clock_stream)));
    return streams.items[number];
}

void clock_stream_created(uint32_t number, bool blocking, uint32_t home) {
    clock_stream *stream = stream_of(number);
    stream->home = home;
    blocking_count += blocking && !stream->blocking;
    stream->blocking |= blocking;
}

bool clock_stream_is_blocking(uint32_t number) {
    return number < streams.count && streams.items[number] && streams.items[number]->blocking;
}

uint32_t clock_home_of(uint32_t number) {
    return number < streams.count && streams.items[number] ? streams.items[number]->home : 0;
}

static uint64_t later(uint64_t one, uint64_t other) { return one > other ? one : other; }

/* ---- collectives that run beside kernels ---- */

static void remember(spans *spans, size_t limit, uint64_t start, uint64_t end) {
    if (spans->count == spans->capacity && spans->capacity < limit) {
        spans->capacity = spans->capacity ? 2 * spans->capacity : 64;
        spans->items = must_alloc(realloc(spans->items, spans->capacity * sizeof *spans->items));
    }
    spans->items[spans->count++ & (spans->capacity - 1)] = (span){start, end};
}

static const span *span_at(const spans *spans, uint64_t number) { return &spans->items[number & (spans->capacity - 1)]; }

static uint64_t oldest(const spans *spans) { return spans->count > spans->capacity ? spans->count - spans->capacity : 0; }

static uint64_t overlap(const spans *kernels, const span *collective) {
    uint64_t low = oldest(kernels), high = kernels->count, total = 0;
    while (low < high) { /* kernels are in order, and none begins before its predecessor has ended */
        uint64_t middle = low + (high - low) / 2;
        if (span_at(kernels, middle)->end <= collective->start) low = middle + 1;
        else high = middle;
    }
    for (; low < kernels->count && span_at(kernels, low)->start < collective->end; low++) {
        const span *kernel = span_at(kernels, low);
        uint64_t end = kernel->end < collective->end ? kernel->end : collective->end;
        total += end - later(kernel->start, collective->start);
    }
    return total;
}

static uint64_t *settled_of(clock_stream *stream, uint32_t other) {
    for (size_t i = 0; i < stream->settled.count; i++) {
        if (stream->settled.items[i].other == other) return &stream->settled.items[i].collectives;
    }
    settled_pair *added = maya_vector_add(&stream->settled);
    *added = (settled_pair){other, 0};
    return &added->collectives;
}

/* The stream waits for an event of `other` that comes after its first `collectives` collectives: charges the slowdown of the
 * kernels that ran beside those. */
static void settle(clock_stream *stream, uint32_t other, uint64_t collectives) {
    uint64_t cost = maya_get_settings()->costs.overlap;
    if (cost == 0 || stream == streams.items[other] || collectives == 0) return;
    uint64_t *settled = settled_of(stream, other);
    const spans *spans = &streams.items[other]->collective_spans;
    uint64_t total = 0;
    for (uint64_t i = later(*settled, oldest(spans)); i < collectives && stream->kernels.count; i++) {
        total += overlap(&stream->kernels, span_at(spans, i));
    }
    if (collectives > *settled) *settled = collectives;
    stream->cursor += total * cost / 1000;
}

/* ---- entries ---- */

static entry *push(clock_stream *stream, entry_kind kind) {
    if (stream->count == stream->capacity) {
        size_t capacity = stream->capacity ? 2 * stream->capacity : 16;
        entry *grown = must_alloc(malloc(capacity * sizeof *grown));
        for (size_t i = 0; i < stream->count; i++) grown[i] = stream->entries[(stream->first + i) & (stream->capacity - 1)];
        free(stream->entries);
        stream->entries = grown;
        stream->capacity = capacity;
        stream->first = 0;
    }
    atomic_fetch_add_explicit(&clock_queued, 1, memory_order_relaxed);
    entry *made = &stream->entries[(stream->first + stream->count++) & (stream->capacity - 1)];
    *made = (entry){.kind = (uint8_t)kind};
    return made;
}

static void pop(clock_stream *stream) {
    atomic_fetch_sub_explicit(&clock_queued, 1, memory_order_relaxed);
    stream->first = (stream->first + 1) & (stream->capacity - 1);
    if (--stream->count > 0 || stream->capacity <= ENTRIES_KEPT) return;
    free(stream->entries);
    stream->entries = NULL;
    stream->capacity = stream->first = 0;
}

static clock_host_time keep_time(clock_host_time time) {
    if (time.after) time.after->references++;
    return time;
}

bool clock_is_known(clock_host_time *time) {
    if (time->after == NULL) return true;
    if (!time->after->known) return false;
    maya_clock_wait *after = time->after;
    *time = (clock_host_time){NULL, after->ns + time->ns};
    clock_release_wait(after);
    return true;
}

static void run_work(clock_stream *stream, uint64_t ready, const clock_duration *duration, bool counts) {
    uint64_t start = later(stream->cursor, ready);
    stream->cursor = start + duration->ns;
    if (counts && maya_get_settings()->costs.overlap) remember(&stream->kernels, KERNELS_KEPT, start, stream->cursor);
}

static bool run_collective(clock_stream *stream, entry *head) {
    maya_ticket *ticket = head->ticket;
    if (!ticket->arrival->known) {
        if (!clock_is_known(&head->ready)) return false;
        clock_set(ticket->arrival, later(stream->cursor, head->ready.ns));
    }
    if (head->duration) {
        ticket->is_over = head->duration->known;
        ticket->started = ticket->arrival->ns;
        ticket->ended = ticket->started + head->duration->ns;
    }
    if (!ticket->is_over) return false;
    stream->cursor = later(stream->cursor, ticket->ended);
    if (maya_get_settings()->costs.overlap) {
        remember(&stream->collective_spans, COLLECTIVES_KEPT, ticket->started, ticket->ended);
    }
    clock_release(ticket->arrival);
    free(ticket);
    return true;
}

/* false: the stream is blocked here. */
static bool run_head(clock_stream *stream) {
    entry *head = &stream->entries[stream->first];
    switch ((entry_kind)head->kind) {
        case WORK:
            if (!clock_is_known(&head->ready) || !head->duration->known) return false;
            run_work(stream, head->ready.ns, head->duration, head->counts);
            break;
        case MARK:
            if (!clock_is_known(&head->ready)) return false;
            stream->cursor = later(stream->cursor, head->ready.ns);
            clock_set(head->future, stream->cursor);
            clock_release(head->future);
            break;
        case WAIT:
            if (!head->future->known) return false;
            settle(stream, head->other, head->collectives);
            stream->cursor = later(stream->cursor, head->future->ns);
            clock_release(head->future);
            break;
        case COLLECTIVE:
            if (!run_collective(stream, head)) return false;
            break;
    }
    pop(stream);
    return true;
}

void clock_advance(void) {
    for (bool moved = clock_queued > 0; moved;) {
        moved = false;
        for (uint32_t i = 0; i < streams.count; i++) {
            while (streams.items[i] && streams.items[i]->count && run_head(streams.items[i])) moved = true;
        }
    }
}

clock_unsynced *clock_stream_unsynced(uint32_t number) { return stream_of(number)->unsynced; }

clock_future *clock_stream_future(uint32_t number, uint64_t *ns) {
    clock_stream *stream = stream_of(number);
    *ns = stream->cursor;
    if (stream->count == 0) return NULL;
    clock_future *future = clock_new_future();
    push(stream, MARK)->future = clock_keep(future);
    return future;
}

/* Orders later work of `number` after all work that the other stream has so far. */
static void join(uint32_t number, uint32_t other_number) {
    clock_unsynced *unsynced = clock_stream_unsynced(other_number);
    clock_stream *stream = stream_of(number);
    clock_unsynced_join(&stream->unsynced, unsynced);
    uint64_t ns;
    clock_future *future = clock_stream_future(other_number, &ns);
    if (future == NULL && stream->count == 0) {
        stream->cursor = later(stream->cursor, ns);
        return;
    }
    if (future == NULL) {
        future = clock_new_future();
        clock_set(future, ns);
    }
    entry *wait = push(stream, WAIT);
    wait->other = number; /* charges no overlap */
    wait->future = future;
}

/* The legacy default stream waits for all blocking streams of its device, and they for it. */
static void join_default_stream(uint32_t number) {
    if (blocking_count == 0) return;
    uint32_t home = clock_home_of(number);
    if (number != home) {
        if (stream_of(number)->blocking) join(number, home);
        return;
    }
    for (uint32_t i = 0; i < streams.count; i++) {
        if (i != home && streams.items[i] && streams.items[i]->blocking && streams.items[i]->home == home) join(home, i);
    }
}

/* ---- records ---- */

void clock_add_work(uint32_t number, clock_host_time ready, const clock_duration *duration, bool counts) {
    join_default_stream(number);
    clock_stream *stream = stream_of(number);
    if (stream->count == 0 && duration->known && ready.after == NULL) {
        run_work(stream, ready.ns, duration, counts);
        return;
    }
    entry *made = push(stream, WORK);
    made->counts = counts;
    made->ready = keep_time(ready);
    made->duration = duration;
}

void clock_add_event(uint32_t number, clock_host_time ready, uint32_t event_number) {
    join_default_stream(number);
    clock_stream *stream = stream_of(number);
    clock_event *recorded = clock_make_event(event_number);
    recorded->stream = number;
    recorded->collectives = stream->collectives;
    clock_unsynced_release(recorded->unsynced);
    recorded->unsynced = clock_unsynced_keep(stream->unsynced);
    if (recorded->future == NULL || recorded->future->references > 1) { /* the previous time is still in use elsewhere */
        clock_release(recorded->future);
        recorded->future = clock_new_future();
    }
    recorded->future->known = false;
    if (stream->count == 0 && ready.after == NULL) {
        stream->cursor = later(stream->cursor, ready.ns);
        clock_set(recorded->future, stream->cursor);
        return;
    }
    entry *made = push(stream, MARK);
    made->ready = keep_time(ready);
    made->future = clock_keep(recorded->future);
}

void clock_add_wait(uint32_t number, uint32_t event_number) {
    const clock_event *awaited = clock_find_event(event_number);
    if (awaited == NULL) return;
    clock_stream *stream = stream_of(number);
    clock_unsynced_join(&stream->unsynced, awaited->unsynced);
    if (stream->count == 0 && awaited->future->known) {
        settle(stream, awaited->stream, awaited->collectives);
        stream->cursor = later(stream->cursor, awaited->future->ns);
        return;
    }
    entry *made = push(stream, WAIT);
    made->other = awaited->stream;
    made->collectives = awaited->collectives;
    made->future = clock_keep(awaited->future);
}

maya_ticket *clock_add_collective(uint32_t number, clock_host_time ready, bool grouped, const clock_duration *duration) {
    clock_stream *stream = stream_of(number);
    stream->collectives++;
    if (duration == NULL) clock_unsynced_add(&stream->unsynced, number, stream->collectives);
    bool leads = !grouped || stream->last_arrival == NULL;
    if (leads) {
        clock_release(stream->last_arrival);
        stream->last_arrival = clock_new_future();
    }
    maya_ticket *ticket = must_alloc(calloc(1, sizeof *ticket));
    ticket->arrival = clock_keep(stream->last_arrival);
    entry *made = push(stream, COLLECTIVE);
    if (leads) made->ready = keep_time(ready);
    made->duration = duration;
    made->ticket = ticket;
    while (stream->count && run_head(stream)) continue;
    return duration ? NULL : ticket;
}

void clock_streams_begin(void) {
    for (size_t i = 0; i < streams.count; i++) {
        clock_stream *stream = streams.items[i];
        if (stream == NULL) continue;
        free(stream->entries);
        free(stream->kernels.items);
        free(stream->collective_spans.items);
        free(stream->settled.items);
        clock_unsynced_release(stream->unsynced);
        free(stream);
    }
    streams.count = 0;
    blocking_count = 0;
    clock_queued = 0;
}
