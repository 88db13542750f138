/* torch's default CPU allocator, from which storages of Python (torch.UntypedStorage, torch.save of a device tensor) take their
 * memory directly. In: the observer's allocator (observer/host_allocator.cpp). Out: that one, once it is set; torch's own before.
 * This library is preloaded, so torch's calls of the C++ function arrive here. */
#include "host_values.h"
#include "internal.h"

static void *_Atomic replacement;

void maya_set_default_allocator(void *allocator) { replacement = allocator; }

MAYA_API void *_ZN3c1022GetDefaultCPUAllocatorEv(void) {
    static void *(*real)(void);
    if (replacement != NULL) return replacement;
    if (real == NULL) real = (void *(*)(void))maya_need_function("libc10.so", "_ZN3c1022GetDefaultCPUAllocatorEv");
    return real();
}
