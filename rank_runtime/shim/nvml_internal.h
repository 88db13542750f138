/* Declarations shared by the files of the fake libnvidia-ml.so.1.
 *
 * nvml.c         the library itself, the system, handles, and the identity of a device
 * nvml_state.c   the state of a device: memory, utilization, clocks, power, temperature, processes, modes
 * nvml_links.c   the connections of a device: PCIe, NVLink, other devices, the fabric
 *
 * NVML numbers the devices of the node; CUDA_VISIBLE_DEVICES does not apply to it. */
#pragma once

#include "device/device.h"

typedef enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3, /* also the real library's answer for features that a kind of device lacks */
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_VERSION_MISMATCH = 25,
} nvml_result;

typedef struct {
    int index;
} nvml_device;

/* The layout of nvmlPciInfo_t since NVML 9; the legacy text has a 16-bit domain. */
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvml_pci_info;

/* NVML_SUCCESS if the library is initialised, `device` is one of its handles and there is a place for the result. */
nvml_result nvml_check(const nvml_device *device, const void *result);
/* *target = value, after nvml_check. */
nvml_result nvml_answer(const nvml_device *device, unsigned *target, unsigned value);
nvml_result nvml_answer_long(const nvml_device *device, unsigned long long *target, unsigned long long value);
/* The PCI address with this bus number, in domain 0. */
void nvml_describe_pci(nvml_pci_info *info, unsigned bus);
/* 90 for compute capability 9.0, and so on. */
int nvml_compute_capability(void);

/* Fields of nvmlDeviceGetFieldValues other than links. */
unsigned nvml_power_milliwatts(const nvml_device *device);
unsigned nvml_power_limit_milliwatts(void);
unsigned long long nvml_energy_millijoules(const nvml_device *device);
unsigned nvml_temperature_celsius(const nvml_device *device);
