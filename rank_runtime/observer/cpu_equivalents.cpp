// CPU equivalents: lookup, access to arguments by name, and gradients by autograd.

#include "cpu_equivalents.h"

#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace maya {

const c10::IValue& Arguments::value(const char* name) const {
  static const c10::IValue none;
  const auto& arguments = op_.handle->schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < stack_.size(); i++) {
    if (arguments[i].name() == name) return stack_[i];
  }
  return none;
}

bool Arguments::has(const char* name) const {
  const c10::IValue& found = value(name);
  return !found.isNone() && !(found.isTensor() && !found.toTensor().defined());
}

at::Tensor Arguments::tensor(const char* name) const { return has(name) ? value(name).toTensor() : at::Tensor(); }

std::optional<at::Tensor> Arguments::optional(const char* name) const {
  return has(name) ? std::optional<at::Tensor>(value(name).toTensor()) : std::nullopt;
}

std::vector<at::Tensor> Arguments::tensors(const char* name) const { return value(name).toTensorVector(); }

int64_t Arguments::integer(const char* name, int64_t otherwise) const { return has(name) ? value(name).toInt() : otherwise; }

double Arguments::number(const char* name, double otherwise) const {
  return has(name) ? value(name).toScalar().toDouble() : otherwise;
}

bool Arguments::flag(const char* name) const { return has(name) && value(name).toBool(); }

std::vector<int64_t> Arguments::integers(const char* name) const {
  return has(name) ? value(name).toIntVector() : std::vector<int64_t>();
}

CpuEquivalent cpu_equivalent_for(const Operator& op) {
  static std::mutex lock;
  static auto& known = *new std::unordered_map<const Operator*, CpuEquivalent>;  // never destroyed, as in result_cache.cpp
  std::lock_guard<std::mutex> guard(lock);
  auto found = known.find(&op);
  if (found != known.end()) return found->second;
  CpuEquivalent equivalent = attention_equivalent(op.name);
  if (equivalent == nullptr) equivalent = cudnn_equivalent(op.name);
  if (equivalent == nullptr) equivalent = cell_equivalent(op.name);
  if (equivalent == nullptr) equivalent = count_equivalent(op.name);
  known.emplace(&op, equivalent);
  return equivalent;
}

std::vector<at::Tensor> gradients_of(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& forward,
                                     const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& output_gradients) {
  std::vector<at::Tensor> gradients;
  std::exception_ptr problem;
  // The calling thread may be one of autograd's, in the middle of the program's backward pass. A new thread keeps the two
  // passes apart and starts with clean thread-local state.
  std::thread([&] {
    try {
      at::AutoGradMode enabled(true);
      std::vector<at::Tensor> leaves, outputs, output_grads, wanted;
      for (const at::Tensor& input : inputs) {
        leaves.push_back(input.defined() ? input.detach().clone().requires_grad_(true) : input);
        if (input.defined()) wanted.push_back(leaves.back());
      }
      const std::vector<at::Tensor> all = forward(leaves);
      for (size_t i = 0; i < all.size(); i++) {
        if (i >= output_gradients.size() || !output_gradients[i].defined()) continue;
        outputs.push_back(all[i]);
        output_grads.push_back(output_gradients[i].reshape(all[i].sizes()).to(all[i].scalar_type()));
      }
      const auto found = torch::autograd::grad(outputs, wanted, output_grads, std::nullopt, false, /*allow_unused=*/true);
      size_t next = 0;
      for (size_t i = 0; i < inputs.size(); i++) {
        if (!inputs[i].defined()) {
          gradients.emplace_back();
          continue;
        }
        const at::Tensor& gradient = found[next++];
        gradients.push_back(gradient.defined() ? gradient.detach() : at::zeros_like(inputs[i]));
      }
    } catch (...) {
      problem = std::current_exception();
    }
  }).join();
  if (problem) std::rethrow_exception(problem);
  return gradients;
}

}  // namespace maya
