// A kernel that is launched through the driver gets addresses; how much memory lies behind one is known to its tensor only.
// Launchers written in or for Python (Triton's, Inductor's, CuPy's) ask each tensor for its address by Tensor.data_ptr() right
// before the launch.
//
// In: calls of Tensor.data_ptr, whose C function ours takes the place of in the table from which torch made the method. Out:
// the address and the tensor's bytes for the thread's next launch (shim/device/extents.c). As in source_line.cpp, Python's
// functions are looked up at run time. Of its structures two are used, PyMethodDef and PyMethodDescrObject, which have not
// changed since Python 3.0; what is found in them is checked.

#include "data_pointer.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../shim/device/internal.h"

namespace maya {
namespace data_pointers {
namespace {

struct PyObject;

using Function = PyObject* (*)(PyObject * self, PyObject* arguments);

struct PyMethodDef {
  const char* name;
  Function function;
  int flags;
  const char* documentation;
};

struct Python {
  int (*is_initialized)();
  int (*gil_ensure)();
  void (*gil_release)(int);
  PyObject* (*modules)();                              // borrowed
  PyObject* (*get_item)(PyObject*, const char*);       // borrowed
  PyObject* (*get_attribute)(PyObject*, const char*);  // new reference
  unsigned long long (*as_unsigned)(PyObject*);
  void (*release)(PyObject*);
  PyObject* (*error)();  // borrowed
  void (*clear_error)();
  PyObject* object_type;
  PyObject* descriptor_type;
  bool complete = true;

  template <typename Found>
  void find(Found& found, const char* name) {
    void* symbol = dlsym(RTLD_DEFAULT, name);
    found = reinterpret_cast<Found>(symbol);
    complete = complete && symbol != nullptr;
  }

  Python() {
    find(is_initialized, "Py_IsInitialized");
    find(gil_ensure, "PyGILState_Ensure");
    find(gil_release, "PyGILState_Release");
    find(modules, "PyImport_GetModuleDict");
    find(get_item, "PyDict_GetItemString");
    find(get_attribute, "PyObject_GetAttrString");
    find(as_unsigned, "PyLong_AsUnsignedLongLong");
    find(release, "Py_DecRef");
    find(error, "PyErr_Occurred");
    find(clear_error, "PyErr_Clear");
    find(object_type, "PyBaseObject_Type");
    find(descriptor_type, "PyMethodDescr_Type");
  }

  // An attribute that is a number; 0 if it cannot be had.
  uint64_t number(PyObject* owner, const char* name) const {
    PyObject* value = get_attribute(owner, name);
    uint64_t found = value != nullptr ? as_unsigned(value) : 0;
    if (error() != nullptr) {
      clear_error();
      found = 0;
    }
    if (value != nullptr) release(value);
    return found;
  }
};

const Python& python() {
  static const Python found;
  return found;
}

Function real_data_ptr = nullptr;

PyObject* data_ptr(PyObject* self, PyObject* arguments) {
  const uint32_t notes = maya_noted_pointers();
  PyObject* result = real_data_ptr(self, arguments);
  // A subclass with __torch_function__ has come here once more meanwhile, with the tensor whose address it is.
  if (result == nullptr || maya_noted_pointers() != notes) return result;
  MAYA_OWN_TIME;
  const uint64_t address = python().as_unsigned(result);
  if (python().error() != nullptr) {  // some subclass returns something else
    python().clear_error();
    return result;
  }
  if (address == 0 || maya_address_device(reinterpret_cast<const void*>(address)) < 0) return result;
  maya_note_pointer(reinterpret_cast<const void*>(address), python().number(self, "nbytes"));
  return result;
}

// Where torch's table says what Tensor.data_ptr is; nullptr if this is not how Python keeps it.
PyMethodDef* definition_of(PyObject* descriptor) {
  // object's size is that of the header; then come type, name and qualified name, each a pointer, and the definition.
  const uint64_t header = python().number(python().object_type, "__basicsize__");
  PyObject* type = python().get_attribute(descriptor, "__class__");
  const bool is_method = type == python().descriptor_type;
  if (type != nullptr) python().release(type);
  if (!is_method || header == 0) return nullptr;
  constexpr int kNoArguments = 4;
  auto* definition = *reinterpret_cast<PyMethodDef**>(reinterpret_cast<char*>(descriptor) + header + 3 * sizeof(void*));
  return definition->flags == kNoArguments && std::strcmp(definition->name, "data_ptr") == 0 ? definition : nullptr;
}

void take_place() {
  PyObject* module = python().get_item(python().modules(), "torch._C");
  PyObject* type = module != nullptr ? python().get_attribute(module, "TensorBase") : nullptr;
  PyObject* descriptor = type != nullptr ? python().get_attribute(type, "data_ptr") : nullptr;
  if (PyMethodDef* definition = descriptor != nullptr ? definition_of(descriptor) : nullptr;
      definition != nullptr && definition->function != data_ptr) {
    real_data_ptr = definition->function;
    definition->function = data_ptr;
  }
  if (descriptor != nullptr) python().release(descriptor);
  if (type != nullptr) python().release(type);
  if (python().error() != nullptr) python().clear_error();
}

}  // namespace
}  // namespace data_pointers

void watch_data_pointers() {
  const data_pointers::Python& python = data_pointers::python();
  if (!python.complete || python.is_initialized() == 0) return;
  const int state = python.gil_ensure();
  data_pointers::take_place();
  python.gil_release(state);
}

}  // namespace maya
