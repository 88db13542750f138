// The signature of an op in the trace: its name and its inputs' shapes, dtypes and strides.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor_view.h"

namespace maya {

// One argument: a tensor, a list of tensors, or something else that is described by a few words of text at most.
struct Argument {
  enum class Kind : uint8_t { kNone, kTensor, kTensorList, kInteger, kFloat, kBool, kIntegerList, kString, kOther };
  Kind kind = Kind::kNone;
  int64_t integer = 0;
  bool optional_list = false;  // Tensor?[]; gaps are views without a dtype
  c10::SmallVector<TensorView, 1> tensors;
  c10::SmallVector<int64_t, 4> integers;
  std::string_view text;  // valid while the op runs
};

// Number of the text {"op": name, "inputs": [...]} in the trace.
uint32_t op_signature(const char* name, const std::vector<Argument>& arguments, size_t count);
// Number of the text {"op": name}.
uint32_t name_signature(const char* name);

}  // namespace maya
