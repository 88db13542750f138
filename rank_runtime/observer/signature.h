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
  std::string text;  // a copy: the boxed value may be gone while the op still runs
};

// What distinguishes signatures, made without looking at more than it must: two independent 64-bit hashes. With a few
// thousand signatures in a run, a collision is out of the question.
struct Fingerprint {
  uint64_t first = 0x9E3779B97F4A7C15ull, second = 0xD1B54A32D192ED03ull;

  void add(uint64_t value) {
    first = (first ^ value) * 0xFF51AFD7ED558CCDull;
    first ^= first >> 32;
    second = (second + value) * 0xC4CEB9FE1A85EC53ull;
    second ^= second >> 29;
  }
  bool operator==(const Fingerprint& other) const { return first == other.first && second == other.second; }
};

// Number of the signature with that fingerprint, or 0 if it has not been made.
uint32_t find_signature(const Fingerprint& print);
// Makes it: the text {"op": name, "inputs": [...]} in the trace.
uint32_t make_signature(const Fingerprint& print, const char* name, const std::vector<Argument>& arguments, size_t count);
// Number of the text {"op": name}.
uint32_t name_signature(const char* name);

}  // namespace maya
