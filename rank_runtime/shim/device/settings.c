/* The settings of this process: MAYA_* environment variables -> maya_settings, read at first use.
 * rank_runtime/variables.py declares the variables and their defaults, rank_runtime/environment.py sets them. */

#include "attributes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static maya_settings settings;
const maya_settings *maya_known_settings;
static pthread_mutex_t settings_lock = PTHREAD_MUTEX_INITIALIZER;

static void __attribute__((noreturn)) refuse(const char *variable, const char *value, const char *expected) {
    fprintf(stderr, "maya: %s=%s: expected %s; start the program with maya-torchrun, which sets it\n", variable, value,
            expected);
    _exit(2);
}

/* ---- values of variables ---- */

static int64_t number_of(const char *variable, int64_t default_value) {
    const char *text = getenv(variable);
    if (text == NULL || *text == '\0') return default_value;
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*end != '\0' || value < 0) refuse(variable, text, "a whole number");
    return value;
}

#define TEXT_OF_TOKEN(token) #token
#define TEXT_OF(macro) TEXT_OF_TOKEN(macro)

#define NUMBER(name) number_of(MAYA_VARIABLE_##name, MAYA_DEFAULT_##name)

/* The index of the variable's value among its choices. */
static int choice_of(const char *variable, int default_value, const char *const *choices, int count, const char *expected) {
    const char *text = getenv(variable);
    if (text == NULL || *text == '\0') return default_value;
    for (int i = 0; i < count; i++) {
        if (strcmp(text, choices[i]) == 0) return i;
    }
    refuse(variable, text, expected);
}

#define CHOICE(name) \
    choice_of(MAYA_VARIABLE_##name, MAYA_DEFAULT_##name, (const char *const[]){MAYA_CHOICES_##name}, \
              sizeof((const char *const[]){MAYA_CHOICES_##name}) / sizeof(char *), MAYA_EXPECTED_##name)

static void read_text(const char *variable, char *text, size_t size) {
    const char *value = getenv(variable);
    if (value && strlen(value) >= size) refuse(variable, value, "a shorter text");
    snprintf(text, size, "%s", value ? value : "");
}

/* Calls set(to, key, value) with every item of "key=value;key=value". */
static void read_items(const char *variable, void *to, bool (*set)(void *to, const char *key, const char *value),
                       const char *expected) {
    const char *text = getenv(variable);
    if (text == NULL) return;
    char *copy = strdup(text), *rest = copy;
    for (char *item = strsep(&rest, ";"); item != NULL; item = strsep(&rest, ";")) {
        if (*item == '\0') continue;
        char *equals = strchr(item, '=');
        if (equals) *equals = '\0';
        if (!equals || !set(to, item, equals + 1)) refuse(variable, text, expected);
    }
    free(copy);
}

/* ---- the GPU ---- */

static bool set_property(void *properties, const char *key, const char *text) {
    maya_device_properties *device = properties;
    char *end;
    long long value = strtoll(text, &end, 10);
    bool is_number = *end == '\0' && value >= 0;
#define TEXT_PROPERTY(name) \
    if (strcmp(key, #name) == 0) { \
        snprintf(device->name, sizeof device->name, "%s", text); \
        return true; \
    }
#define NUMBER_PROPERTY(name) \
    if (strcmp(key, #name) == 0) { \
        if (is_number) device->name = (__typeof__(device->name))value; \
        return is_number; \
    }
    MAYA_FOR_EACH_PROPERTY(TEXT_PROPERTY, NUMBER_PROPERTY, NUMBER_PROPERTY)
    return false;
}

/* ---- the virtual clock ---- */

static bool set_cost(void *clock_costs, const char *key, const char *text) {
    maya_clock_costs *costs = clock_costs;
    uint64_t *cost = NULL;
#define COST(name) \
    if (strcmp(key, #name) == 0) cost = &costs->name;
#define CALL_COST(kind, name) \
    if (strcmp(key, name) == 0) cost = &costs->calls[kind];
    MAYA_FOR_EACH_COST(COST)
    MAYA_FOR_EACH_CALL_COST(CALL_COST)
    char *end;
    long long value = strtoll(text, &end, 10);
    if (cost == NULL || *text == '\0' || *end != '\0' || value < 0) return false;
    *cost = (uint64_t)value;
    return true;
}

/* The virtual clock needs the coordinator, which does not exist yet while the zygote tries and shares modules, and a trace. */
static void read_clock(void) {
    if (CHOICE(CLOCK) == MAYA_CLOCK_WALL) return;
    settings.virtual_clock = settings.coordinator[0] != '\0' && settings.trace_path[0] != '\0' && !settings.bare;
    read_items(MAYA_VARIABLE_CLOCK_COSTS, &settings.costs, set_cost, "op=4000;latency=3000;kernel=5000;...");
}

/* ---- all of them ---- */

/* "%r" in a trace path is the rank, "%p" the process id. */
static void expand_path(char *path, size_t size, const char *pattern, int rank) {
    size_t used = 0;
    for (; *pattern != '\0' && used + 16 < size; pattern++) {
        if (pattern[0] == '%' && (pattern[1] == 'r' || pattern[1] == 'p')) {
            used += (size_t)snprintf(path + used, size - used, "%d", pattern[1] == 'r' ? rank : (int)getpid());
            pattern++;
        } else {
            path[used++] = *pattern;
        }
    }
    path[used] = '\0';
}

static void read_trace_path(void) {
    const char *trace = getenv(MAYA_VARIABLE_TRACE);
    if (trace) expand_path(settings.trace_path, sizeof settings.trace_path, trace, settings.rank);
}

/* ranks_per_node: 0 means unknown. */
static void set_place(int rank, int world_size, int ranks_per_node) {
    settings.rank = rank;
    settings.world_size = world_size;
    if (settings.processes == 0) settings.processes = world_size;
    if (ranks_per_node == 0) ranks_per_node = settings.late_ranks ? settings.node_devices : 1;
    settings.ranks_per_node = ranks_per_node > 0 ? ranks_per_node : 1;
}

static void read_settings(void) {
    enum { LEAST_SMALL_BYTES = 64 << 10 };
    settings = (maya_settings){.device = MAYA_DEFAULT_DEVICE};
    settings.late_ranks = NUMBER(LATE_RANKS) != 0;
    int64_t count = NUMBER(GPUS);
    if (count > MAYA_MAX_DEVICES)
        refuse(MAYA_VARIABLE_GPUS, getenv(MAYA_VARIABLE_GPUS), "at most " TEXT_OF(MAYA_MAX_DEVICES) " devices");
    settings.node_devices = (int)count;
    settings.processes = (int)NUMBER(PRESENT_RANKS);
    if (settings.late_ranks) set_place(0, 0, 0); /* not known yet; launchers of others may set any variables */
    else set_place((int)number_of("RANK", 0), (int)number_of("WORLD_SIZE", 0), (int)number_of("LOCAL_WORLD_SIZE", count));
    read_items(MAYA_VARIABLE_GPU_PROPERTIES, &settings.device, set_property, "key=value;key=value");

    settings.compute = CHOICE(COMPUTE);
    settings.compute_bytes = NUMBER(COMPUTE_BYTES);
    settings.small_bytes = settings.compute_bytes > LEAST_SMALL_BYTES ? settings.compute_bytes : LEAST_SMALL_BYTES;
    settings.copy_bytes = NUMBER(COPY_BYTES);
    settings.host_tensors = CHOICE(HOST_TENSORS);
    settings.host_tensor_bytes = NUMBER(HOST_TENSOR_BYTES);
    settings.kept_bytes = NUMBER(KEPT_BYTES);
    settings.collective_bytes = NUMBER(COLLECTIVE_BYTES);
    settings.object_bytes = NUMBER(OBJECT_BYTES);
    if (settings.compute == MAYA_COMPUTE_ALL) {
        settings.compute_bytes = settings.small_bytes = INT64_MAX;
        settings.copy_bytes = settings.kept_bytes = settings.collective_bytes = INT64_MAX;
    }
    settings.observe_all = CHOICE(OBSERVE) == MAYA_OBSERVE_ALL;
    settings.strict_values = NUMBER(STRICT_VALUES) != 0;
    settings.moe_skew = NUMBER(MOE_SKEW);
    settings.moe_seed = NUMBER(MOE_SEED);
    settings.bare = NUMBER(BARE) != 0;
    settings.measure_host = NUMBER(MEASURE_HOST) != 0;
    settings.debug = (int)NUMBER(DEBUG);
    settings.stop_after = NUMBER(STOP_AFTER);
    settings.record_steps = NUMBER(RECORD_STEPS);
    settings.record_operations = NUMBER(RECORD_OPERATIONS);
    settings.schedule_seed = number_of(MAYA_VARIABLE_SCHEDULE_SEED, -1);
    read_trace_path();
    read_text(MAYA_VARIABLE_OBSERVER, settings.observer_path, sizeof settings.observer_path);
    read_text(MAYA_VARIABLE_COORDINATOR, settings.coordinator, sizeof settings.coordinator);
    read_text(MAYA_VARIABLE_COORDINATOR_SECRET, settings.coordinator_secret, sizeof settings.coordinator_secret);
    read_text(MAYA_VARIABLE_COORDINATOR_KEYS, settings.coordinator_keys, sizeof settings.coordinator_keys);
    read_text(MAYA_VARIABLE_ZMQ, settings.zmq_path, sizeof settings.zmq_path);
    read_clock();
}

const maya_settings *maya_read_settings(void) {
    pthread_mutex_lock(&settings_lock);
    if (!maya_known_settings) read_settings();
    __atomic_store_n(&maya_known_settings, &settings, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&settings_lock);
    return &settings;
}

void maya_settings_begin_late_rank(void) {
    maya_get_settings();
    pthread_mutex_lock(&settings_lock);
    read_trace_path(); /* settings may be inherited from a parent with another process id */
    pthread_mutex_unlock(&settings_lock);
}

void maya_settings_set_place(int rank, int world_size, int ranks_per_node) {
    maya_get_settings();
    pthread_mutex_lock(&settings_lock);
    settings.processes = 0;
    set_place(rank, world_size, ranks_per_node);
    pthread_mutex_unlock(&settings_lock);
}

void maya_settings_begin_rank(void) { __atomic_store_n(&maya_known_settings, NULL, __ATOMIC_RELEASE); }
