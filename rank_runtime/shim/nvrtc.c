/* libnvrtc: CUDA C++ source in, an image for cuModuleLoadData out.
 *
 * The source is not compiled, because kernels do not compute: syntax errors are not found. The image is a text that
 * begins with "maya nvrtc image" and lists the kernels that it stands for, one per line: the __global__ functions of the
 * source and the lowered names of the name expressions. PTX and CUBIN are the same text. The module loader accepts any
 * kernel name, so a launch is recorded under the name the program asks for.
 *
 * A lowered name has the form of a mangled one, so that tools demangle it to something readable: foo<float, 4> becomes
 * _Z23foo_float__4__1a2b3c4dv. The hash distinguishes expressions that differ only in punctuation. In a source with
 * extern "C" a plain name stays unchanged. */

#include "device/device.h"
#include "device/vector.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

typedef enum {
    NVRTC_SUCCESS = 0,
    NVRTC_OUT_OF_MEMORY = 1,
    NVRTC_INVALID_INPUT = 3,
    NVRTC_INVALID_PROGRAM = 4,
    NVRTC_NAME_AFTER_COMPILATION = 8,
    NVRTC_NAME_BEFORE_COMPILATION = 9,
    NVRTC_NAME_NOT_VALID = 10,
} nvrtc_result;

typedef struct {
    char *expression, *lowered;
} nvrtc_name;

typedef struct {
    char *source;
    MAYA_VECTOR(nvrtc_name) names;
    char *image; /* NULL: not compiled yet */
    size_t image_size;
} nvrtc_program;

MAYA_API const char *nvrtcGetErrorString(nvrtc_result result) {
    static const char *const texts[] = {
        "NVRTC_SUCCESS",
        "NVRTC_ERROR_OUT_OF_MEMORY",
        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        "NVRTC_ERROR_INVALID_INPUT",
        "NVRTC_ERROR_INVALID_PROGRAM",
        "NVRTC_ERROR_INVALID_OPTION",
        "NVRTC_ERROR_COMPILATION",
        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
        "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
        "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        "NVRTC_ERROR_INTERNAL_ERROR",
    };
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "NVRTC_ERROR unknown";
}

MAYA_API nvrtc_result nvrtcVersion(int *major, int *minor) {
    if (major == NULL || minor == NULL) return NVRTC_INVALID_INPUT;
    *major = MAYA_CUDA_VERSION / 1000;
    *minor = MAYA_CUDA_VERSION % 1000 / 10;
    return NVRTC_SUCCESS;
}

static const int architectures[] = {75, 80, 86, 87, 89, 90, 100, 120};

MAYA_API nvrtc_result nvrtcGetNumSupportedArchs(int *count) {
    if (count == NULL) return NVRTC_INVALID_INPUT;
    *count = sizeof architectures / sizeof *architectures;
    return NVRTC_SUCCESS;
}

MAYA_API nvrtc_result nvrtcGetSupportedArchs(int *supported) {
    if (supported == NULL) return NVRTC_INVALID_INPUT;
    memcpy(supported, architectures, sizeof architectures);
    return NVRTC_SUCCESS;
}

/* ---- programs ---- */

MAYA_API nvrtc_result nvrtcCreateProgram(nvrtc_program **created, const char *source, const char *file_name, int header_count,
                                         const char *const *headers, const char *const *include_names) {
    (void)file_name, (void)headers, (void)include_names;
    if (created == NULL || source == NULL || header_count < 0) return NVRTC_INVALID_INPUT;
    nvrtc_program *made = calloc(1, sizeof *made);
    char *copy = strdup(source);
    if (made == NULL || copy == NULL) {
        free(made);
        free(copy);
        return NVRTC_OUT_OF_MEMORY;
    }
    made->source = copy;
    *created = made;
    return NVRTC_SUCCESS;
}

MAYA_API nvrtc_result nvrtcDestroyProgram(nvrtc_program **destroyed) {
    if (destroyed == NULL || *destroyed == NULL) return NVRTC_INVALID_PROGRAM;
    nvrtc_program *old = *destroyed;
    for (size_t i = 0; i < old->names.count; i++) {
        free(old->names.items[i].expression);
        free(old->names.items[i].lowered);
    }
    maya_vector_clear(&old->names);
    free(old->source);
    free(old->image);
    free(old);
    *destroyed = NULL;
    return NVRTC_SUCCESS;
}

/* ---- names ---- */

static char *lower(const char *source, const char *expression) {
    while (*expression == '&' || isspace((unsigned char)*expression)) expression++;
    size_t length = strlen(expression);
    char *plain = malloc(length + 10), *lowered = malloc(length + 40);
    bool changed = false;
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; plain != NULL && i < length; i++) {
        unsigned char character = (unsigned char)expression[i];
        bool ordinary = isalnum(character) || character == '_';
        plain[i] = ordinary ? (char)character : '_';
        changed = changed || !ordinary;
        hash = (hash ^ character) * 16777619u;
    }
    if (plain != NULL && lowered != NULL) {
        plain[length] = '\0';
        if (changed) snprintf(plain + length, 10, "_%08x", hash);
        bool unmangled = !changed && strstr(source, "extern \"C\"") != NULL;
        if (unmangled) strcpy(lowered, plain);
        else snprintf(lowered, length + 40, "_Z%zu%sv", strlen(plain), plain);
    }
    free(plain);
    return lowered;
}

MAYA_API nvrtc_result nvrtcAddNameExpression(nvrtc_program *program, const char *expression) {
    if (program == NULL) return NVRTC_INVALID_PROGRAM;
    if (expression == NULL) return NVRTC_INVALID_INPUT;
    if (program->image != NULL) return NVRTC_NAME_AFTER_COMPILATION;
    nvrtc_name added = {.expression = strdup(expression), .lowered = lower(program->source, expression)};
    if (added.expression == NULL || added.lowered == NULL) {
        free(added.expression);
        free(added.lowered);
        return NVRTC_OUT_OF_MEMORY;
    }
    *maya_vector_add(&program->names) = added;
    return NVRTC_SUCCESS;
}

MAYA_API nvrtc_result nvrtcGetLoweredName(nvrtc_program *program, const char *expression, const char **lowered) {
    if (program == NULL) return NVRTC_INVALID_PROGRAM;
    if (expression == NULL || lowered == NULL) return NVRTC_INVALID_INPUT;
    if (program->image == NULL) return NVRTC_NAME_BEFORE_COMPILATION;
    for (size_t i = 0; i < program->names.count; i++) {
        if (strcmp(program->names.items[i].expression, expression) != 0) continue;
        *lowered = program->names.items[i].lowered;
        return NVRTC_SUCCESS;
    }
    return NVRTC_NAME_NOT_VALID;
}

/* ---- "compilation" ---- */

/* The names of the __global__ functions in a source: the last word before the parameter list. Attributes such as
 * __launch_bounds__(256) have a list of their own and are skipped. */
static void list_kernels(const char *source, FILE *image) {
    static const char marker[] = "__global__";
    for (const char *at = strstr(source, marker); at != NULL; at = strstr(at, marker)) {
        at += sizeof marker - 1;
        const char *word = NULL;
        size_t length = 0;
        while (*at != '\0' && *at != ';' && *at != '{') {
            if (isalpha((unsigned char)*at) || *at == '_') {
                word = at;
                while (isalnum((unsigned char)*at) || *at == '_') at++;
                length = (size_t)(at - word);
            } else if (*at == '(' && length > 2 && strncmp(word, "__", 2) == 0) {
                at += strcspn(at, ")");
            } else if (*at == '(') {
                if (word != NULL) fprintf(image, "kernel %.*s\n", (int)length, word);
                break;
            } else {
                at++;
            }
        }
    }
}

MAYA_API nvrtc_result nvrtcCompileProgram(nvrtc_program *program, int option_count, const char *const *options) {
    if (program == NULL) return NVRTC_INVALID_PROGRAM;
    if (option_count < 0 || (option_count > 0 && options == NULL)) return NVRTC_INVALID_INPUT;
    free(program->image);
    program->image = NULL;
    FILE *image = open_memstream(&program->image, &program->image_size);
    if (image == NULL) return NVRTC_OUT_OF_MEMORY;
    fprintf(image, "maya nvrtc image\n");
    list_kernels(program->source, image);
    for (size_t i = 0; i < program->names.count; i++) fprintf(image, "kernel %s\n", program->names.items[i].lowered);
    fclose(image);
    program->image_size++; /* with the terminating zero, as PTX has it */
    return NVRTC_SUCCESS;
}

static nvrtc_result get_image_size(const nvrtc_program *program, size_t *size) {
    if (program == NULL || program->image == NULL) return NVRTC_INVALID_PROGRAM;
    if (size == NULL) return NVRTC_INVALID_INPUT;
    *size = program->image_size;
    return NVRTC_SUCCESS;
}

static nvrtc_result get_image(const nvrtc_program *program, char *image) {
    if (program == NULL || program->image == NULL) return NVRTC_INVALID_PROGRAM;
    if (image == NULL) return NVRTC_INVALID_INPUT;
    memcpy(image, program->image, program->image_size);
    return NVRTC_SUCCESS;
}

MAYA_API nvrtc_result nvrtcGetPTXSize(nvrtc_program *program, size_t *size) { return get_image_size(program, size); }

MAYA_API nvrtc_result nvrtcGetPTX(nvrtc_program *program, char *image) { return get_image(program, image); }

MAYA_API nvrtc_result nvrtcGetCUBINSize(nvrtc_program *program, size_t *size) { return get_image_size(program, size); }

MAYA_API nvrtc_result nvrtcGetCUBIN(nvrtc_program *program, char *image) { return get_image(program, image); }

/* The log is always the empty string. */
MAYA_API nvrtc_result nvrtcGetProgramLogSize(nvrtc_program *program, size_t *size) {
    if (program == NULL) return NVRTC_INVALID_PROGRAM;
    if (size == NULL) return NVRTC_INVALID_INPUT;
    *size = 1;
    return NVRTC_SUCCESS;
}

MAYA_API nvrtc_result nvrtcGetProgramLog(nvrtc_program *program, char *log) {
    if (program == NULL) return NVRTC_INVALID_PROGRAM;
    if (log == NULL) return NVRTC_INVALID_INPUT;
    *log = '\0';
    return NVRTC_SUCCESS;
}
