// CPU implementations of ops that exist only for CUDA (attention kernels, cuDNN, fused cells), or whose CPU kernel cannot be
// used.
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
  bool has(const char* name) const;           // the argument exists and is not None
  at::Tensor tensor(const char* name) const;  // undefined if None
  std::optional<at::Tensor> optional(const char* name) const;
  std::vector<at::Tensor> tensors(const char* name) const;
  int64_t integer(const char* name, int64_t otherwise = 0) const;
  double number(const char* name, double otherwise = 0.0) const;
  bool flag(const char* name) const;
  std::vector<int64_t> integers(const char* name) const;
  const at::Generator& generator() const {
    return generator_;
  }  // for an op that draws random numbers but has no generator argument

 private:
  const Operator& op_;
  std::vector<c10::IValue> stack_;
  at::Generator generator_;
};

using Results = std::vector<c10::IValue>;
using CpuEquivalent = Results (*)(const Arguments& arguments);

// nullptr: the op's own CPU kernel is used, or there is none.
CpuEquivalent cpu_equivalent_for(const Operator& op);

// The gradients of `inputs` for the given output gradients, by running `forward` with autograd on the CPU. Undefined gradients
// count as zeros.
std::vector<at::Tensor> gradients_of(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& forward,
                                     const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& output_gradients);

// Lookup by op name, in cpu_equivalents_attention.cpp, _cudnn.cpp, _cells.cpp and _counts.cpp.
CpuEquivalent attention_equivalent(const std::string& name);
CpuEquivalent cudnn_equivalent(const std::string& name);
CpuEquivalent cell_equivalent(const std::string& name);
CpuEquivalent count_equivalent(const std::string& name);

}  // namespace maya
