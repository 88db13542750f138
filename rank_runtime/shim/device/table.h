/* A hash table: open addressing with linear probing, at most half full.
 *
 * MAYA_DEFINE_TABLE(events, event, uint32_t, 64) defines the type `events`, a table of `event` by keys of type uint32_t with 64
 * slots at first, and these functions:
 *
 *     events_find(table, key)      the entry with that key; NULL if there is none
 *     events_place(table, key)     the entry with that key, or an empty one that the caller must fill
 *     events_remove(table, entry)
 *     events_clear(table)          frees the slots and leaves an empty table
 *
 * The file defines before it:
 *
 *     bool events_is_used(const event *entry)      false for an entry of zeros
 *     uint32_t events_key(const event *entry)
 *     uint64_t events_hash(uint32_t key)           its lowest bits choose the slot
 *     bool events_is_same(uint32_t one, uint32_t other)
 *
 * Rules: zeros are an empty table. Entries move when others are placed or removed, so pointers to them do not stay valid.
 * Tables do not lock. intern.c and blocks.c have tables of their own: the first is read without a lock, the second keeps its
 * newest entries apart, and both are used at every launch. */
#pragma once

#include "vector.h"

#include <stdbool.h>
#include <stdint.h>

#define MAYA_DEFINE_TABLE(name, entry_type, key_type, first_size) \
    typedef struct { \
        entry_type *slots; \
        size_t size, used; /* slots, a power of two or 0; entries */ \
    } name; \
\
    static inline entry_type *name##_slot(const name *table, key_type key) { \
        size_t last = table->size - 1, slot = (size_t)name##_hash(key) & last; \
        while (name##_is_used(&table->slots[slot]) && !name##_is_same(name##_key(&table->slots[slot]), key)) { \
            slot = (slot + 1) & last; \
        } \
        return &table->slots[slot]; \
    } \
\
    __attribute__((unused)) static inline entry_type *name##_find(const name *table, key_type key) { \
        entry_type *found = table->size ? name##_slot(table, key) : NULL; \
        return found && name##_is_used(found) ? found : NULL; \
    } \
\
    __attribute__((noinline)) static void name##_grow(name *table) { \
        name old = *table; \
        table->size = old.size ? 2 * old.size : (first_size); \
        table->slots = must_alloc(calloc(table->size, sizeof *table->slots)); \
        for (size_t i = 0; i < old.size; i++) { \
            if (name##_is_used(&old.slots[i])) *name##_slot(table, name##_key(&old.slots[i])) = old.slots[i]; \
        } \
        free(old.slots); \
    } \
\
    static inline entry_type *name##_place(name *table, key_type key) { \
        if (2 * table->used >= table->size) name##_grow(table); \
        entry_type *place = name##_slot(table, key); \
        table->used += !name##_is_used(place); \
        return place; \
    } \
\
    __attribute__((unused)) static void name##_remove(name *table, entry_type *removed) { \
        size_t last = table->size - 1, hole = (size_t)(removed - table->slots), slot = hole; \
        table->used--; \
        for (;;) { /* entries behind the hole that a search would no longer reach move up */ \
            table->slots[hole] = (entry_type){0}; \
            size_t home; \
            do { \
                slot = (slot + 1) & last; \
                if (!name##_is_used(&table->slots[slot])) return; \
                home = (size_t)name##_hash(name##_key(&table->slots[slot])) & last; \
            } while (((slot - home) & last) < ((slot - hole) & last)); \
            table->slots[hole] = table->slots[slot]; \
            hole = slot; \
        } \
    } \
\
    __attribute__((unused)) static void name##_clear(name *table) { \
        free(table->slots); \
        *table = (name){0}; \
    }
