// Tensor.data_ptr, wrapped. A kernel that is launched through the driver receives addresses only; the size of the memory
// behind an address is known to its tensor. Launchers written in or for Python (Triton's, Inductor's, CuPy's) call
// Tensor.data_ptr() on each tensor right before the launch.
//
// In: calls of Tensor.data_ptr, whose C function ours replaces in the PyMethodDef that torch made the method from. Out: the
// address and the tensor's bytes, for the thread's next launch (shim/device/extents.c). The code relies on the layout of two
// CPython structures, PyMethodDef and PyMethodDescrObject, which have not changed since Python 3.0, and checks the fields that
// it reads; where they differ, Tensor.data_ptr stays as it is.

#include "data_pointer.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../shim/device/internal.h"
#include "python_api.h"

namespace maya {
namespace {

using Function = PyObject* (*)(PyObject * self, PyObject* arguments);

struct PyMethodDef {
  const char* name;
  Function function;
  int flags;
  const char* documentation;
};

Function real_data_ptr = nullptr;

PyObject* data_ptr(PyObject* self, PyObject* arguments) {
  const uint32_t notes = maya_noted_pointers();
  PyObject* result = real_data_ptr(self, arguments);
  // For a subclass with __torch_function__, torch has called this function again meanwhile, with the inner tensor.
  if (result == nullptr || maya_noted_pointers() != notes) return result;
  MAYA_OWN_TIME;
  const Python& python = Python::get();
  const uint64_t address = python.as_unsigned(result);
  if (python.error() != nullptr) {  // a subclass may return something other than an integer
    python.clear_error();
    return result;
  }
  if (address == 0 || maya_address_device(reinterpret_cast<const void*>(address)) < 0) return result;
  maya_note_pointer(reinterpret_cast<const void*>(address), python.unsigned_attribute(self, "nbytes"));
  return result;
}

// The table entry behind Tensor.data_ptr; nullptr if this Python lays out method descriptors differently.
PyMethodDef* definition_of(const Python& python, PyObject* descriptor) {
  // A PyMethodDescrObject is the object header (as large as `object`), three pointers (type, name, qualified name), and then
  // the pointer to the definition.
  const uint64_t header = python.unsigned_attribute(python.object_type, "__basicsize__");
  PyObject* type = python.get_attribute(descriptor, "__class__");
  const bool is_method = type == python.method_descriptor_type;
  if (type != nullptr) python.release(type);
  if (!is_method || header == 0) return nullptr;
  constexpr int kNoArguments = 4;  // METH_NOARGS
  auto* definition = *reinterpret_cast<PyMethodDef**>(reinterpret_cast<char*>(descriptor) + header + 3 * sizeof(void*));
  return definition->flags == kNoArguments && std::strcmp(definition->name, "data_ptr") == 0 ? definition : nullptr;
}

void replace_data_ptr(const Python& python) {
  PyObject* module = python.get_item(python.modules(), "torch._C");
  PyObject* type = module != nullptr ? python.get_attribute(module, "TensorBase") : nullptr;
  PyObject* descriptor = type != nullptr ? python.get_attribute(type, "data_ptr") : nullptr;
  if (PyMethodDef* definition = descriptor != nullptr ? definition_of(python, descriptor) : nullptr;
      definition != nullptr && definition->function != data_ptr) {
    real_data_ptr = definition->function;
    definition->function = data_ptr;
  }
  if (descriptor != nullptr) python.release(descriptor);
  if (type != nullptr) python.release(type);
  if (python.error() != nullptr) python.clear_error();
}

}  // namespace

void watch_data_pointers() {
  const Python& python = Python::get();
  if (!python.usable()) return;
  const int state = python.gil_ensure();
  replace_data_ptr(python);
  python.gil_release(state);
}

}  // namespace maya
