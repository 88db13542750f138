// Python's functions, looked up once.

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
  complete_ = find(is_initialized, "Py_IsInitialized") && find(is_finalizing, "Py_IsFinalizing", "_Py_IsFinalizing") &&
              find(gil_ensure, "PyGILState_Ensure") && find(gil_release, "PyGILState_Release") &&
              find(current_frame, "PyEval_GetFrame") && find(frame_back, "PyFrame_GetBack") &&
              find(frame_code, "PyFrame_GetCode") && find(frame_line, "PyFrame_GetLineNumber") &&
              find(get_attribute, "PyObject_GetAttrString") && find(get_key, "PyMapping_GetItemString") &&
              find(get_element, "PySequence_GetItem") && find(as_text, "PyUnicode_AsUTF8") && find(retain, "Py_IncRef") &&
              find(release, "Py_DecRef") && find(clear_error, "PyErr_Clear");
}

bool Python::usable() const { return complete_ && is_initialized() && !is_finalizing(); }

const Python& Python::get() {
  static const Python python;
  return python;
}

}  // namespace maya
