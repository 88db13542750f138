// Tensor.data_ptr, wrapped. A kernel that is launched through the driver receives addresses only; the size of the memory
// behind an address is known to its tensor. Launchers written in or for Python (Triton's, Inductor's, CuPy's) call
// Tensor.data_ptr() on each tensor right before the launch.
//
// In: calls of Tensor.data_ptr. Out: the address and the tensor's bytes, for the thread's next launch (shim/device/extents.c).
// Where Python is laid out differently (python_methods.h), Tensor.data_ptr stays as it is.

#include "data_pointer.h"

#include <cstdint>

#include "../shim/device/internal.h"
#include "python_methods.h"

namespace maya {
namespace {

Method real_data_ptr = nullptr;

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

}  // namespace

void watch_data_pointers() {
  const Python& python = Python::get();
  if (!python.usable()) return;
  const int state = python.gil_ensure();
  if (PyObject* type = tensor_type(python)) {
    if (Method real = replace_method(python, type, "data_ptr", data_ptr)) real_data_ptr = real;
    python.release(type);
  }
  python.gil_release(state);
}

}  // namespace maya
