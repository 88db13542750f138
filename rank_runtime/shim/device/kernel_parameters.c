/* Which parameters of a compiled kernel are pointers, from its name: the mangled name of a C++ function contains the types of
 * its parameters.
 *
 * In: "_Z5scalePfPKfi". Out: "pci", one character for each parameter (kernel_parameters.h). A kernel with a name of C, or of
 * a type that cannot be read, has none. */

#define _GNU_SOURCE
#include "kernel_parameters.h"

#include "internal.h"
#include "vector.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef char *(*demangler)(const char *name, char *buffer, size_t *length, int *status);

/* The C++ library is in the process wherever compiled CUDA code is. */
static demangler find_demangler(void) {
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    return library ? (demangler)dlsym(library, "__cxa_demangle") : NULL;
}

/* Where the list of parameters begins, behind its bracket: the last bracket of a demangled function closes it. */
static const char *parameter_list(const char *text, const char **end) {
    const char *close = strrchr(text, ')');
    int depth = 0;
    for (const char *at = close; at && at >= text; at--) {
        depth += *at == ')' ? 1 : *at == '(' ? -1 : 0;
        if (depth > 0) continue;
        *end = close;
        return at + 1;
    }
    return NULL;
}

static bool is_word(const char *start, size_t length, const char *word) {
    return length == strlen(word) && memcmp(start, word, length) == 0;
}

/* "at::GenericPackedTensorAccessor<float, 1ul>": an object whose first member is the pointer. */
static bool is_accessor(const char *start, size_t length) {
    static const char name[] = "Accessor";
    const char *bracket = memchr(start, '<', length);
    if (bracket == NULL) return false;
    for (const char *at = start; at < bracket; at++) {
        if (strncmp(at, name, sizeof name - 1) == 0) return true;
    }
    return false;
}

static char kind_of(const char *start, size_t length) {
    while (length > 0 && start[length - 1] == ' ') length--;
    static const char constant[] = " const", pointer_to_constant[] = " const*";
    size_t bare = length;
    if (bare > sizeof constant && memcmp(start + bare - (sizeof constant - 1), constant, sizeof constant - 1) == 0) {
        bare -= sizeof constant - 1; /* the parameter itself is constant */
    }
    if (bare > 0 && start[bare - 1] == '*') {
        size_t tail = sizeof pointer_to_constant - 1;
        bool reads = bare > tail && memcmp(start + bare - tail, pointer_to_constant, tail) == 0;
        return reads ? MAYA_PARAMETER_INPUT : MAYA_PARAMETER_POINTER;
    }
    if (is_word(start, bare, "CUtensorMap") || is_word(start, bare, "CUtensorMap_st")) return MAYA_PARAMETER_TENSOR_MAP;
    return is_accessor(start, bare) ? MAYA_PARAMETER_ACCESSOR : MAYA_PARAMETER_OTHER;
}

static void read_kinds(const char *text, char *kinds) {
    const char *end, *start = parameter_list(text, &end);
    int depth = 0;
    size_t count = 0;
    if (start == NULL || start == end) return;
    for (const char *at = start; at <= end && count < MAYA_PARAMETERS; at++) {
        if (at == end || (*at == ',' && depth == 0)) {
            while (*start == ' ') start++;
            kinds[count++] = kind_of(start, (size_t)(at - start));
            start = at + 1;
        } else {
            depth += strchr("(<[{", *at) != NULL ? 1 : strchr(")>]}", *at) != NULL ? -1 : 0;
        }
    }
}

char *maya_parameter_kinds(const char *name) {
    char *kinds = must_alloc(calloc(MAYA_PARAMETERS + 1, 1));
    demangler demangle = strncmp(name, "_Z", 2) == 0 ? find_demangler() : NULL;
    int status = 0;
    char *text = demangle ? demangle(name, NULL, NULL, &status) : NULL;
    if (text) read_kinds(text, kinds);
    free(text);
    return kinds;
}
