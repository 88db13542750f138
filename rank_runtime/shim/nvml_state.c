/* NVML: the current state of a device.
 *
 * Memory is that of the virtual device: in a rank what it holds itself, in other processes (nvidia-smi, monitors) what the
 * ranks of the node hold. Measured quantities are placeholders that follow one rule: a device on which such a process holds
 * memory is busy, any other idle. A busy device reports 100 % utilization,
 * its rated power and a typical temperature under load; "memory utilization" is the share of its memory in use. Clocks
 * are always the rated ones. */

#include "nvml_internal.h"

#include <pthread.h>

typedef struct {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvml_memory_v2;

/* A tool asks a dozen questions about each device: they share what was found out for a moment. */
enum { MOST_USES = 1024, MOMENT_NS = 200 * 1000 * 1000 };

static pthread_mutex_t uses_lock = PTHREAD_MUTEX_INITIALIZER;
static maya_memory_use uses[MOST_USES];
static int use_count;

static void refresh_uses(void) {
    static uint64_t found_ns;
    uint64_t now = maya_now_ns();
    if (found_ns != 0 && !maya_is_rank() && now - found_ns < MOMENT_NS) return;
    use_count = maya_node_memory(uses, MOST_USES);
    found_ns = now;
}

/* NVML counts the devices of the node, the rest of the process those that are visible to it. */
static nvml_memory memory_of(const nvml_device *device) {
    unsigned long long total = (unsigned long long)maya_get_settings()->device.memory_bytes, used = 0;
    pthread_mutex_lock(&uses_lock);
    refresh_uses();
    for (int i = 0; i < use_count; i++) used += uses[i].device == device->index ? uses[i].bytes : 0;
    pthread_mutex_unlock(&uses_lock);
    if (used > total) used = total; /* ranks that share a device do not know of each other */
    return (nvml_memory){.total = total, .free = total - used, .used = used};
}

static bool busy(const nvml_device *device) { return memory_of(device).used > 0; }

/* A structure's version word: its size and, in the top byte, its number. */
static unsigned version_word(unsigned number, size_t size) { return number << 24 | (unsigned)size; }

/* ---- memory ---- */

MAYA_API nvml_result nvmlDeviceGetMemoryInfo(const nvml_device *device, nvml_memory *memory) {
    nvml_result result = nvml_check(device, memory);
    if (result == NVML_SUCCESS) *memory = memory_of(device);
    return result;
}

MAYA_API nvml_result nvmlDeviceGetMemoryInfo_v2(const nvml_device *device, nvml_memory_v2 *memory) {
    nvml_result result = nvml_check(device, memory);
    if (result != NVML_SUCCESS) return result;
    if (memory->version != version_word(2, sizeof *memory)) return NVML_VERSION_MISMATCH;
    nvml_memory now = memory_of(device);
    *memory = (nvml_memory_v2){.version = memory->version, .total = now.total, .free = now.free, .used = now.used};
    return NVML_SUCCESS;
}

MAYA_API nvml_result nvmlDeviceGetBAR1MemoryInfo(const nvml_device *device, nvml_memory *memory) {
    nvml_result result = nvml_check(device, memory);
    if (result != NVML_SUCCESS) return result;
    unsigned long long total = 1;
    while (total < memory_of(device).total) total *= 2; /* data-centre boards map all of their memory */
    *memory = (nvml_memory){.total = total, .free = total};
    return NVML_SUCCESS;
}

/* ---- processes on the devices where they hold memory ---- */

typedef struct {
    unsigned process;
    unsigned long long memory_bytes;
} nvml_process_v1;

typedef struct {
    unsigned process;
    unsigned long long memory_bytes;
    unsigned gpu_instance, compute_instance;
} nvml_process;

/* Like the real function, NVML_INSUFFICIENT_SIZE and the number of processes where the caller's list is too short. */
static nvml_result list_processes(const nvml_device *device, unsigned *count, void *list,
                                  void (*put)(void *list, unsigned place, const maya_memory_use *use)) {
    nvml_result result = nvml_check(device, count);
    if (result != NVML_SUCCESS) return result;
    unsigned capacity = *count, found = 0;
    pthread_mutex_lock(&uses_lock);
    refresh_uses();
    for (int i = 0; i < use_count; i++) {
        if (uses[i].device != device->index) continue;
        if (found < capacity && list) put(list, found, &uses[i]);
        found++;
    }
    pthread_mutex_unlock(&uses_lock);
    *count = found;
    if (found > capacity) return NVML_INSUFFICIENT_SIZE;
    return found > 0 && list == NULL ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
}

static void put_process(void *list, unsigned place, const maya_memory_use *use) {
    enum { NO_INSTANCE = 0xffffffff };
    ((nvml_process *)list)[place] = (nvml_process){(unsigned)use->process, use->bytes, NO_INSTANCE, NO_INSTANCE};
}

static void put_process_v1(void *list, unsigned place, const maya_memory_use *use) {
    ((nvml_process_v1 *)list)[place] = (nvml_process_v1){(unsigned)use->process, use->bytes};
}

MAYA_API nvml_result nvmlDeviceGetComputeRunningProcesses_v3(const nvml_device *device, unsigned *count,
                                                             nvml_process *processes) {
    return list_processes(device, count, processes, put_process);
}

MAYA_API nvml_result nvmlDeviceGetComputeRunningProcesses_v2(const nvml_device *device, unsigned *count,
                                                             nvml_process *processes) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}

MAYA_API nvml_result nvmlDeviceGetComputeRunningProcesses(const nvml_device *device, unsigned *count,
                                                          nvml_process_v1 *processes) {
    return list_processes(device, count, processes, put_process_v1);
}

static nvml_result no_processes(const nvml_device *device, unsigned *count) { return nvml_answer(device, count, 0); }

MAYA_API nvml_result nvmlDeviceGetGraphicsRunningProcesses_v3(const nvml_device *device, unsigned *count, void *processes) {
    (void)processes;
    return no_processes(device, count);
}

MAYA_API nvml_result nvmlDeviceGetGraphicsRunningProcesses_v2(const nvml_device *device, unsigned *count, void *processes) {
    (void)processes;
    return no_processes(device, count);
}

MAYA_API nvml_result nvmlDeviceGetMPSComputeRunningProcesses_v3(const nvml_device *device, unsigned *count, void *processes) {
    (void)processes;
    return no_processes(device, count);
}

/* ---- utilization ---- */

typedef struct {
    unsigned gpu, memory;
} nvml_utilization;

MAYA_API nvml_result nvmlDeviceGetUtilizationRates(const nvml_device *device, nvml_utilization *utilization) {
    nvml_result result = nvml_check(device, utilization);
    if (result != NVML_SUCCESS) return result;
    nvml_memory memory = memory_of(device);
    utilization->gpu = memory.used > 0 ? 100 : 0;
    utilization->memory = (unsigned)(memory.used * 100 / memory.total);
    return NVML_SUCCESS;
}

static nvml_result idle_engine(const nvml_device *device, unsigned *utilization, unsigned *sampling_microseconds) {
    nvml_result result = nvml_answer(device, utilization, 0);
    return result == NVML_SUCCESS ? nvml_answer(device, sampling_microseconds, 167000) : result;
}

MAYA_API nvml_result nvmlDeviceGetEncoderUtilization(const nvml_device *device, unsigned *utilization, unsigned *period) {
    return idle_engine(device, utilization, period);
}

MAYA_API nvml_result nvmlDeviceGetDecoderUtilization(const nvml_device *device, unsigned *utilization, unsigned *period) {
    return idle_engine(device, utilization, period);
}

/* ---- temperature and fans ---- */

unsigned nvml_temperature_celsius(const nvml_device *device) { return busy(device) ? 65 : 32; }

MAYA_API nvml_result nvmlDeviceGetTemperature(const nvml_device *device, unsigned sensor, unsigned *celsius) {
    enum { SENSOR_GPU = 0 };
    if (sensor != SENSOR_GPU) return NVML_INVALID_ARGUMENT;
    nvml_result result = nvml_check(device, celsius);
    return result == NVML_SUCCESS ? nvml_answer(device, celsius, nvml_temperature_celsius(device)) : result;
}

typedef struct {
    unsigned version, sensor;
    int celsius;
} nvml_temperature;

MAYA_API nvml_result nvmlDeviceGetTemperatureV(const nvml_device *device, nvml_temperature *temperature) {
    nvml_result result = nvml_check(device, temperature);
    if (result != NVML_SUCCESS) return result;
    if (temperature->version != version_word(1, sizeof *temperature)) return NVML_VERSION_MISMATCH;
    return nvmlDeviceGetTemperature(device, temperature->sensor, (unsigned *)&temperature->celsius);
}

MAYA_API nvml_result nvmlDeviceGetTemperatureThreshold(const nvml_device *device, unsigned threshold, unsigned *celsius) {
    static const unsigned char limits[] = {92 /* shutdown */, 89 /* slowdown */, 95 /* memory */, 87 /* GPU */};
    if (threshold >= sizeof limits) return NVML_NOT_SUPPORTED;
    return nvml_answer(device, celsius, limits[threshold]);
}

/* The boards of the catalogue are cooled by their chassis. */
MAYA_API nvml_result nvmlDeviceGetNumFans(const nvml_device *device, unsigned *fans) { return nvml_answer(device, fans, 0); }

MAYA_API nvml_result nvmlDeviceGetFanSpeed(const nvml_device *device, unsigned *percent) {
    nvml_result result = nvml_check(device, percent);
    return result == NVML_SUCCESS ? NVML_NOT_SUPPORTED : result;
}

/* ---- power ---- */

unsigned nvml_power_limit_milliwatts(void) { return (unsigned)maya_get_settings()->device.power_watts * 1000; }

unsigned nvml_power_milliwatts(const nvml_device *device) {
    unsigned limit = nvml_power_limit_milliwatts();
    return busy(device) ? limit : limit / 10;
}

/* The sum over the time since this process began; it never decreases, even when a device becomes idle. */
unsigned long long nvml_energy_millijoules(const nvml_device *device) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t asked_ns;
        double millijoules;
    } meters[MAYA_MAX_DEVICES];

    pthread_mutex_lock(&lock);
    uint64_t now = maya_now_ns(), *asked = &meters[device->index].asked_ns;
    double seconds = now > *asked ? (double)(now - *asked) * 1e-9 : 0;
    meters[device->index].millijoules += nvml_power_milliwatts(device) * seconds;
    *asked = now;
    unsigned long long total = (unsigned long long)meters[device->index].millijoules;
    pthread_mutex_unlock(&lock);
    return total;
}

MAYA_API nvml_result nvmlDeviceGetPowerUsage(const nvml_device *device, unsigned *milliwatts) {
    nvml_result result = nvml_check(device, milliwatts);
    return result == NVML_SUCCESS ? nvml_answer(device, milliwatts, nvml_power_milliwatts(device)) : result;
}

MAYA_API nvml_result nvmlDeviceGetTotalEnergyConsumption(const nvml_device *device, unsigned long long *millijoules) {
    nvml_result result = nvml_check(device, millijoules);
    return result == NVML_SUCCESS ? nvml_answer_long(device, millijoules, nvml_energy_millijoules(device)) : result;
}

MAYA_API nvml_result nvmlDeviceGetPowerManagementMode(const nvml_device *device, unsigned *enabled) {
    return nvml_answer(device, enabled, 1);
}

MAYA_API nvml_result nvmlDeviceGetPowerManagementLimit(const nvml_device *device, unsigned *milliwatts) {
    return nvml_answer(device, milliwatts, nvml_power_limit_milliwatts());
}

MAYA_API nvml_result nvmlDeviceGetPowerManagementDefaultLimit(const nvml_device *device, unsigned *milliwatts) {
    return nvml_answer(device, milliwatts, nvml_power_limit_milliwatts());
}

MAYA_API nvml_result nvmlDeviceGetEnforcedPowerLimit(const nvml_device *device, unsigned *milliwatts) {
    return nvml_answer(device, milliwatts, nvml_power_limit_milliwatts());
}

MAYA_API nvml_result nvmlDeviceGetPowerManagementLimitConstraints(const nvml_device *device, unsigned *minimum,
                                                                  unsigned *maximum) {
    nvml_result result = nvml_answer(device, minimum, 200000);
    return result == NVML_SUCCESS ? nvml_answer(device, maximum, nvml_power_limit_milliwatts()) : result;
}

/* ---- clocks ---- */

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCKS };
enum { LOWEST_GRAPHICS_CLOCK_MHZ = 210, GRAPHICS_CLOCK_STEP_MHZ = 15 };

static unsigned clock_mhz(unsigned clock) {
    const maya_device_properties *device = &maya_get_settings()->device;
    unsigned core = (unsigned)device->clock_khz / 1000;
    if (clock == CLOCK_MEMORY) return (unsigned)device->memory_clock_khz / 1000;
    return clock == CLOCK_VIDEO ? core * 3 / 4 : core;
}

MAYA_API nvml_result nvmlDeviceGetMaxClockInfo(const nvml_device *device, unsigned clock, unsigned *mhz) {
    return clock < CLOCKS ? nvml_answer(device, mhz, clock_mhz(clock)) : NVML_INVALID_ARGUMENT;
}

MAYA_API nvml_result nvmlDeviceGetClockInfo(const nvml_device *device, unsigned clock, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}

MAYA_API nvml_result nvmlDeviceGetApplicationsClock(const nvml_device *device, unsigned clock, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}

MAYA_API nvml_result nvmlDeviceGetDefaultApplicationsClock(const nvml_device *device, unsigned clock, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}

MAYA_API nvml_result nvmlDeviceGetMaxCustomerBoostClock(const nvml_device *device, unsigned clock, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}

MAYA_API nvml_result nvmlDeviceGetClock(const nvml_device *device, unsigned clock, unsigned which, unsigned *mhz) {
    enum { WHICH = 4 }; /* current, application target, application default, highest: all the same here */
    return which < WHICH ? nvmlDeviceGetMaxClockInfo(device, clock, mhz) : NVML_INVALID_ARGUMENT;
}

MAYA_API nvml_result nvmlDeviceGetSupportedMemoryClocks(const nvml_device *device, unsigned *count, unsigned *mhz) {
    nvml_result result = nvml_check(device, count);
    if (result != NVML_SUCCESS) return result;
    unsigned capacity = *count;
    *count = 1;
    if (capacity < 1 || mhz == NULL) return NVML_INSUFFICIENT_SIZE;
    mhz[0] = clock_mhz(CLOCK_MEMORY);
    return NVML_SUCCESS;
}

MAYA_API nvml_result nvmlDeviceGetSupportedGraphicsClocks(const nvml_device *device, unsigned memory_mhz, unsigned *count,
                                                          unsigned *mhz) {
    nvml_result result = nvml_check(device, count);
    if (result != NVML_SUCCESS) return result;
    if (memory_mhz != clock_mhz(CLOCK_MEMORY)) return NVML_NOT_FOUND;
    unsigned highest = clock_mhz(CLOCK_GRAPHICS), capacity = *count;
    *count = (highest - LOWEST_GRAPHICS_CLOCK_MHZ) / GRAPHICS_CLOCK_STEP_MHZ + 1;
    if (capacity < *count || mhz == NULL) return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) mhz[i] = highest - i * GRAPHICS_CLOCK_STEP_MHZ;
    return NVML_SUCCESS;
}

MAYA_API nvml_result nvmlDeviceGetPerformanceState(const nvml_device *device, unsigned *state) {
    return nvml_answer(device, state, 0); /* P0: the highest */
}

MAYA_API nvml_result nvmlDeviceGetPowerState(const nvml_device *device, unsigned *state) {
    return nvmlDeviceGetPerformanceState(device, state);
}

MAYA_API nvml_result nvmlDeviceGetCurrentClocksEventReasons(const nvml_device *device, unsigned long long *reasons) {
    return nvml_answer_long(device, reasons, 0); /* nothing holds the clocks down */
}

MAYA_API nvml_result nvmlDeviceGetCurrentClocksThrottleReasons(const nvml_device *device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

/* ---- modes ---- */

static nvml_result answer_pair(const nvml_device *device, unsigned *current, unsigned *pending, unsigned value) {
    nvml_result result = nvml_answer(device, current, value);
    return result == NVML_SUCCESS ? nvml_answer(device, pending, value) : result;
}

MAYA_API nvml_result nvmlDeviceGetPersistenceMode(const nvml_device *device, unsigned *enabled) {
    return nvml_answer(device, enabled, 1);
}

MAYA_API nvml_result nvmlDeviceGetComputeMode(const nvml_device *device, unsigned *mode) {
    return nvml_answer(device, mode, 0); /* any number of processes may use the device */
}

MAYA_API nvml_result nvmlDeviceGetDisplayMode(const nvml_device *device, unsigned *enabled) {
    return nvml_answer(device, enabled, 0);
}

MAYA_API nvml_result nvmlDeviceGetDisplayActive(const nvml_device *device, unsigned *active) {
    return nvml_answer(device, active, 0);
}

MAYA_API nvml_result nvmlDeviceGetEccMode(const nvml_device *device, unsigned *current, unsigned *pending) {
    return answer_pair(device, current, pending, 1);
}

MAYA_API nvml_result nvmlDeviceGetTotalEccErrors(const nvml_device *device, unsigned type, unsigned counter,
                                                 unsigned long long *errors) {
    (void)type, (void)counter;
    return nvml_answer_long(device, errors, 0);
}

MAYA_API nvml_result nvmlDeviceGetMemoryErrorCounter(const nvml_device *device, unsigned type, unsigned counter,
                                                     unsigned location, unsigned long long *errors) {
    (void)type, (void)counter, (void)location;
    return nvml_answer_long(device, errors, 0);
}

/* The devices that can be partitioned: A100 and the largest of each later generation. None is. */
static bool can_be_partitioned(void) {
    int capability = nvml_compute_capability();
    return capability == 80 || capability == 90 || (capability >= 100 && capability < 120);
}

MAYA_API nvml_result nvmlDeviceGetMigMode(const nvml_device *device, unsigned *current, unsigned *pending) {
    nvml_result result = answer_pair(device, current, pending, 0);
    return result == NVML_SUCCESS && !can_be_partitioned() ? NVML_NOT_SUPPORTED : result;
}

MAYA_API nvml_result nvmlDeviceGetMaxMigDeviceCount(const nvml_device *device, unsigned *count) {
    return nvml_answer(device, count, can_be_partitioned() ? 7 : 0);
}

MAYA_API nvml_result nvmlDeviceGetMigDeviceHandleByIndex(const nvml_device *device, unsigned index, void **partition) {
    (void)index;
    nvml_result result = nvml_check(device, partition);
    return result == NVML_SUCCESS ? NVML_NOT_FOUND : result;
}

MAYA_API nvml_result nvmlDeviceIsMigDeviceHandle(const nvml_device *device, unsigned *is_partition) {
    return nvml_answer(device, is_partition, 0);
}
