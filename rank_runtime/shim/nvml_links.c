/* NVML: the connections of a device. One node: every device has its own PCIe root, and, where its kind has
 * NVLink, all links of all devices end in switches, as in an HGX board. */

#define _GNU_SOURCE
#include "nvml_internal.h"

#include <sched.h>
#include <string.h>

/* ---- PCIe ---- */

static unsigned pcie_generation(void) {
    int capability = nvml_compute_capability();
    return capability < 80 ? 3 : capability < 90 ? 4 : 5;
}

MAYA_API nvml_result nvmlDeviceGetCurrPcieLinkGeneration(const nvml_device *device, unsigned *generation) {
    return nvml_answer(device, generation, pcie_generation());
}

MAYA_API nvml_result nvmlDeviceGetMaxPcieLinkGeneration(const nvml_device *device, unsigned *generation) {
    return nvml_answer(device, generation, pcie_generation());
}

MAYA_API nvml_result nvmlDeviceGetGpuMaxPcieLinkGeneration(const nvml_device *device, unsigned *generation) {
    return nvml_answer(device, generation, pcie_generation());
}

MAYA_API nvml_result nvmlDeviceGetCurrPcieLinkWidth(const nvml_device *device, unsigned *lanes) {
    return nvml_answer(device, lanes, 16);
}

MAYA_API nvml_result nvmlDeviceGetMaxPcieLinkWidth(const nvml_device *device, unsigned *lanes) {
    return nvml_answer(device, lanes, 16);
}

MAYA_API nvml_result nvmlDeviceGetPcieSpeed(const nvml_device *device, unsigned *megatransfers_per_second) {
    return nvml_answer(device, megatransfers_per_second, 1000u << pcie_generation());
}

/* The traffic of the last 20 ms: nothing is measured. */
MAYA_API nvml_result nvmlDeviceGetPcieThroughput(const nvml_device *device, unsigned counter, unsigned *kilobytes_per_second) {
    enum { COUNTERS = 2 };
    return counter < COUNTERS ? nvml_answer(device, kilobytes_per_second, 0) : NVML_INVALID_ARGUMENT;
}

MAYA_API nvml_result nvmlDeviceGetPcieReplayCounter(const nvml_device *device, unsigned *replays) {
    return nvml_answer(device, replays, 0);
}

/* ---- NVLink ---- */

typedef struct {
    unsigned links, version, megabytes_per_second; /* the speed of one link in one direction */
} nvlink;

/* By compute capability, because the device description has no links; boards with PCIe in their name have no NVLink. */
static nvlink nvlink_of_device(void) {
    enum { NVLINK_2 = 2, NVLINK_3 = 4, NVLINK_4 = 6, NVLINK_5 = 7 };
    if (strstr(maya_get_settings()->device.name, "PCIe") != NULL) return (nvlink){0};
    switch (nvml_compute_capability()) {
        case 70: return (nvlink){6, NVLINK_2, 25781};
        case 80: return (nvlink){12, NVLINK_3, 25781};
        case 90: return (nvlink){18, NVLINK_4, 26562};
        case 100:
        case 103: return (nvlink){18, NVLINK_5, 53125};
        default: return (nvlink){0};
    }
}

static nvml_result check_link(const nvml_device *device, unsigned link, const void *result) {
    nvml_result checked = nvml_check(device, result);
    if (checked != NVML_SUCCESS) return checked;
    unsigned links = nvlink_of_device().links;
    if (links == 0) return NVML_NOT_SUPPORTED;
    return link < links ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

static nvml_result answer_link(const nvml_device *device, unsigned link, unsigned *target, unsigned value) {
    nvml_result result = check_link(device, link, target);
    if (result == NVML_SUCCESS) *target = value;
    return result;
}

MAYA_API nvml_result nvmlDeviceGetNvLinkState(const nvml_device *device, unsigned link, unsigned *active) {
    return answer_link(device, link, active, 1);
}

MAYA_API nvml_result nvmlDeviceGetNvLinkVersion(const nvml_device *device, unsigned link, unsigned *version) {
    return answer_link(device, link, version, nvlink_of_device().version);
}

MAYA_API nvml_result nvmlDeviceGetNvLinkCapability(const nvml_device *device, unsigned link, unsigned capability,
                                                   unsigned *supported) {
    /* Access to peers and to host memory, atomics on both, no SLI bridge, the link itself is valid. */
    static const unsigned char capabilities[] = {1, 1, 1, 1, 0, 1};
    if (capability >= sizeof capabilities) return NVML_INVALID_ARGUMENT;
    return answer_link(device, link, supported, capabilities[capability]);
}

MAYA_API nvml_result nvmlDeviceGetNvLinkErrorCounter(const nvml_device *device, unsigned link, unsigned counter,
                                                     unsigned long long *errors) {
    (void)counter;
    nvml_result result = check_link(device, link, errors);
    if (result == NVML_SUCCESS) *errors = 0;
    return result;
}

MAYA_API nvml_result nvmlDeviceGetNvLinkRemoteDeviceType(const nvml_device *device, unsigned link, unsigned *type) {
    enum { REMOTE_SWITCH = 2 };
    return answer_link(device, link, type, REMOTE_SWITCH);
}

MAYA_API nvml_result nvmlDeviceGetNvLinkRemotePciInfo_v2(const nvml_device *device, unsigned link, nvml_pci_info *info) {
    /* A board's links are spread evenly over its switches. */
    enum { FIRST_SWITCH_BUS = 0xc0, SWITCHES = 4 };
    nvml_result result = check_link(device, link, info);
    if (result == NVML_SUCCESS) nvml_describe_pci(info, FIRST_SWITCH_BUS + link % SWITCHES);
    return result;
}

/* ---- other devices ---- */

MAYA_API nvml_result nvmlDeviceGetP2PStatus(const nvml_device *one, const nvml_device *other, unsigned capability,
                                            unsigned *status) {
    enum { READ, WRITE, NVLINK, ATOMICS, PCI, CAPABILITIES };
    enum { STATUS_OK = 0, STATUS_NOT_SUPPORTED = 5 };
    nvml_result result = nvml_check(other, status);
    if (result != NVML_SUCCESS) return result;
    if (capability >= CAPABILITIES) return NVML_INVALID_ARGUMENT;
    bool linked = nvlink_of_device().links > 0;
    bool possible = capability == READ || capability == WRITE || (capability == PCI ? !linked : linked);
    return nvml_answer(one, status, possible ? STATUS_OK : STATUS_NOT_SUPPORTED);
}

MAYA_API nvml_result nvmlDeviceGetTopologyCommonAncestor(const nvml_device *one, const nvml_device *other, unsigned *level) {
    enum { SAME_BOARD = 0, SAME_CPU = 40, OTHER_CPU = 50, DEVICES_PER_CPU = 4 };
    nvml_result result = nvml_check(one, level);
    if (result == NVML_SUCCESS) result = nvml_check(other, level);
    if (result != NVML_SUCCESS) return result;
    *level = one->index / DEVICES_PER_CPU == other->index / DEVICES_PER_CPU ? SAME_CPU : OTHER_CPU;
    if (one == other) *level = SAME_BOARD;
    return NVML_SUCCESS;
}

/* The processors this process may use: on the machine it really runs on, any of them is as near as another. */
MAYA_API nvml_result nvmlDeviceGetCpuAffinity(const nvml_device *device, unsigned words, unsigned long *processors) {
    nvml_result result = nvml_check(device, processors);
    if (result != NVML_SUCCESS) return result;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    memset(processors, 0, words * sizeof *processors);
    for (unsigned i = 0; i < words * 64 && i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &allowed)) processors[i / 64] |= 1ul << i % 64;
    }
    return NVML_SUCCESS;
}

/* ---- the fabric: NVLink beyond one node ---- */

typedef struct {
    unsigned version;
    unsigned char cluster_uuid[16]; /* all zero: the fabric ends at this node */
    unsigned status, clique, state, health_mask;
    unsigned char health_summary; /* since version 3 */
} nvml_fabric;

/* There is no fabric manager, so none of the devices takes part in a fabric. */
MAYA_API nvml_result nvmlDeviceGetGpuFabricInfoV(const nvml_device *device, nvml_fabric *fabric) {
    enum { STATE_NOT_SUPPORTED = 0 };
    nvml_result result = nvml_check(device, fabric);
    if (result != NVML_SUCCESS) return result;
    size_t second = offsetof(nvml_fabric, health_summary), third = sizeof *fabric, size = fabric->version & 0xffffff;
    unsigned number = fabric->version >> 24;
    if (!(number == 2 && size == second) && !(number == 3 && size == third)) return NVML_VERSION_MISMATCH;
    nvml_fabric answer = {.version = fabric->version, .state = STATE_NOT_SUPPORTED};
    memcpy(fabric, &answer, size);
    return NVML_SUCCESS;
}

/* ---- values by number ---- */

typedef struct {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    unsigned type, result;
    union {
        double real;
        unsigned number;
        unsigned long long large;
    } value;
} nvml_field_value;

static void answer_field(const nvml_device *device, nvml_field_value *field) {
    enum { MEMORY_TEMPERATURE = 82, ENERGY = 83, FIRST_LINK_SPEED = 84, LINK_SPEED = 90, LINK_COUNT = 91, POWER = 185 };
    enum { POWER_NOW = 186, LOWEST_LIMIT = 187, HIGHEST_LIMIT = 188, DEFAULT_LIMIT = 189, CURRENT_LIMIT = 190 };
    enum { TYPE_UNSIGNED = 1, TYPE_UNSIGNED_LONG_LONG = 3 };
    field->timestamp_us = (long long)(maya_now_ns() / 1000);
    field->latency_us = 0;
    field->type = TYPE_UNSIGNED;
    field->result = NVML_SUCCESS;
    field->value.large = 0;
    switch (field->field) {
        case MEMORY_TEMPERATURE: field->value.number = nvml_temperature_celsius(device); break;
        case ENERGY:
            field->type = TYPE_UNSIGNED_LONG_LONG;
            field->value.large = nvml_energy_millijoules(device);
            break;
        case LINK_COUNT: field->value.number = nvlink_of_device().links; break;
        case POWER:
        case POWER_NOW: field->value.number = nvml_power_milliwatts(device); break;
        case HIGHEST_LIMIT:
        case DEFAULT_LIMIT:
        case CURRENT_LIMIT: field->value.number = nvml_power_limit_milliwatts(); break;
        case LOWEST_LIMIT: field->value.number = 200000; break;
        default:
            if (field->field >= FIRST_LINK_SPEED && field->field <= LINK_SPEED && nvlink_of_device().links > 0) {
                field->value.number = nvlink_of_device().megabytes_per_second;
            } else {
                field->result = NVML_NOT_SUPPORTED;
            }
    }
}

MAYA_API nvml_result nvmlDeviceGetFieldValues(const nvml_device *device, int count, nvml_field_value *fields) {
    nvml_result result = nvml_check(device, fields);
    for (int i = 0; i < count && result == NVML_SUCCESS; i++) answer_field(device, &fields[i]);
    return result;
}
