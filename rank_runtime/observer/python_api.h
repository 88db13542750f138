// The functions of CPython's C API that the observer calls.
//
// They are looked up at run time, so that the observer links against no particular interpreter; all of them belong to the
// stable parts of the API since Python 3.9.
#pragma once

#include <cstdint>

namespace maya {

struct PyObject;

struct Python {
  int (*is_initialized)();
  int (*is_finalizing)();
  void* (*thread_state)();  // of the calling thread; nullptr: it runs no Python
  int (*gil_ensure)();
  void (*gil_release)(int);
  PyObject* (*modules)();                         // sys.modules; borrowed
  PyObject* (*get_item)(PyObject*, const char*);  // of a dict; borrowed
  PyObject* (*current_frame)();                   // borrowed
  PyObject* (*error)();                           // the exception that is set; borrowed
  PyObject* (*frame_back)(PyObject*);             // a new reference, like the results of all functions below
  PyObject* (*frame_code)(PyObject*);
  int (*frame_line)(PyObject*);
  int (*frame_instruction)(PyObject*);  // a position in the bytecode
  PyObject* (*get_attribute)(PyObject*, const char*);
  PyObject* (*get_key)(PyObject*, const char*);
  PyObject* (*get_element)(PyObject*, long);
  const char* (*as_text)(PyObject*);
  unsigned long long (*as_unsigned)(PyObject*);
  void (*retain)(PyObject*);
  void (*release)(PyObject*);
  void (*clear_error)();
  void (*set_error)(PyObject*);                       // an exception type
  void (*set_error_text)(PyObject*, const char*);     // the same with a message
  int (*add_pending_call)(int (*)(void*), void*);     // to the main thread; not 0: too many are pending
  PyObject** system_exit;                             // SystemExit
  PyObject** runtime_error;                           // RuntimeError
  PyObject* object_type;             // object
  PyObject* method_descriptor_type;  // type(str.join)

  // Whether the interpreter is initialized and not finalizing.
  bool usable() const;
  // An attribute as an unsigned integer; 0 if the object has no such attribute. Call with the GIL held.
  uint64_t unsigned_attribute(PyObject* owner, const char* name) const;
  // Calls visit(frame, file) for the calling thread's frames, innermost first, until one returns true. Holds the GIL
  // meanwhile; exceptions that visit sets are cleared.
  template <typename Visit>
  void visit_frames(const Visit& visit) const;

  static const Python& get();

 private:
  Python();
  bool complete_ = true;
};

template <typename Visit>
void Python::visit_frames(const Visit& visit) const {
  const int state = gil_ensure();
  PyObject* frame = current_frame();
  if (frame != nullptr) retain(frame);
  while (frame != nullptr) {
    PyObject* code = frame_code(frame);
    PyObject* name = get_attribute(code, "co_filename");
    const char* file = name != nullptr ? as_text(name) : nullptr;
    const bool found = file != nullptr && visit(frame, file);
    if (name != nullptr) release(name);
    release(code);
    PyObject* outer = found ? nullptr : frame_back(frame);
    release(frame);
    frame = outer;
  }
  clear_error();
  gil_release(state);
}

}  // namespace maya
