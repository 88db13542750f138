// Where in the user's Python code the calling thread is.
//
// Python's functions are looked up at run time, so that the observer links against no particular interpreter; all of them
// belong to the stable parts of its C interface since 3.9.

#include "source_line.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace maya {
namespace {

struct PyObject;

struct Python {
  int (*is_initialized)();
  int (*is_finalizing)();
  int (*gil_ensure)();
  void (*gil_release)(int);
  PyObject* (*current_frame)();              // borrowed
  PyObject* (*frame_back)(PyObject*);        // new reference
  PyObject* (*frame_code)(PyObject*);        // new reference
  int (*frame_line)(PyObject*);
  PyObject* (*get_attribute)(PyObject*, const char*);
  const char* (*as_text)(PyObject*);
  void (*retain)(PyObject*);
  void (*release)(PyObject*);
  void (*clear_error)();
  bool complete = true;

  template <typename Function>
  void find(Function& function, const char* name, const char* other_name = nullptr) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found == nullptr && other_name != nullptr) found = dlsym(RTLD_DEFAULT, other_name);
    function = reinterpret_cast<Function>(found);
    complete = complete && found != nullptr;
  }

  Python() {
    find(is_initialized, "Py_IsInitialized");
    find(is_finalizing, "Py_IsFinalizing", "_Py_IsFinalizing");
    find(gil_ensure, "PyGILState_Ensure");
    find(gil_release, "PyGILState_Release");
    find(current_frame, "PyEval_GetFrame");
    find(frame_back, "PyFrame_GetBack");
    find(frame_code, "PyFrame_GetCode");
    find(frame_line, "PyFrame_GetLineNumber");
    find(get_attribute, "PyObject_GetAttrString");
    find(as_text, "PyUnicode_AsUTF8");
    find(retain, "Py_IncRef");
    find(release, "Py_DecRef");
    find(clear_error, "PyErr_Clear");
  }
};

bool is_users(const char* file) {
  return std::strstr(file, "/torch/") == nullptr && std::strncmp(file, "<frozen", 7) != 0 &&
         std::strstr(file, "/contextlib.py") == nullptr;
}

// The first line of the user's from `frame` (a reference that is consumed) outwards.
void describe(const Python& python, PyObject* frame, char* line, size_t size) {
  while (frame != nullptr) {
    PyObject* code = python.frame_code(frame);
    PyObject* name = python.get_attribute(code, "co_filename");
    const char* file = name != nullptr ? python.as_text(name) : nullptr;
    const bool found = file != nullptr && is_users(file);
    if (found) {
      const int number = python.frame_line(frame);
      std::snprintf(line, size, "%.480s:%d", file, number);
    }
    if (name != nullptr) python.release(name);
    python.release(code);
    PyObject* outer = found ? nullptr : python.frame_back(frame);
    python.release(frame);
    frame = outer;
  }
  python.clear_error();
}

}  // namespace

void find_source_line(char* line, size_t size) {
  static const Python python;
  line[0] = '\0';
  if (!python.complete || !python.is_initialized() || python.is_finalizing()) return;
  const int state = python.gil_ensure();
  PyObject* frame = python.current_frame();
  if (frame != nullptr) python.retain(frame);
  describe(python, frame, line, size);
  python.gil_release(state);
  // the text goes into JSON
  for (char* c = line; *c != '\0'; c++) {
    if (*c == '"' || *c == '\\' || static_cast<unsigned char>(*c) < 0x20) *c = '?';
  }
}

}  // namespace maya
