// What the observer asks of the Python interpreter around it.
//
// The functions are looked up at run time, so that the observer links against no particular interpreter; all of them belong to
// the stable parts of its C interface since 3.9.
#pragma once

namespace maya {

struct PyObject;

struct Python {
  int (*is_initialized)();
  int (*is_finalizing)();
  int (*gil_ensure)();
  void (*gil_release)(int);
  PyObject* (*current_frame)();        // borrowed
  PyObject* (*frame_back)(PyObject*);  // new reference, as of all that follow
  PyObject* (*frame_code)(PyObject*);
  int (*frame_line)(PyObject*);
  PyObject* (*get_attribute)(PyObject*, const char*);
  PyObject* (*get_key)(PyObject*, const char*);
  PyObject* (*get_element)(PyObject*, long);
  const char* (*as_text)(PyObject*);
  void (*retain)(PyObject*);
  void (*release)(PyObject*);
  void (*clear_error)();

  // Whether Python code runs in this process, and will for a while.
  bool usable() const;
  // Calls visit(frame, file) for the calling thread's frames, innermost first, until one returns true. Holds Python's lock
  // meanwhile; errors that visit causes are cleared.
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
