// The signature of an op in the trace: its name and its inputs' shapes, dtypes and strides.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor_view.h"

namespace maya {

// One argument of an op: a tensor, a list of tensors, or a value that takes a few words to describe.
struct Argument {
  enum class Kind : uint8_t { kNone, kTensor, kTensorList, kInteger, kFloat, kBool, kIntegerList, kString, kOther };
  Kind kind = Kind::kNone;
  int64_t integer = 0;
  bool optional_list = false;  // Tensor?[]; an absent tensor is a view without a dtype
  c10::SmallVector<TensorView, 1> tensors;
  c10::SmallVector<int64_t, 4> integers;
  std::string text;  // a copy, because torch may destroy the boxed value while the op still runs
};

// Two independent 64-bit hashes that stand for a signature. A run has a few thousand signatures, so collisions can be ignored.
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

// The interned number of the signature with that fingerprint; 0: there is none yet.
uint32_t find_signature(const Fingerprint& print);
// Interns the signature {"op": name, "inputs": [...]} and returns its number.
uint32_t make_signature(const Fingerprint& print, const char* name, const std::vector<Argument>& arguments, size_t count);
// The interned number of the text {"op": name}.
uint32_t name_signature(const char* name);

}  // namespace maya
