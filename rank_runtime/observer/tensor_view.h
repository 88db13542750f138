// One tensor argument or result of an op, without a reference to it.
//
// The observer must not hold references to the program's tensors: that would change use counts and lifetimes, and thereby the
// memory that the program needs. A view keeps address, shape, strides and dtype.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace maya {

struct TensorView {
  void* data = nullptr;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool strided = false;                      // strided layout with storage and sizes, so its bytes can be read
  bool dense = false;                        // its elements fill [data, data + bytes) without gaps
  bool wrapped = false;                      // made from a Python number, which promotes types differently
  bool conjugate = false, negative = false;  // lazily conjugated or negated
  size_t bytes = 0;                          // total size of its elements
  c10::SmallVector<int64_t, 5> sizes, strides;

  bool on_gpu() const { return device.is_cuda(); }
};

// Whether the tensor's sizes are symbols, as while a graph with dynamic shapes is traced. Its sizes cannot be asked for, and it
// has no bytes.
inline bool is_symbolic(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }

TensorView view_of(const at::Tensor& tensor);

// A CPU tensor over the same bytes. Device addresses are host addresses.
at::Tensor cpu_alias(const TensorView& view);

bool is_known(const TensorView& view);
// Whether it is in GPU memory and some of it follows from an assumed choice (choices.h).
bool is_assumed(const TensorView& view);
bool has_integers(const TensorView& view);  // or booleans
// Whether the tensor's first element is in GPU memory and a placeholder. Makes no view, and so is cheap.
bool starts_with_placeholder(const at::Tensor& tensor);
// Whether it starts with large integers from the host or other ranks, or with what was computed from such.
bool starts_with_large_integers(const at::Tensor& tensor);
void mark_known(const TensorView& view);
// The same for an op that is computed at any size (compute.cpp). `assumed`: some input follows from an assumed choice.
void mark_computed(const TensorView& view, bool assumed);
void mark_guessed(const TensorView& view);
void mark_placeholder(const TensorView& view);

}  // namespace maya
