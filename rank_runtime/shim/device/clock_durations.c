/* Durations of kernels, copies and local collectives (clock_internal.h): a table of all that occurred, and questions to the
 * coordinator about new ones.
 *
 * In: records: kind, signature, signature of the op, bytes of copies and memsets. Out: durations, known at once or when the
 * coordinator has answered. Questions are collected until there are enough of them or a thread waits. Python distinguishes
 * kernels by the same keys (maya/estimators/features/from_trace.py). */

#define _GNU_SOURCE
#include "clock_internal.h"
#include "coordinator_client.h"
#include "intern.h"
#include "table.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128, ASKED_AT_ONCE = 32 };

const clock_duration clock_nothing = {.known = true};

/* ---- the table ---- */

static MAYA_VECTOR(clock_duration *) chunks; /* durations by number, CHUNK in each, so that they do not move */
static uint32_t duration_count;
static uint32_t asked; /* the coordinator has been asked for all numbers below this */
static _Atomic uint32_t unasked;
static bool lost;

static clock_duration *numbered(uint32_t number) { return &chunks.items[number / CHUNK][number % CHUNK]; }

/* The entries are numbers of durations plus 1. */

static inline bool number_table_is_used(const uint32_t *entry) { return *entry != 0; }

static inline const clock_duration *number_table_key(const uint32_t *entry) { return numbered(*entry - 1); }

static inline uint64_t number_table_hash(const clock_duration *key) {
    uint64_t hash = (uint64_t)key->signature << 32 | key->op;
    hash = (hash ^ key->size ^ (uint64_t)key->kind << 56) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    return hash >> 20;
}

static inline bool number_table_is_same(const clock_duration *one, const clock_duration *other) {
    return one->signature == other->signature && one->op == other->op && one->size == other->size && one->kind == other->kind;
}

MAYA_DEFINE_TABLE(number_table, uint32_t, const clock_duration *, 1024)

static number_table numbers;

static uint32_t add(const clock_duration *key) {
    if (duration_count % CHUNK == 0) *maya_vector_add(&chunks) = must_alloc(malloc(CHUNK * sizeof **chunks.items));
    clock_duration *added = numbered(duration_count);
    *added = *key;
    added->known = lost;
    atomic_fetch_add_explicit(&unasked, !lost, memory_order_relaxed);
    return ++duration_count;
}

static const clock_duration *find(const clock_duration *key) {
    uint32_t *number = number_table_place(&numbers, key);
    if (*number == 0) *number = add(key);
    return numbered(*number - 1);
}

/* ---- records ---- */

const clock_duration *clock_duration_of(maya_thread *thread, const maya_trace_record *record) {
    clock_duration key = {.kind = record->kind, .signature = record->signature};
    if (record->kind == MAYA_RECORD_MEMCPY || record->kind == MAYA_RECORD_MEMSET) key.size = record->value;
    else if (record->kind != MAYA_RECORD_COLLECTIVE) key.op = thread->op_signature;
    return find(&key);
}

void clock_durations_begin(void) {
    for (size_t i = 0; i < chunks.count; i++) free(chunks.items[i]);
    maya_vector_clear(&chunks);
    number_table_clear(&numbers);
    duration_count = asked = unasked = 0;
    lost = false;
}

/* ---- questions and answers ---- */

static maya_bytes text_of(uint32_t number) {
    const maya_string *string = maya_string_numbered(number);
    return string ? (maya_bytes){string->text, string->length} : (maya_bytes){"", 0};
}

/* Up to `room` questions that have not been asked yet. */
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
