// CPython's C API, looked up once.

#include "python_api.h"

#include <dlfcn.h>

namespace maya {
namespace {

template <typename Function>
bool find(Function& function, const char* name, const char* other_name = nullptr) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr && other_name != nullptr) found = dlsym(RTLD_DEFAULT, other_name);
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

}  // namespace

Python::Python() {
  complete_ =
      find(is_initialized, "Py_IsInitialized") && find(is_finalizing, "Py_IsFinalizing", "_Py_IsFinalizing") &&
      find(thread_state, "PyGILState_GetThisThreadState") && find(gil_ensure, "PyGILState_Ensure") &&
      find(gil_release, "PyGILState_Release") && find(modules, "PyImport_GetModuleDict") &&
      find(get_item, "PyDict_GetItemString") && find(current_frame, "PyEval_GetFrame") && find(error, "PyErr_Occurred") &&
      find(frame_back, "PyFrame_GetBack") && find(frame_code, "PyFrame_GetCode") && find(frame_line, "PyFrame_GetLineNumber") &&
      find(frame_instruction, "PyFrame_GetLasti", "PyFrame_GetLineNumber") && find(get_attribute, "PyObject_GetAttrString") &&
      find(get_key, "PyMapping_GetItemString") && find(get_element, "PySequence_GetItem") &&
      find(as_text, "PyUnicode_AsUTF8") && find(as_unsigned, "PyLong_AsUnsignedLongLong") && find(retain, "Py_IncRef") &&
      find(release, "Py_DecRef") && find(clear_error, "PyErr_Clear") && find(set_error, "PyErr_SetNone") &&
      find(set_error_text, "PyErr_SetString") && find(add_pending_call, "Py_AddPendingCall") &&
      find(system_exit, "PyExc_SystemExit") && find(runtime_error, "PyExc_RuntimeError") &&
      find(object_type, "PyBaseObject_Type") && find(method_descriptor_type, "PyMethodDescr_Type");
}

bool Python::usable() const { return complete_ && is_initialized() && !is_finalizing(); }

uint64_t Python::unsigned_attribute(PyObject* owner, const char* name) const {
  PyObject* value = get_attribute(owner, name);
  uint64_t found = value != nullptr ? as_unsigned(value) : 0;
  if (error() != nullptr) {
    clear_error();
    found = 0;
  }
  if (value != nullptr) release(value);
  return found;
}

const Python& Python::get() {
  static const Python python;
  return python;
}

}  // namespace maya
