/* The parameters of compiled kernels, by their types. */
#pragma once

enum {
    MAYA_PARAMETER_POINTER = 'p',    /* to memory that the kernel may write */
    MAYA_PARAMETER_INPUT = 'c',      /* to constant memory */
    MAYA_PARAMETER_ACCESSOR = 'a',   /* an object that begins with a pointer */
    MAYA_PARAMETER_TENSOR_MAP = 'm', /* a CUtensorMap */
    MAYA_PARAMETER_OTHER = '-',
};

/* One character for each parameter of the kernel with this mangled name, as a new text; "": not known. */
char *maya_parameter_kinds(const char *name);
