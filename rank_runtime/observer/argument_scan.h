// One pass over an op's arguments, cheap enough for every op.
//
// Most ops work on large tensors and have a signature already. For these the observer needs only a fingerprint and the memory
// that the op writes, and makes no description of the arguments.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "operators.h"
#include "signature.h"
#include "../shim/device/internal.h"

namespace maya {

struct Scan {
  Fingerprint fingerprint;
  int64_t gpu_bytes = 0;
  bool touches_gpu = false;
  bool all_strided = true;   // every tensor is strided and has storage
  bool all_integers = true;  // every tensor in GPU memory has integers or booleans
};

Scan scan_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> inputs);

// The counts of an op that counts into bins (bincount, histc).
struct Tally {
  int64_t elements = 0;                               // how many are counted; 0: another op, or one that adds weights
  c10::ScalarType type = c10::ScalarType::Undefined;  // dtype of the counts
};

// GPU memory that an op overwrites: dense tensors as ranges, others as views.
struct Written {
  std::vector<maya_range> ranges;
  std::vector<TensorView> views;
  Tally tally;

  void clear();
  bool overlaps(const void* address, size_t size) const;
  void add(const at::Tensor& tensor);
  void add(const c10::IValue& value);  // a tensor, or a list or tuple of tensors
};

}  // namespace maya
