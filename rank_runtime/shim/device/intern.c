/* The table of interned strings (intern.h): open addressing, at most half full.
 *
 * Every launch looks its signature up, and nearly all find it, so a lookup takes no lock: it reads a table whose slots
 * only ever go from empty to a finished string. New strings are entered under the lock. A table that has become too
 * small is replaced, but not freed, because another thread may be reading it; all outgrown tables together are smaller
 * than the present one. */
#include "intern.h"
#include "late_rank.h"
#include "process.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "recorder.h"

typedef struct {
    size_t mask; /* number of slots - 1; a power of two minus one */
    maya_string *_Atomic slots[];
} string_table;

enum { FIRST_SLOTS = 1024 };

static string_table *_Atomic current_table;
pthread_mutex_t maya_insertion_lock = PTHREAD_MUTEX_INITIALIZER;
static maya_string *_Atomic first_string;
static maya_string *last_string; /* under the lock */
static maya_string **by_number;  /* under the lock: number n at n - 1 */
static size_t numbers_capacity;
static bool out_of_memory_said; /* under the lock */

static uint64_t mix(uint64_t state, uint64_t word) {
    unsigned __int128 product = (unsigned __int128)(state ^ word) * 0x9E3779B97F4A7C15u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Eight bytes at a time: a signature is some hundred bytes long. */
static uint64_t hash_of(const char *text, size_t length) {
    uint64_t state = length + 1;
    uint64_t word;
    while (length > sizeof word) {
        memcpy(&word, text, sizeof word);
        state = mix(state, word);
        text += sizeof word;
        length -= sizeof word;
    }
    word = 0;
    memcpy(&word, text, length);
    return mix(state, word);
}

static maya_string *find(const string_table *table, uint64_t hash, const char *text, size_t length) {
    for (size_t slot = hash & table->mask;; slot = (slot + 1) & table->mask) {
        maya_string *string = atomic_load_explicit(&table->slots[slot], memory_order_acquire);
        if (!string || (string->hash == hash && string->length == length && !memcmp(string->text, text, length))) return string;
    }
}

static void enter(string_table *table, maya_string *string) {
    size_t slot = string->hash & table->mask;
    while (atomic_load_explicit(&table->slots[slot], memory_order_relaxed)) slot = (slot + 1) & table->mask;
    atomic_store_explicit(&table->slots[slot], string, memory_order_release);
}

/* A table of `slots` slots with every string there is; NULL without memory. */
static string_table *make_table(size_t slots) {
    string_table *table = calloc(1, sizeof *table + slots * sizeof table->slots[0]);
    if (!table) return NULL;
    table->mask = slots - 1;
    for (maya_string *string = first_string; string; string = string->next) enter(table, string);
    return table;
}

/* The table, with room for one string more; NULL without memory. */
static string_table *table_with_room(void) {
    string_table *table = current_table;
    size_t slots = table ? table->mask + 1 : 0;
    size_t strings = last_string ? last_string->number : 0;
    if (2 * (strings + 1) <= slots) return table;
    table = make_table(slots ? 2 * slots : FIRST_SLOTS);
    if (table) atomic_store_explicit(&current_table, table, memory_order_release);
    return table;
}

static bool make_room_for(uint32_t number) {
    if (number <= numbers_capacity) return true;
    size_t capacity = numbers_capacity ? 2 * numbers_capacity : FIRST_SLOTS / 2;
    maya_string **grown = realloc(by_number, capacity * sizeof *grown);
    if (!grown) return false;
    by_number = grown;
    numbers_capacity = capacity;
    return true;
}

static maya_string *insert(uint64_t hash, const char *text, size_t length) {
    string_table *table = table_with_room();
    maya_string *string = table ? find(table, hash, text, length) : NULL;
    if (string || !table) return string; /* another thread was faster, or no memory */
    string = malloc(sizeof *string + length);
    if (!string) return NULL;
    uint32_t number = last_string ? last_string->number + 1 : 1;
    if (!make_room_for(number)) {
        free(string);
        return NULL;
    }
    by_number[number - 1] = string;
    *string = (maya_string){.hash = hash, .number = number, .length = (uint32_t)length};
    memcpy(string->text, text, length);
    atomic_store_explicit(last_string ? &last_string->next : &first_string, string, memory_order_release);
    last_string = string;
    enter(table, string);
    return string;
}

uint32_t maya_intern(const char *text, size_t length) {
    if (!length || !(maya_is_recording() || maya_waits_to_appear())) return 0;
    uint64_t hash = hash_of(text, length);
    const string_table *table = atomic_load_explicit(&current_table, memory_order_acquire);
    maya_string *string = table ? find(table, hash, text, length) : NULL;
    if (string) return string->number;

    maya_intern_lock();
    string = insert(hash, text, length);
    bool must_say = !string && !out_of_memory_said;
    out_of_memory_said |= must_say;
    maya_intern_unlock();
    if (must_say) maya_message("out of memory for the strings of the trace: later records may lack their signature");
    return string ? string->number : 0;
}

const maya_string *maya_string_after(const maya_string *previous) {
    return atomic_load_explicit(previous ? &previous->next : &first_string, memory_order_acquire);
}

const maya_string *maya_string_numbered(uint32_t number) {
    maya_intern_lock();
    const maya_string *string = number && last_string && number <= last_string->number ? by_number[number - 1] : NULL;
    maya_intern_unlock();
    return string;
}

void maya_intern_lock(void) { pthread_mutex_lock(&maya_insertion_lock); }

void maya_intern_unlock(void) { pthread_mutex_unlock(&maya_insertion_lock); }
