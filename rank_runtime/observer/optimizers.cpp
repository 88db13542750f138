// Optimizer steps. torch.optim's annotation names only the class. The torch function that makes the annotation, in
// torch/optim/optimizer.py, has the optimizer in its local variable `self`.

#include "optimizers.h"

#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "../shim/device/device.h"
#include "python_api.h"
#include "stop.h"

namespace maya {
namespace {

struct Optimizers {
  std::mutex lock;
  std::unordered_map<const void*, uint32_t> numbers;  // by address of the first parameter
  std::unordered_map<uint32_t, uint64_t> steps;       // by number
  uint64_t most_steps = 0;
};

Optimizers& optimizers() {
  static Optimizers& all = *new Optimizers;  // never destroyed: threads may still run while the process exits
  return all;
}

// An owned reference. Attributes and elements of a null reference are null references.
class Reference {
 public:
  Reference(const Python& python, PyObject* object) : python_(python), object_(object) {}
  ~Reference() {
    if (object_ != nullptr) python_.release(object_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  Reference attribute(const char* name) const { return {python_, object_ ? python_.get_attribute(object_, name) : nullptr}; }
  Reference key(const char* name) const { return {python_, object_ ? python_.get_key(object_, name) : nullptr}; }
  Reference element(long index) const { return {python_, object_ ? python_.get_element(object_, index) : nullptr}; }
  const void* address() const { return object_; }

 private:
  const Python& python_;
  PyObject* object_;
};

bool defines_optimizers(std::string_view file) {
  constexpr std::string_view kFile = "/torch/optim/optimizer.py";
  return file.size() >= kFile.size() && file.substr(file.size() - kFile.size()) == kFile;
}

// The first parameter of the optimizer whose step begins, or the optimizer itself if it has no parameters. The address of an
// object that was deleted may be used again, in which case two optimizers get one number.
const void* identity_of_current() {
  const void* found = nullptr;
  const Python& python = Python::get();
  if (!python.usable()) return nullptr;
  python.visit_frames([&](PyObject* frame, const char* file) {
    if (!defines_optimizers(file)) return false;
    python.retain(frame);
    const Reference optimizer = Reference(python, frame).attribute("f_locals").key("self");
    const Reference parameter = optimizer.attribute("param_groups").element(0).key("params").element(0);
    found = parameter.address() != nullptr ? parameter.address() : optimizer.address();
    return true;
  });
  return found;
}

}  // namespace

bool is_optimizer_step(const char* name) {
  constexpr std::string_view kStep = "Optimizer.step#";
  return std::string_view(name).substr(0, kStep.size()) == kStep;
}

uint32_t find_optimizer() {
  const void* identity = identity_of_current();
  if (identity == nullptr) return 0;
  std::lock_guard<std::mutex> guard(optimizers().lock);
  auto& numbers = optimizers().numbers;
  return numbers.emplace(identity, static_cast<uint32_t>(numbers.size() + 1)).first->second;
}

uint32_t optimizer_signature(const char* name, uint32_t optimizer) {
  std::string text = "{\"op\":\"";
  for (const char* c = name; *c != '\0'; c++) {
    if (*c != '"' && *c != '\\' && static_cast<unsigned char>(*c) >= 0x20) text += *c;
  }
  text += "\",\"optimizer\":" + std::to_string(optimizer) + "}";
  return maya_intern(text.data(), text.size());
}

bool count_optimizer_step(uint32_t optimizer) {
  std::lock_guard<std::mutex> guard(optimizers().lock);
  const uint64_t steps = ++optimizers().steps[optimizer];
  const bool is_only = optimizers().numbers.size() <= 1;
  maya_record_steps(steps, is_only);
  if (is_only) stop_after(steps);
  if (steps <= optimizers().most_steps) return false;
  optimizers().most_steps = steps;
  return true;
}

void optimizer_step_begins(uint32_t optimizer) {
  std::lock_guard<std::mutex> guard(optimizers().lock);
  if (optimizers().numbers.size() <= 1) return;
  const uint64_t steps = optimizers().steps[optimizer];
  maya_record_steps(steps, true);
  stop_after(steps);
}

}  // namespace maya
