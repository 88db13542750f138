/* Which devices of the node the program sees, and in which order.
 *
 * In: CUDA_VISIBLE_DEVICES, read when CUDA is first used, like the driver: programs may set it themselves before. Out: the
 * devices that the CUDA libraries number 0, 1, ...; NVML numbers those of the node. */

#include "attributes.h"
#include "internal.h"
#include "process.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const maya_devices *maya_known_devices;
static maya_devices devices;
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

/* The node's device that an entry names, by index or by (the beginning of) its UUID; -1: none. */
static int named_device(const char *entry) {
    int node_devices = maya_get_settings()->node_devices;
    if (strncmp(entry, "GPU-", 4) != 0) {
        char *end;
        long index = strtol(entry, &end, 10);
        return end != entry && index >= 0 && index < node_devices ? (int)index : -1;
    }
    for (int device = 0; device < node_devices; device++) {
        char text[MAYA_UUID_TEXT];
        maya_device_uuid_text(device, text);
        if (strncmp(entry, text, strcspn(entry, ",")) == 0) return device;
    }
    return -1;
}

/* Entries count up to the first that names no device; without the variable all devices are visible. */
static void find_devices(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int node_devices = maya_get_settings()->node_devices;
    devices = (maya_devices){0};
    for (int device = 0; text == NULL && device < node_devices; device++) devices.physical[devices.count++] = device;
    while (text != NULL && *text != '\0' && devices.count < MAYA_MAX_DEVICES) {
        int device = named_device(text);
        if (device < 0) break;
        devices.physical[devices.count++] = device;
        text += strcspn(text, ",");
        if (*text == ',') text++;
    }
}

const maya_devices *maya_find_devices(void) {
    pthread_mutex_lock(&reading);
    if (!maya_known_devices) find_devices();
    __atomic_store_n(&maya_known_devices, &devices, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&reading);
    return &devices;
}

void maya_devices_begin_rank(void) { __atomic_store_n(&maya_known_devices, NULL, __ATOMIC_RELEASE); }
