// Methods of torch.Tensor that use the tensor without an op.
//
// In: calls of numpy() and tolist(), which read memory, and of new(), new_tensor() and isinstance(), which look for the
// tensor's backend among its dispatch keys and know only torch's own. Out: reads of placeholders are counted, or raise
// with --strict-values; the other methods see the tensor without the observer's key (host_tensors.cpp).

#include "host_reads.h"

#include <c10/core/TensorImpl.h>

#include <string>

#include "../shim/device/host_values.h"
#include "host_memory.h"
#include "python_methods.h"
#include "torch_private.h"

namespace maya {
namespace {

KeywordMethod real_numpy = nullptr, real_new_tensor = nullptr, real_new = nullptr;
Method real_tolist = nullptr, real_instancecheck = nullptr;

// The tensor behind a Python object; nullptr: there is none.
c10::TensorImpl* tensor_behind(PyObject* object) {
  return reinterpret_cast<c10::TensorImpl*>(Python::get().unsigned_attribute(object, "_cdata"));
}

// false: --strict-values makes the read an error, which is set.
bool count_read(PyObject* self, const char* name) {
  c10::TensorImpl* tensor = tensor_behind(self);
  if (tensor == nullptr || !tensor->key_set().has(kHostTensorKey)) return true;
  const HostMemory memory = memory_of(*tensor);
  if (!memory.has_placeholder() || !maya_host_report_read(name, memory.bytes)) return true;
  const std::string text = std::string("--strict-values: ") + name + " reads placeholder values";
  Python::get().set_error_text(*Python::get().runtime_error, text.c_str());
  return false;
}

// Takes the observer's key from a tensor.
class WithoutKey {
 public:
  explicit WithoutKey(PyObject* object) : tensor_(tensor_behind(object)) {
    if (tensor_ != nullptr && !tensor_->key_set().has(kHostTensorKey)) tensor_ = nullptr;
    if (tensor_ != nullptr) remove_key(*tensor_, kHostTensorKey);
  }
  ~WithoutKey() {
    if (tensor_ != nullptr) add_key(*tensor_, kHostTensorKey);
  }
  WithoutKey(const WithoutKey&) = delete;
  WithoutKey& operator=(const WithoutKey&) = delete;

 private:
  c10::TensorImpl* tensor_;
};

PyObject* numpy(PyObject* self, PyObject* arguments, PyObject* names) {
  return count_read(self, "numpy") ? real_numpy(self, arguments, names) : nullptr;
}

PyObject* tolist(PyObject* self, PyObject* arguments) {
  return count_read(self, "tolist") ? real_tolist(self, arguments) : nullptr;
}

PyObject* new_tensor(PyObject* self, PyObject* arguments, PyObject* names) {
  const WithoutKey without_key(self);
  return real_new_tensor(self, arguments, names);
}

PyObject* new_of_type(PyObject* self, PyObject* arguments, PyObject* names) {
  const WithoutKey without_key(self);
  return real_new(self, arguments, names);
}

PyObject* instancecheck(PyObject* self, PyObject* instance) {
  const WithoutKey without_key(instance);
  return real_instancecheck(self, instance);
}

// Sets `real` only once, because a replaced method is not replaced again.
template <typename Function>
void keep(Function& real, Function found) {
  if (found != nullptr) real = found;
}

void replace_methods(const Python& python, PyObject* tensor) {
  keep(real_numpy, replace_method(python, tensor, "numpy", numpy));
  keep(real_new_tensor, replace_method(python, tensor, "new_tensor", new_tensor));
  keep(real_new, replace_method(python, tensor, "new", new_of_type));
  keep(real_tolist, replace_method(python, tensor, "tolist", tolist));
  // The type of torch.FloatTensor.
  PyObject* torch = python.get_item(python.modules(), "torch");
  PyObject* legacy = torch != nullptr ? python.get_attribute(torch, "FloatTensor") : nullptr;
  PyObject* meta = legacy != nullptr ? python.get_attribute(legacy, "__class__") : nullptr;
  if (meta != nullptr) keep(real_instancecheck, replace_method_of_one(python, meta, "__instancecheck__", instancecheck));
  if (meta != nullptr) python.release(meta);
  if (legacy != nullptr) python.release(legacy);
  if (python.error() != nullptr) python.clear_error();
}

}  // namespace

void watch_host_reads() {
  const Python& python = Python::get();
  if (!python.usable()) return;
  const int state = python.gil_ensure();
  if (PyObject* tensor = tensor_type(python)) {
    replace_methods(python, tensor);
    python.release(tensor);
  }
  python.gil_release(state);
}

}  // namespace maya
