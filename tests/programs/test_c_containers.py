"""The growing array and the hash table of the C code (shim/device/vector.h, table.h), against plain arrays."""

from __future__ import annotations

import subprocess
from pathlib import Path

DEVICE = Path(__file__).parents[2] / "rank_runtime" / "shim" / "device"

PROGRAM = r"""
#undef NDEBUG
#include "table.h"
#include <assert.h>

typedef struct {
    uint32_t key, value;
} entry;

static bool entries_is_used(const entry *one) { return one->key != 0; }
static uint32_t entries_key(const entry *one) { return one->key; }
static uint64_t entries_hash(uint32_t key) { return key / 3; } /* many keys want the same slot, also the last one */
static bool entries_is_same(uint32_t one, uint32_t other) { return one == other; }
MAYA_DEFINE_TABLE(entries, entry, uint32_t, 8)

enum { KEYS = 500, TURNS = 200000 };

static void vector(void) {
    MAYA_VECTOR(uint64_t) numbers = {0};
    for (uint64_t i = 0; i < 1000; i++) *maya_vector_add(&numbers) = i * i;
    for (uint64_t i = 0; i < 1000; i++) assert(numbers.items[i] == i * i);
    maya_vector_extend(&numbers, 5000);
    maya_vector_extend(&numbers, 10); /* has them already */
    assert(numbers.count == 5000 && numbers.items[999] == 999 * 999);
    assert(numbers.items[1000] == 0 && numbers.items[4999] == 0);
    maya_vector_clear(&numbers);
    assert(numbers.items == NULL && numbers.count == 0 && numbers.capacity == 0);
}

static void table(void) {
    static uint32_t values[KEYS]; /* 0: not in the table */
    entries all = {0};
    size_t count = 0;
    assert(entries_find(&all, 1) == NULL);
    uint64_t random = 1;
    for (int i = 0; i < TURNS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t key = 1 + (uint32_t)(random >> 33) % (KEYS - 1);
        if (random >> 63) {
            entry *placed = entries_place(&all, key);
            assert(placed->value == values[key]);
            count += placed->key == 0;
            *placed = (entry){key, values[key] = (uint32_t)i + 1};
        } else if (values[key]) {
            entries_remove(&all, entries_find(&all, key));
            values[key] = 0;
            count--;
        }
        assert(all.used == count && 2 * count <= all.size + 1);
        if (i % 1000 != 0) continue;
        for (uint32_t each = 1; each < KEYS; each++) {
            const entry *found = entries_find(&all, each);
            assert(values[each] ? found && found->value == values[each] : found == NULL);
        }
    }
    entries_clear(&all);
    assert(entries_find(&all, 1) == NULL);
}

int main(void) {
    vector();
    table();
}
"""


def test_vectors_and_tables_hold_what_was_put_into_them(tmp_path: Path) -> None:
    source, program = tmp_path / "containers.c", tmp_path / "containers"
    source.write_text(PROGRAM, encoding="utf-8")
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", f"-I{DEVICE}"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(program)], check=True)
    subprocess.run([program], check=True, timeout=60)
