/* How long work takes (clock_internal.h): a table of what was met, and questions to the coordinator about what is new.
 *
 * In: work as the trace describes it: kind, signature, signature of its op, bytes of copies and memsets, and for kernels over
 * lists of tensors the blocks that the same op has launched before. Out: durations, known at once or when the coordinator has
 * answered. Questions gather until there are enough of them or somebody waits. maya/estimators/features/from_trace.py tells
 * works apart in the same way. */

#define _GNU_SOURCE
#include "clock_internal.h"
#include "coordinator.h"
#include "intern.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128, FIRST_SLOTS = 1024, ASKED_AT_ONCE = 32 };

const clock_duration clock_nothing = {.known = true};

/* ---- the table ---- */

static clock_duration **chunks; /* durations by number, CHUNK in each: they do not move */
static size_t chunk_capacity;
static uint32_t duration_count;
static uint32_t *slots;         /* numbers plus 1; open addressing, at most half full */
static size_t slot_count;
static uint32_t asked;          /* numbers below this the coordinator has been asked for */
static _Atomic uint32_t unasked;
static bool lost;

static clock_duration *numbered(uint32_t number) { return &chunks[number / CHUNK][number % CHUNK]; }

static size_t hash_of(const clock_duration *key) {
    uint64_t hash = (uint64_t)key->signature << 32 | key->op;
    hash = (hash ^ key->size ^ (uint64_t)key->kind << 56) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ key->blocks_before) * 0xD6E8FEB86659FD93u;
    return hash >> 20;
}

static bool is_same(const clock_duration *one, const clock_duration *other) {
    return one->signature == other->signature && one->op == other->op && one->size == other->size &&
           one->blocks_before == other->blocks_before && one->kind == other->kind;
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

/* ---- kernels ---- */

typedef struct {
    bool looked_at;
    uint32_t op;     /* of the first launch with this signature that had one: graphs launch without */
    uint32_t blocks; /* not 0: it works on a list of tensors, and this is its grid ... */
    uint64_t name;   /* ... and a hash of its name */
} kernel_kind;

static kernel_kind *kernels; /* by signature */
static size_t kernel_capacity;

/* {"kernel":"name","grid":[x,y,z],...} */
static void look_at_kernel(kernel_kind *kernel, const maya_string *signature) {
    static const char begins[] = "{\"kernel\":\"", grid[] = "\",\"grid\":[";
    kernel->looked_at = true;
    if (signature == NULL || signature->length < sizeof begins) return;
    const char *name = signature->text + sizeof begins - 1, *end = signature->text + signature->length;
    const char *after = memmem(name, (size_t)(end - name), grid, sizeof grid - 1);
    if (after == NULL) return;
    size_t length = (size_t)(after - name);
    if (!memmem(name, length, "multi_tensor_apply", 18) && !memmem(name, length, "FusedOptimizer", 14)) return;
    char numbers[64] = "";
    size_t rest = (size_t)(end - after) - (sizeof grid - 1);
    memcpy(numbers, after + sizeof grid - 1, rest < sizeof numbers - 1 ? rest : sizeof numbers - 1);
    unsigned x = 1, y = 1, z = 1;
    sscanf(numbers, "%u,%u,%u", &x, &y, &z);
    kernel->blocks = x * y * z;
    kernel->name = 0xCBF29CE484222325u;
    for (size_t i = 0; i < length; i++) kernel->name = (kernel->name ^ (unsigned char)name[i]) * 0x100000001B3u;
}

static kernel_kind *kernel_of(uint32_t signature) {
    if (signature >= kernel_capacity) {
        size_t capacity = kernel_capacity ? kernel_capacity : 512;
        while (capacity <= signature) capacity *= 2;
        kernels = realloc(kernels, capacity * sizeof *kernels);
        if (kernels == NULL) abort();
        memset(kernels + kernel_capacity, 0, (capacity - kernel_capacity) * sizeof *kernels);
        kernel_capacity = capacity;
    }
    kernel_kind *kernel = &kernels[signature];
    if (!kernel->looked_at) look_at_kernel(kernel, maya_string_numbered(signature));
    return kernel;
}

/* Blocks that ops of the thread have launched so far, by op and kernel; an op that is over does not come back. */
typedef struct {
    uint32_t next;
    struct {
        uint64_t name;
        uint32_t op, blocks;
    } ops[8];
} list_kernels;

static uint32_t count_blocks(maya_thread *thread, uint32_t op, const kernel_kind *kernel) {
    enum { OPS = sizeof((list_kernels *)0)->ops / sizeof *((list_kernels *)0)->ops };
    if (thread->list_kernels == NULL) maya_thread_table(&thread->list_kernels, sizeof(list_kernels));
    list_kernels *known = thread->list_kernels;
    uint32_t at = 0;
    while (at < OPS && (known->ops[at].op != op || known->ops[at].name != kernel->name)) at++;
    if (at == OPS) {
        at = known->next++ % OPS;
        known->ops[at].op = op;
        known->ops[at].name = kernel->name;
        known->ops[at].blocks = 0;
    }
    uint32_t before = known->ops[at].blocks;
    known->ops[at].blocks += kernel->blocks;
    return before;
}

const clock_duration *clock_duration_of(maya_thread *thread, const maya_trace_record *record) {
    clock_duration key = {.kind = record->kind, .signature = record->signature};
    if (record->kind == MAYA_RECORD_MEMCPY || record->kind == MAYA_RECORD_MEMSET) key.size = record->value;
    else if (record->kind != MAYA_RECORD_COLLECTIVE) key.op = thread->op_signature;
    if (record->kind == MAYA_RECORD_KERNEL) {
        kernel_kind *kernel = kernel_of(record->signature);
        if (kernel->blocks && record->op) key.blocks_before = count_blocks(thread, record->op, kernel);
        if (key.op == 0) key.op = kernel->op;
        else if (kernel->op == 0) kernel->op = key.op;
    }
    return find(&key);
}

void clock_durations_begin(void) {
    for (size_t i = 0; i * CHUNK < duration_count; i++) free(chunks[i]);
    free(chunks);
    free(slots);
    free(kernels);
    chunks = NULL;
    slots = NULL;
    kernels = NULL;
    chunk_capacity = kernel_capacity = slot_count = duration_count = asked = unasked = 0;
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
        questions[count++] = (maya_ask){.number = asked, .record = duration->kind, .signature = text_of(duration->signature),
                                        .op = text_of(duration->op), .size = (int64_t)duration->size,
                                        .blocks_before = duration->blocks_before};
    }
    atomic_fetch_sub_explicit(&unasked, (uint32_t)count, memory_order_relaxed);
    pthread_mutex_unlock(&maya_recorder_lock);
    return count;
}

void clock_ask(void) {
    maya_ask questions[16];
    enum { ROOM = sizeof questions / sizeof *questions };
    if (atomic_load_explicit(&unasked, memory_order_relaxed) == 0) return;
    if (maya_coordinator_connect(NULL) != NULL) {
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
