/* How long work takes (clock_internal.h): a table of what was met, and questions to the coordinator about what is new.
 *
 * In: work as the trace describes it: kind, signature, signature of its op, bytes of copies and memsets. Out: durations,
 * known at once or when the coordinator has answered. Questions gather until there are enough of them or somebody waits.
 * maya/estimators/features/from_trace.py tells works apart in the same way. */

#define _GNU_SOURCE
#include "clock_internal.h"
#include "coordinator_client.h"
#include "intern.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128, FIRST_SLOTS = 1024, ASKED_AT_ONCE = 32 };

const clock_duration clock_nothing = {.known = true};

/* ---- the table ---- */

static clock_duration **chunks; /* durations by number, CHUNK in each: they do not move */
static size_t chunk_capacity;
static uint32_t duration_count;
static uint32_t *slots; /* numbers plus 1; open addressing, at most half full */
static size_t slot_count;
static uint32_t asked; /* numbers below this the coordinator has been asked for */
static _Atomic uint32_t unasked;
static bool lost;

static clock_duration *numbered(uint32_t number) { return &chunks[number / CHUNK][number % CHUNK]; }

static size_t hash_of(const clock_duration *key) {
    uint64_t hash = (uint64_t)key->signature << 32 | key->op;
    hash = (hash ^ key->size ^ (uint64_t)key->kind << 56) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    return hash >> 20;
}

static bool is_same(const clock_duration *one, const clock_duration *other) {
    return one->signature == other->signature && one->op == other->op && one->size == other->size && one->kind == other->kind;
}

static uint32_t *slot_of(const clock_duration *key) {
    size_t slot = hash_of(key) & (slot_count - 1);
    while (slots[slot] && !is_same(numbered(slots[slot] - 1), key)) slot = (slot + 1) & (slot_count - 1);
    return &slots[slot];
}

static void grow_slots(void) {
    free(slots);
    slot_count = slot_count ? 2 * slot_count : FIRST_SLOTS;
    slots = calloc(slot_count, sizeof *slots);
    if (slots == NULL) abort();
    for (uint32_t i = 0; i < duration_count; i++) *slot_of(numbered(i)) = i + 1;
}

static uint32_t add(const clock_duration *key) {
    if (duration_count / CHUNK == chunk_capacity) {
        chunks = realloc(chunks, (chunk_capacity + 16) * sizeof *chunks);
        if (chunks == NULL) abort();
        memset(chunks + chunk_capacity, 0, 16 * sizeof *chunks);
        chunk_capacity += 16;
    }
    clock_duration **chunk = &chunks[duration_count / CHUNK];
    if (*chunk == NULL) *chunk = malloc(CHUNK * sizeof **chunk);
    if (*chunk == NULL) abort();
    (*chunk)[duration_count % CHUNK] = *key;
    (*chunk)[duration_count % CHUNK].known = lost;
    atomic_fetch_add_explicit(&unasked, !lost, memory_order_relaxed);
    return ++duration_count;
}

static const clock_duration *find(const clock_duration *key) {
    if (2 * (size_t)duration_count >= slot_count) grow_slots();
    uint32_t *slot = slot_of(key);
    if (*slot == 0) *slot = add(key);
    return numbered(*slot - 1);
}

/* ---- works ---- */

const clock_duration *clock_duration_of(maya_thread *thread, const maya_trace_record *record) {
    clock_duration key = {.kind = record->kind, .signature = record->signature};
    if (record->kind == MAYA_RECORD_MEMCPY || record->kind == MAYA_RECORD_MEMSET) key.size = record->value;
    else if (record->kind != MAYA_RECORD_COLLECTIVE) key.op = thread->op_signature;
    return find(&key);
}

void clock_durations_begin(void) {
    for (size_t i = 0; i * CHUNK < duration_count; i++) free(chunks[i]);
    free(chunks);
    free(slots);
    chunks = NULL;
    slots = NULL;
    chunk_capacity = slot_count = duration_count = asked = unasked = 0;
    lost = false;
}

/* ---- questions and answers ---- */

static maya_bytes text_of(uint32_t number) {
    const maya_string *string = maya_string_numbered(number);
    return string ? (maya_bytes){string->text, string->length} : (maya_bytes){"", 0};
}

/* Up to `room` questions that nobody has asked. */
static size_t take_questions(maya_ask *questions, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&maya_recorder_lock);
    for (; count < room && asked < duration_count; asked++) {
        const clock_duration *duration = numbered(asked);
        if (duration->known) continue;
        questions[count++] = (maya_ask){.number = asked,
                                        .record = duration->kind,
                                        .signature = text_of(duration->signature),
                                        .op = text_of(duration->op),
                                        .size = (int64_t)duration->size};
    }
    atomic_fetch_sub_explicit(&unasked, (uint32_t)count, memory_order_relaxed);
    pthread_mutex_unlock(&maya_recorder_lock);
    return count;
}

void clock_ask(void) {
    maya_ask questions[16];
    enum { ROOM = sizeof questions / sizeof *questions };
    if (atomic_load_explicit(&unasked, memory_order_relaxed) == 0) return;
    if (maya_client_connect(NULL) != NULL) {
        maya_clock_lost();
        return;
    }
    for (size_t count; (count = take_questions(questions, ROOM)) > 0;) {
        for (size_t i = 0; i < count; i++) {
            maya_pack_ask(maya_outgoing_begin(), &questions[i]);
            maya_outgoing_end(NULL, 0);
        }
    }
    maya_outgoing_send();
}

bool clock_has_questions(void) { return atomic_load_explicit(&unasked, memory_order_relaxed) >= ASKED_AT_ONCE; }

void clock_set_durations(const int64_t *numbers, const int64_t *ns, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] < 0 || numbers[i] >= duration_count) continue;
        clock_duration *duration = numbered((uint32_t)numbers[i]);
        duration->ns = (uint64_t)ns[i];
        duration->known = true;
    }
}

void clock_durations_lost(void) {
    lost = true;
    for (uint32_t i = 0; i < duration_count; i++) numbered(i)->known = true;
    asked = duration_count;
    unasked = 0;
}
