// CPU equivalents of ops that exist only for CUDA (attention kernels, cuDNN, fused cells), or whose CPU kernel will not do.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <vector>

#include "operators.h"

namespace maya {

// The arguments of one call, by name: positions differ between torch releases.
class Arguments {
 public:
  Arguments(const Operator& op, std::vector<c10::IValue>&& stack, at::Generator generator)
      : op_(op), stack_(std::move(stack)), generator_(std::move(generator)) {}

  const c10::IValue& value(const char* name) const;
  bool has(const char* name) const;           // there is such an argument and it is not None
  at::Tensor tensor(const char* name) const;  // undefined if None
  std::optional<at::Tensor> optional(const char* name) const;
  std::vector<at::Tensor> tensors(const char* name) const;
  int64_t integer(const char* name, int64_t otherwise = 0) const;
  double number(const char* name, double otherwise = 0.0) const;
  bool flag(const char* name) const;
  std::vector<int64_t> integers(const char* name) const;
  const at::Generator& generator() const { return generator_; }  // for an op that draws without being given one

 private:
  const Operator& op_;
  std::vector<c10::IValue> stack_;
  at::Generator generator_;
};

using Results = std::vector<c10::IValue>;
using Substitute = Results (*)(const Arguments& arguments);

// nullptr: the op has a CPU kernel of its own, or no equivalent.
Substitute substitute_for(const Operator& op);

// d outputs / d inputs for the given output gradients, by running `forward` with autograd on the CPU. Undefined gradients are
// taken as zeros.
std::vector<at::Tensor> gradients_of(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& forward,
                                     const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& output_gradients);

// The subjects, each in a file of its own.
Substitute attention_substitute(const std::string& name);
Substitute cudnn_substitute(const std::string& name);
Substitute cell_substitute(const std::string& name);

}  // namespace maya
