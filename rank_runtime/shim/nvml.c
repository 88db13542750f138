/* libnvidia-ml.so.1: the library, the system, handles, and the identity of the devices.
 *
 * Reached by torch through dlopen, and by programs through pynvml, nvitop, gpustat and the like. In: the device of the
 * settings. Out: answers that agree with the CUDA runtime's about the same device. Only emulated functions are defined;
 * for any other function the symbol is missing, which pynvml reports as NVMLError_FunctionNotFound. */

#include "nvml_internal.h"

#include "device/attributes.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised; /* nvmlInit calls minus nvmlShutdown calls */
static nvml_device devices[MAYA_MAX_DEVICES];

static int device_count(void) { return maya_get_settings()->node_devices; }

int nvml_compute_capability(void) {
    const maya_device_properties *device = &maya_get_settings()->device;
    return device->compute_major * 10 + device->compute_minor;
}

/* ---- the library ---- */

MAYA_API nvml_result nvmlInit_v2(void) {
    pthread_mutex_lock(&lock);
    initialised++;
    for (int i = 0; i < MAYA_MAX_DEVICES; i++) devices[i].index = i;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

MAYA_API nvml_result nvmlInit(void) { return nvmlInit_v2(); }

MAYA_API nvml_result nvmlInitWithFlags(unsigned flags) {
    (void)flags; /* whether it is an error to find no device: there is always one */
    return nvmlInit_v2();
}

MAYA_API nvml_result nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvml_result result = initialised > 0 ? NVML_SUCCESS : NVML_UNINITIALIZED;
    if (initialised > 0) initialised--;
    pthread_mutex_unlock(&lock);
    return result;
}

static nvml_result check_initialised(const void *result) {
    if (__atomic_load_n(&initialised, __ATOMIC_RELAXED) == 0) return NVML_UNINITIALIZED;
    return result == NULL ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvml_result nvml_check(const nvml_device *device, const void *result) {
    if (device < devices || device >= devices + device_count()) {
        nvml_result initialisation = check_initialised(devices);
        return initialisation == NVML_SUCCESS ? NVML_INVALID_ARGUMENT : initialisation;
    }
    return check_initialised(result);
}

nvml_result nvml_answer(const nvml_device *device, unsigned *target, unsigned value) {
    nvml_result result = nvml_check(device, target);
    if (result == NVML_SUCCESS) *target = value;
    return result;
}

nvml_result nvml_answer_long(const nvml_device *device, unsigned long long *target, unsigned long long value) {
    nvml_result result = nvml_check(device, target);
    if (result == NVML_SUCCESS) *target = value;
    return result;
}

/* Copies a text into the caller's buffer, if it fits. */
static nvml_result answer_text(nvml_result checked, char *target, unsigned size, const char *text) {
    if (checked != NVML_SUCCESS) return checked;
    if (strlen(text) >= size) return NVML_INSUFFICIENT_SIZE;
    strcpy(target, text);
    return NVML_SUCCESS;
}

MAYA_API const char *nvmlErrorString(nvml_result result) {
    switch (result) {
        case NVML_SUCCESS: return "Success";
        case NVML_UNINITIALIZED: return "Uninitialized";
        case NVML_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_NOT_SUPPORTED: return "Not Supported";
        case NVML_NOT_FOUND: return "Not Found";
        case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_VERSION_MISMATCH: return "Argument version mismatch";
        default: return "Unknown Error";
    }
}

/* ---- the system ---- */

/* The driver that came with a CUDA release. */
static const char *driver_version(void) {
    switch (MAYA_CUDA_VERSION / 10) {
        case 1260: return "560.35.05";
        case 1280: return "570.86.15";
        case 1290: return "575.57.08";
        case 1300: return "580.65.06";
        case 1310: return "590.44.01";
        default: return MAYA_CUDA_VERSION < 12060 ? "550.54.15" : "595.45.04";
    }
}

MAYA_API nvml_result nvmlSystemGetDriverVersion(char *version, unsigned size) {
    return answer_text(check_initialised(version), version, size, driver_version());
}

MAYA_API nvml_result nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    char text[32];
    snprintf(text, sizeof text, "%d.%s", MAYA_CUDA_VERSION / 1000, driver_version());
    return answer_text(check_initialised(version), version, size, text);
}

MAYA_API nvml_result nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (version == NULL) return NVML_INVALID_ARGUMENT; /* the one question that needs no nvmlInit */
    *version = MAYA_CUDA_VERSION;
    return NVML_SUCCESS;
}

MAYA_API nvml_result nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

MAYA_API nvml_result nvmlSystemGetProcessName(unsigned process, char *name, unsigned size) {
    nvml_result result = check_initialised(name);
    if (result != NVML_SUCCESS || size == 0) return result != NVML_SUCCESS ? result : NVML_INVALID_ARGUMENT;
    char path[32];
    snprintf(path, sizeof path, "/proc/%u/cmdline", process);
    FILE *file = fopen(path, "r");
    if (file == NULL) return NVML_NOT_FOUND;
    size_t length = fread(name, 1, size - 1, file); /* the arguments follow the name, after its terminating zero */
    fclose(file);
    name[length] = '\0';
    return NVML_SUCCESS;
}

/* ---- handles ---- */

MAYA_API nvml_result nvmlDeviceGetCount_v2(unsigned *count) {
    nvml_result result = check_initialised(count);
    if (result == NVML_SUCCESS) *count = (unsigned)device_count();
    return result;
}

MAYA_API nvml_result nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static unsigned pci_bus(int index) { return (unsigned)maya_device_pci_bus(index); }

void nvml_describe_pci(nvml_pci_info *info, unsigned bus) {
    *info = (nvml_pci_info){.bus = bus, .pci_device_id = 0x10de /* the vendor; no particular model */};
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", bus);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", bus);
}

static void describe_serial(int index, char text[16]) { snprintf(text, 16, "16500%08d", index); }

MAYA_API nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned index, const nvml_device **device) {
    nvml_result result = check_initialised(device);
    if (result != NVML_SUCCESS) return result;
    if (index >= (unsigned)device_count()) return NVML_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

MAYA_API nvml_result nvmlDeviceGetHandleByIndex(unsigned index, const nvml_device **device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

MAYA_API nvml_result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, const nvml_device **device) {
    nvml_result result = check_initialised(device);
    if (result != NVML_SUCCESS) return result;
    unsigned domain = 0, bus, slot, function = 0;
    if (bus_id == NULL) return NVML_INVALID_ARGUMENT;
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) < 2) return NVML_INVALID_ARGUMENT;
    }
    for (int i = 0; i < device_count(); i++) {
        if (domain != 0 || bus != pci_bus(i) || slot != 0) continue;
        *device = &devices[i];
        return NVML_SUCCESS;
    }
    return NVML_NOT_FOUND;
}

MAYA_API nvml_result nvmlDeviceGetHandleByPciBusId(const char *bus_id, const nvml_device **device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

MAYA_API nvml_result nvmlDeviceGetHandleByUUID(const char *uuid, const nvml_device **device) {
    nvml_result result = check_initialised(device);
    if (result != NVML_SUCCESS || uuid == NULL) return result != NVML_SUCCESS ? result : NVML_INVALID_ARGUMENT;
    for (int i = 0; i < device_count(); i++) {
        char text[48];
        maya_device_uuid_text(i, text);
        if (strcmp(text, uuid) != 0) continue;
        *device = &devices[i];
        return NVML_SUCCESS;
    }
    return NVML_NOT_FOUND;
}

MAYA_API nvml_result nvmlDeviceGetHandleBySerial(const char *serial, const nvml_device **device) {
    nvml_result result = check_initialised(device);
    if (result != NVML_SUCCESS || serial == NULL) return result != NVML_SUCCESS ? result : NVML_INVALID_ARGUMENT;
    for (int i = 0; i < device_count(); i++) {
        char text[16];
        describe_serial(i, text);
        if (strcmp(text, serial) != 0) continue;
        *device = &devices[i];
        return NVML_SUCCESS;
    }
    return NVML_NOT_FOUND;
}

/* ---- identity of a device ---- */

MAYA_API nvml_result nvmlDeviceGetIndex(const nvml_device *device, unsigned *index) {
    return nvml_answer(device, index, device ? (unsigned)device->index : 0);
}

MAYA_API nvml_result nvmlDeviceGetMinorNumber(const nvml_device *device, unsigned *minor) {
    return nvmlDeviceGetIndex(device, minor);
}

MAYA_API nvml_result nvmlDeviceGetBoardId(const nvml_device *device, unsigned *board) {
    return nvml_answer(device, board, device ? pci_bus(device->index) << 8 : 0);
}

MAYA_API nvml_result nvmlDeviceGetMultiGpuBoard(const nvml_device *device, unsigned *multiple) {
    return nvml_answer(device, multiple, 0);
}

MAYA_API nvml_result nvmlDeviceOnSameBoard(const nvml_device *one, const nvml_device *other, int *same) {
    nvml_result result = nvml_check(other, same);
    return result == NVML_SUCCESS ? nvml_answer(one, (unsigned *)same, one == other) : result;
}

MAYA_API nvml_result nvmlDeviceGetName(const nvml_device *device, char *name, unsigned size) {
    return answer_text(nvml_check(device, name), name, size, maya_get_settings()->device.name);
}

MAYA_API nvml_result nvmlDeviceGetUUID(const nvml_device *device, char *uuid, unsigned size) {
    nvml_result result = nvml_check(device, uuid);
    char text[48] = "";
    if (result == NVML_SUCCESS) maya_device_uuid_text(device->index, text);
    return answer_text(result, uuid, size, text);
}

MAYA_API nvml_result nvmlDeviceGetSerial(const nvml_device *device, char *serial, unsigned size) {
    nvml_result result = nvml_check(device, serial);
    char text[16] = "";
    if (result == NVML_SUCCESS) describe_serial(device->index, text);
    return answer_text(result, serial, size, text);
}

MAYA_API nvml_result nvmlDeviceGetPciInfo_v3(const nvml_device *device, nvml_pci_info *info) {
    nvml_result result = nvml_check(device, info);
    if (result == NVML_SUCCESS) nvml_describe_pci(info, pci_bus(device->index));
    return result;
}

MAYA_API nvml_result nvmlDeviceGetBrand(const nvml_device *device, unsigned *brand) {
    enum { BRAND_TESLA = 2, BRAND_NVIDIA = 14 };
    return nvml_answer(device, brand, nvml_compute_capability() < 80 ? BRAND_TESLA : BRAND_NVIDIA);
}

MAYA_API nvml_result nvmlDeviceGetArchitecture(const nvml_device *device, unsigned *architecture) {
    enum { VOLTA = 5, TURING = 6, AMPERE = 7, ADA = 8, HOPPER = 9, BLACKWELL = 10 };
    int capability = nvml_compute_capability();
    unsigned value = BLACKWELL;
    if (capability < 75) value = VOLTA;
    else if (capability < 80) value = TURING;
    else if (capability < 89) value = AMPERE;
    else if (capability < 90) value = ADA;
    else if (capability < 100) value = HOPPER;
    return nvml_answer(device, architecture, value);
}

MAYA_API nvml_result nvmlDeviceGetCudaComputeCapability(const nvml_device *device, int *major, int *minor) {
    nvml_result result = nvml_check(device, major);
    if (result != NVML_SUCCESS || minor == NULL) return result != NVML_SUCCESS ? result : NVML_INVALID_ARGUMENT;
    *major = maya_get_settings()->device.compute_major;
    *minor = maya_get_settings()->device.compute_minor;
    return NVML_SUCCESS;
}

MAYA_API nvml_result nvmlDeviceGetNumGpuCores(const nvml_device *device, unsigned *cores) {
    int capability = nvml_compute_capability();
    unsigned per_multiprocessor = capability <= 80 ? 64 : 128;
    return nvml_answer(device, cores, per_multiprocessor * (unsigned)maya_get_settings()->device.sm_count);
}

MAYA_API nvml_result nvmlDeviceGetMemoryBusWidth(const nvml_device *device, unsigned *bits) {
    return nvml_answer(device, bits, (unsigned)maya_get_settings()->device.memory_bus_bits);
}

MAYA_API nvml_result nvmlDeviceGetVirtualizationMode(const nvml_device *device, unsigned *mode) {
    enum { BARE_METAL = 0 };
    return nvml_answer(device, mode, BARE_METAL);
}
