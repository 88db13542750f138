// A first look at an op's arguments, cheap enough for every op.
//
// Most ops work on large tensors and have been seen before: then a fingerprint and the places that the op writes to are all
// that is needed, and no description of the arguments is made.
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
  bool all_strided = true;  // every tensor has plain memory behind it
};

Scan scan_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> inputs);

// Of an op that counts into bins.
struct Tally {
  int64_t elements = 0;                               // that are counted; 0: it is no such op, or it adds weights
  c10::ScalarType type = c10::ScalarType::Undefined;  // of the counts
};

// Memory on the GPU that an op overwrites: dense tensors as ranges, others as views.
struct Written {
  std::vector<maya_range> ranges;
  std::vector<TensorView> views;
  Tally tally;

  void clear();
  void add(const at::Tensor& tensor);
  void add(const c10::IValue& value);  // tensors, lists and tuples of them
};

}  // namespace maya
