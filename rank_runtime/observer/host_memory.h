// The memory of one host tensor, and whether it holds placeholders.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace maya {

// From the tensor's first element to its last.
struct HostMemory {
  char* start = nullptr;
  size_t span = 0;   // bytes from the first element to the last
  size_t bytes = 0;  // of the elements
  bool dense = false;

  bool empty() const { return start == nullptr || bytes == 0; }
  bool is_tracked() const;
  bool has_placeholder() const;
  // Whether it is large and all of it is zeros.
  bool is_zero_and_large() const;
  // Whether it is large and was never written: zeros, or a new tensor.
  bool is_untouched_and_large() const;
};

// The key of tensors whose memory is tracked: torch does not use it, and it comes after autograd and before CPU and CUDA.
constexpr c10::DispatchKey kHostTensorKey = c10::DispatchKey::CustomRNGKeyId;

// `tensor` must be strided and on the CPU.
HostMemory memory_of(const c10::TensorImpl& tensor);
HostMemory memory_of(const at::Tensor& tensor);
// Whether it is a strided CPU tensor with memory.
bool is_on_host(const at::Tensor& tensor);

// What a write made of the tensor's elements. false: the tensor is not tracked, or has too many separate parts.
bool set_placeholder(const at::Tensor& tensor);
void set_zero(const HostMemory& memory);
void set_known(const at::Tensor& tensor);
void mark_computed_placeholder(const at::Tensor& tensor);

}  // namespace maya
