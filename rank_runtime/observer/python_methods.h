// Methods that torch wrote in C, replaced in the PyMethodDef that torch made them from.
//
// The code relies on the layout of two CPython structures, PyMethodDef and PyMethodDescrObject, which have not changed since
// Python 3.0, and checks the fields that it reads.
#pragma once

#include "python_api.h"

namespace maya {

using Method = PyObject* (*)(PyObject* self, PyObject* arguments);                          // METH_NOARGS, METH_O
using KeywordMethod = PyObject* (*)(PyObject* self, PyObject* arguments, PyObject* names);  // METH_VARARGS | METH_KEYWORDS

// Replaces the method `name` of `type` and returns the real function; nullptr if it is not there, takes other arguments, or is
// replaced already. Call with the GIL held.
Method replace_method(const Python& python, PyObject* type, const char* name, Method by);
Method replace_method_of_one(const Python& python, PyObject* type, const char* name, Method by);
KeywordMethod replace_method(const Python& python, PyObject* type, const char* name, KeywordMethod by);

// torch._C.TensorBase, a new reference; nullptr: torch is not imported.
PyObject* tensor_type(const Python& python);

}  // namespace maya
