// Small ops computed by plain loops over memory.

#include "kernel_free_ops.h"

#include <cstring>

namespace maya {
namespace {

template <typename To, typename From>
void convert(const TensorView& to, const TensorView& from) {
  const auto* source = static_cast<const From*>(from.data);
  auto* target = static_cast<To*>(to.data);
  for (size_t i = 0; i < from.bytes / sizeof(From); i++) target[i] = static_cast<To>(static_cast<float>(source[i]));
}

// aten::copy_ between dense tensors with equal strides, with or without a cast. This is by far the most frequent small op:
// autocast casts every bias.
bool copy_elements(const Call& call) {
  if (call.arguments[1].kind != Argument::Kind::kTensor) return false;
  const TensorView &to = call.arguments[0].tensors[0], &from = call.arguments[1].tensors[0];
  if (!to.on_gpu() || !from.on_gpu() || !to.dense || !from.dense || to.sizes != from.sizes || to.strides != from.strides ||
      to.conjugate != from.conjugate || to.negative != from.negative) {
    return false;
  }
  using c10::ScalarType;
  if (to.dtype == from.dtype) memmove(to.data, from.data, from.bytes);
  else if (to.dtype == ScalarType::BFloat16 && from.dtype == ScalarType::Float) convert<c10::BFloat16, float>(to, from);
  else if (to.dtype == ScalarType::Float && from.dtype == ScalarType::BFloat16) convert<float, c10::BFloat16>(to, from);
  else if (to.dtype == ScalarType::Half && from.dtype == ScalarType::Float) convert<c10::Half, float>(to, from);
  else if (to.dtype == ScalarType::Float && from.dtype == ScalarType::Half) convert<float, c10::Half>(to, from);
  else return false;
  return true;
}

// aten::_foreach_add_.Scalar. Optimizers with step counts on the device add one to each parameter's count in every step.
bool add_number(const Call& call) {
  const auto& tensors = call.arguments[0].tensors;
  for (const TensorView& view : tensors) {
    if (!view.on_gpu() || !view.dense || view.dtype != c10::ScalarType::Float) return false;
  }
  const float number = call.values[1].toScalar().to<float>();
  for (const TensorView& view : tensors) {
    auto* element = static_cast<float*>(view.data);
    for (size_t i = 0; i < view.bytes / sizeof(float); i++) element[i] += number;
  }
  return true;
}

}  // namespace

bool compute_without_kernel(const Call& call) {
  switch (call.op->kernel_free) {
    case Operator::KernelFree::kCopy: return copy_elements(call);
    case Operator::KernelFree::kAddNumber: return add_number(call);
    case Operator::KernelFree::kNone: break;
  }
  return false;
}

}  // namespace maya
