/* cuRAND's host interface, for programs other than torch: torch draws random numbers in its own kernels and only loads
 * this library.
 *
 * In: count and distribution. Out: one record per call; the numbers are placeholders, like all results of kernels.
 */
#include "cublas_types.h"

/* curandStatus_t */
enum {
    CURAND_SUCCESS = 0,
    CURAND_NOT_INITIALIZED = 101,
    CURAND_ALLOCATION_FAILED = 102,
    CURAND_TYPE_ERROR = 103,
    CURAND_OUT_OF_RANGE = 104,
    CURAND_LENGTH_NOT_MULTIPLE = 105,
    CURAND_LAUNCH_FAILURE = 201,
};

enum { FIRST_PSEUDO = 100, FIRST_QUASI = 200, LAST_GENERATOR = 204 };

typedef struct {
    int type;
    void *stream;
    unsigned long long seed, offset;
} random_generator;

MAYA_API int curandCreateGenerator(random_generator **generator, int type) {
    if (generator == NULL) return CURAND_OUT_OF_RANGE;
    if (type < FIRST_PSEUDO || type > LAST_GENERATOR) return CURAND_TYPE_ERROR;
    *generator = calloc(1, sizeof **generator);
    if (*generator == NULL) return CURAND_ALLOCATION_FAILED;
    (*generator)->type = type;
    return CURAND_SUCCESS;
}

MAYA_API int curandDestroyGenerator(random_generator *generator) {
    if (generator == NULL) return CURAND_NOT_INITIALIZED;
    free(generator);
    return CURAND_SUCCESS;
}

/* cuRAND stays at major version 10. */

MAYA_API int curandGetVersion(int *version) {
    if (version == NULL) return CURAND_OUT_OF_RANGE;
    *version = 10300;
    return CURAND_SUCCESS;
}

MAYA_API int curandGetProperty(int property, int *value) {
    return library_property(property, 10, 3, value) ? CURAND_SUCCESS : CURAND_OUT_OF_RANGE;
}

MAYA_API int curandSetStream(random_generator *generator, void *stream) {
    if (generator == NULL) return CURAND_NOT_INITIALIZED;
    generator->stream = stream;
    return CURAND_SUCCESS;
}

MAYA_API int curandSetPseudoRandomGeneratorSeed(random_generator *generator, unsigned long long seed) {
    if (generator == NULL) return CURAND_NOT_INITIALIZED;
    if (generator->type >= FIRST_QUASI) return CURAND_TYPE_ERROR;
    generator->seed = seed;
    return CURAND_SUCCESS;
}

MAYA_API int curandSetGeneratorOffset(random_generator *generator, unsigned long long offset) {
    if (generator == NULL) return CURAND_NOT_INITIALIZED;
    generator->offset = offset;
    return CURAND_SUCCESS;
}

/* ---- drawing ---- */

typedef struct {
    void *output;
    size_t bytes;
} drawn_numbers;

static void run_draw(void *argument) {
    const drawn_numbers *drawn = argument;
    maya_values_set_placeholder(drawn->output, drawn->bytes);
}

static int draw(random_generator *generator, const char *call, const char *type, size_t size, void *output, size_t count) {
    if (generator == NULL) return CURAND_NOT_INITIALIZED;
    if (count == 0) return CURAND_SUCCESS;
    if (output == NULL) return CURAND_OUT_OF_RANGE;
    if (maya_library_call(generator->stream, "{\"call\":\"%s\",\"n\":%zu,\"type\":\"%s\"}", call, count, type) != 0)
        return CURAND_LAUNCH_FAILURE;
    drawn_numbers *drawn = malloc(sizeof *drawn);
    if (drawn == NULL) return CURAND_ALLOCATION_FAILED;
    *drawn = (drawn_numbers){output, count * size};
    generator->offset += count;
    int error = maya_submit(
        generator->stream,
        &(maya_command){.run = run_draw, .release = free, .argument = drawn, .kind = MAYA_RECORD_LIBRARY, .unrecorded = true});
    return error == 0 ? CURAND_SUCCESS : CURAND_LAUNCH_FAILURE;
}

/* Pseudorandom normal numbers come in pairs. */
static int draw_normal(random_generator *generator, const char *call, const char *type, size_t size, void *output,
                       size_t count) {
    if (generator != NULL && generator->type < FIRST_QUASI && count % 2 != 0) return CURAND_LENGTH_NOT_MULTIPLE;
    return draw(generator, call, type, size, output, count);
}

MAYA_API int curandGenerate(random_generator *generator, unsigned *output, size_t count) {
    return draw(generator, "curandGenerate", "int32", sizeof *output, output, count);
}

MAYA_API int curandGenerateLongLong(random_generator *generator, unsigned long long *output, size_t count) {
    return draw(generator, "curandGenerateLongLong", "int64", sizeof *output, output, count);
}

MAYA_API int curandGenerateUniform(random_generator *generator, float *output, size_t count) {
    return draw(generator, "curandGenerateUniform", "fp32", sizeof *output, output, count);
}

MAYA_API int curandGenerateUniformDouble(random_generator *generator, double *output, size_t count) {
    return draw(generator, "curandGenerateUniformDouble", "fp64", sizeof *output, output, count);
}

MAYA_API int curandGenerateNormal(random_generator *generator, float *output, size_t count, float mean, float deviation) {
    return draw_normal(generator, "curandGenerateNormal", "fp32", sizeof *output, output, count);
}

MAYA_API int curandGenerateNormalDouble(random_generator *generator, double *output, size_t count, double mean,
                                        double deviation) {
    return draw_normal(generator, "curandGenerateNormalDouble", "fp64", sizeof *output, output, count);
}
