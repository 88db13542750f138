// Methods in C: from their descriptor to their definition.

#include "python_methods.h"

#include <cstdint>
#include <cstring>

namespace maya {
namespace {

struct PyMethodDef {
  const char* name;
  void* function;
  int flags;
  const char* documentation;
};

constexpr int kArgumentsAndKeywords = 3, kNoArguments = 4, kOneArgument = 8;  // METH_VARARGS | METH_KEYWORDS, ...

// nullptr if this Python lays out method descriptors differently.
PyMethodDef* definition_of(const Python& python, PyObject* descriptor, const char* name, int flags) {
  // A PyMethodDescrObject is the object header (as large as `object`), three pointers (type, name, qualified name), and then
  // the pointer to the definition.
  const uint64_t header = python.unsigned_attribute(python.object_type, "__basicsize__");
  PyObject* type = python.get_attribute(descriptor, "__class__");
  const bool is_method = type == python.method_descriptor_type;
  if (type != nullptr) python.release(type);
  if (!is_method || header == 0) return nullptr;
  auto* definition = *reinterpret_cast<PyMethodDef**>(reinterpret_cast<char*>(descriptor) + header + 3 * sizeof(void*));
  return definition->flags == flags && std::strcmp(definition->name, name) == 0 ? definition : nullptr;
}

void* replace(const Python& python, PyObject* type, const char* name, int flags, void* by) {
  void* real = nullptr;
  PyObject* descriptor = python.get_attribute(type, name);
  PyMethodDef* definition = descriptor != nullptr ? definition_of(python, descriptor, name, flags) : nullptr;
  if (definition != nullptr && definition->function != by) {
    real = definition->function;
    definition->function = by;
  }
  if (descriptor != nullptr) python.release(descriptor);
  if (python.error() != nullptr) python.clear_error();
  return real;
}

}  // namespace

Method replace_method(const Python& python, PyObject* type, const char* name, Method by) {
  return reinterpret_cast<Method>(replace(python, type, name, kNoArguments, reinterpret_cast<void*>(by)));
}

Method replace_method_of_one(const Python& python, PyObject* type, const char* name, Method by) {
  return reinterpret_cast<Method>(replace(python, type, name, kOneArgument, reinterpret_cast<void*>(by)));
}

KeywordMethod replace_method(const Python& python, PyObject* type, const char* name, KeywordMethod by) {
  return reinterpret_cast<KeywordMethod>(replace(python, type, name, kArgumentsAndKeywords, reinterpret_cast<void*>(by)));
}

PyObject* tensor_type(const Python& python) {
  PyObject* module = python.get_item(python.modules(), "torch._C");
  PyObject* type = module != nullptr ? python.get_attribute(module, "TensorBase") : nullptr;
  if (python.error() != nullptr) python.clear_error();
  return type;
}

}  // namespace maya
