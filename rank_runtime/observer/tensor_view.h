// One tensor argument or result of an op, as plain numbers.
//
// The observer must not hold references to the program's tensors: that would change use counts and lifetimes, and with them
// the memory the program needs. What is kept is where the bytes lie and how they are arranged.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace maya {

struct TensorView {
  void* data = nullptr;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool strided = false;                      // dense layout with storage: bytes can be looked at
  bool dense = false;                        // its elements fill [data, data + bytes) without gaps
  bool wrapped = false;                      // a Python number that became a tensor: promotes types differently
  bool conjugate = false, negative = false;  // lazily conjugated or negated
  size_t bytes = 0;                          // of its elements
  c10::SmallVector<int64_t, 5> sizes, strides;

  bool on_gpu() const { return device.is_cuda(); }
};

TensorView view_of(const at::Tensor& tensor);

// A CPU tensor over the same bytes. Device addresses are host addresses.
at::Tensor cpu_alias(const TensorView& view);

bool is_known(const TensorView& view);
// true if the tensor's first element is in GPU memory and not known. Cheaper than a view, which is not needed for this.
bool begins_made_up(const at::Tensor& tensor);
void mark_known(const TensorView& view);
void mark_guessed(const TensorView& view);
void mark_made_up(const TensorView& view);

}  // namespace maya
