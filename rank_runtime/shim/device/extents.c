/* Extents: how many bytes a kernel's pointer arguments point to.
 *
 * In: the tensors whose data_ptr() the program has called since the thread's last launch, with their bytes
 * (observer/data_pointer.cpp; Triton's and Inductor's launchers do so for every tensor that they pass), and the blocks of
 * PyTorch's caching allocator (blocks.c). Out: the bytes that a pointer points to. A tensor's own bytes are exact; a block may
 * be up to 1 MiB larger than its tensor, and is known only by its first address. */

#include "internal.h"
#include "process.h"

enum { NOTED = 128 }; /* more tensors than any kernel takes */

typedef struct {
    uint32_t count; /* notes since the last launch; the newest are kept */
    struct {
        uintptr_t address;
        uint64_t bytes;
    } notes[NOTED];
} noted_pointers;

static noted_pointers *own_notes(void) {
    static __thread noted_pointers *own;
    if (own == NULL) maya_thread_table((void **)&own, sizeof *own);
    return own;
}

void maya_note_pointer(const void *address, uint64_t bytes) {
    noted_pointers *own = own_notes();
    uint32_t at = own->count++ % NOTED;
    own->notes[at].address = (uintptr_t)address;
    own->notes[at].bytes = bytes;
}

uint32_t maya_noted_pointers(void) { return own_notes()->count; }

void maya_forget_pointers(void) { own_notes()->count = 0; }

uint64_t maya_extent_of(const void *address) {
    const noted_pointers *own = own_notes();
    uint64_t block_bytes = maya_block_bytes(address);
    for (uint32_t back = 1; back <= own->count && back <= NOTED; back++) {
        uint32_t at = (own->count - back) % NOTED;
        if (own->notes[at].address != (uintptr_t)address) continue;
        /* an expanded tensor has more elements than bytes */
        uint64_t bytes = own->notes[at].bytes;
        return block_bytes && block_bytes < bytes ? block_bytes : bytes;
    }
    return block_bytes;
}
