// Which ops work on what a choice by rule has picked, and which choices route.
//
// In: the arguments and results of every op, in the program's order. Out: marks on memory (shim/device/routing.h), the flag
// ROUTED of the device work that an op launches, and a CHOICE record for a place whose choices turn out to route: they
// determine a shape, pick rows of activations, or are an operand of a GEMM. Choices that do none of this, such as the predicted
// class that an accuracy compares with the labels, do not route.
//
// Integers and booleans that follow from a choice carry the mark of its place. So do floating-point tensors, if all
// floating-point arguments of their op do. Activations are marked as rows when such integers pick them, and results of ops on
// rows are rows, until they meet a tensor of the same shape that is none (a residual connection), are added into one, shrink
// to a small part, or two factors of a GEMM both are rows (the gradient of a weight).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "operators.h"

namespace maya {

class RoutedOp {
 public:
  void clear();
  // `place`: of an op that chooses (choices.h); -1: another op.
  void begin(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, int place);
  // The marks of choices that its arguments follow from.
  uint32_t choices() const { return choices_; }
  // Whether its results have to be marked.
  bool is_followed() const { return followed_; }
  // Whether its kernels work on rows that were picked, or on choices that route.
  bool is_routed() const { return routed_; }
  void mark_results(const Operator& op, const c10::IValue& result);

 private:
  struct Sizes {
    int64_t elements = 0;
    c10::SmallVector<int64_t, 4> sizes;
  };

  void look_at(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, size_t index, const at::Tensor& tensor);
  void mark_result(const Operator& op, const at::Tensor& tensor);
  uint32_t marks_of_floats(const Operator& op, const at::Tensor& tensor) const;

  bool followed_ = false, routed_ = false;
  bool picks_rows_ = false;       // by integers that follow from a choice
  bool floats_follow_ = true;     // every floating-point argument follows from a choice
  bool data_is_rows_ = false;     // the tensor that it picks from is
  bool has_destination_ = false;  // it changes an argument and reads what that held before
  uint32_t destination_ = 0;      // the marks of that argument
  int marked_factors_ = 0;        // floating-point arguments with marks
  uint32_t chosen_ = 0;           // the mark of the choice that the op makes
  uint32_t choices_ = 0;          // marks of the arguments
  uint32_t rows_ = 0, mixed_ = 0;
  int64_t most_choices_ = 0;             // elements of the largest integer argument with marks ...
  int64_t other_integers_ = 0;           // ... and of the largest without
  int64_t most_rows_ = 0;                // elements of the largest argument of rows
  c10::SmallVector<Sizes, 2> unmarked_;  // floating-point arguments without marks
};

}  // namespace maya
