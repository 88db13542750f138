// nonzero of masks, sums of integers, stable sorts of small numbers: plain loops over memory.

#include "integer_ops.h"

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace maya {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMostKeys = 1 << 16;  // of a counting sort

bool is_mask(const at::Tensor& tensor) {
  return tensor.is_contiguous() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
}

// Calls visit(position) for every byte that is not zero. Most bytes of a router's mask are.
template <typename Visit>
void for_each_nonzero(const uint8_t* bytes, int64_t count, const Visit& visit) {
  int64_t position = 0;
  for (; position + 8 <= count; position += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + position, sizeof word);
    if (word == 0) continue;
    for (int64_t i = 0; i < 8; i++) {
      if (bytes[position + i] != 0) visit(position + i);
    }
  }
  for (; position < count; position++) {
    if (bytes[position] != 0) visit(position);
  }
}

std::optional<Tensors> nonzero(const std::vector<c10::IValue>& stack) {
  const at::Tensor& mask = stack[0].toTensor();
  const int64_t dimensions = mask.dim();
  if (!is_mask(mask) || dimensions == 0) return std::nullopt;
  const auto* bytes = static_cast<const uint8_t*>(mask.const_data_ptr());
  at::Tensor found = at::empty({count_of_nonzeros(mask), dimensions}, at::kLong);
  auto* to = found.mutable_data_ptr<int64_t>();
  const auto sizes = mask.sizes();
  for_each_nonzero(bytes, mask.numel(), [&](int64_t position) {
    for (int64_t d = dimensions - 1; d > 0; d--) {
      to[d] = position % sizes[d];
      position /= sizes[d];
    }
    to[0] = position;
    to += dimensions;
  });
  return Tensors{found};
}

// The elements of a tensor, which may be expanded, where the mask is true.
std::optional<Tensors> masked_select(const std::vector<c10::IValue>& stack) {
  const at::Tensor &given = stack[0].toTensor(), &mask = stack[1].toTensor();
  if (!is_mask(mask) || given.sizes() != mask.sizes()) return std::nullopt;
  const auto* bytes = static_cast<const uint8_t*>(mask.const_data_ptr());
  const auto item = static_cast<int64_t>(given.itemsize());
  at::Tensor found = at::empty({count_of_nonzeros(mask)}, given.scalar_type());
  const auto* from = static_cast<const char*>(given.const_data_ptr());
  auto* to = static_cast<char*>(found.mutable_data_ptr());
  const auto sizes = given.sizes(), strides = given.strides();
  for_each_nonzero(bytes, mask.numel(), [&](int64_t position) {
    int64_t offset = 0;
    for (int64_t d = given.dim() - 1; d >= 0; d--) {
      offset += position % sizes[d] * strides[d];
      position /= sizes[d];
    }
    std::memcpy(to, from + offset * item, static_cast<size_t>(item));
    to += item;
  });
  return Tensors{found};
}

template <typename Number>
void add_up(const Number* from, int64_t outer, int64_t count, int64_t inner, int64_t* sums) {
  for (int64_t o = 0; o < outer; o++, sums += inner) {
    for (int64_t i = 0; i < count; i++, from += inner) {
      for (int64_t j = 0; j < inner; j++) sums[j] += from[j];
    }
  }
}

// Booleans are 0 or 1, so eight of them are added at a time, each in a byte of its own, which holds the sum of 255.
void add_up_booleans(const uint8_t* from, int64_t outer, int64_t count, int64_t inner, int64_t* sums) {
  constexpr int64_t kMostInByte = 255;
  if (inner < 8) return add_up(from, outer, count, inner, sums);
  const int64_t words = inner / 8;
  std::vector<uint64_t> bytes(static_cast<size_t>(words));
  for (int64_t o = 0; o < outer; o++, sums += inner) {
    for (int64_t begin = 0; begin < count; begin += kMostInByte) {
      std::fill(bytes.begin(), bytes.end(), 0);
      const int64_t end = std::min(count, begin + kMostInByte);
      for (int64_t i = begin; i < end; i++, from += inner) {
        for (int64_t w = 0; w < words; w++) {
          uint64_t word;
          std::memcpy(&word, from + 8 * w, sizeof word);
          bytes[static_cast<size_t>(w)] += word;
        }
        for (int64_t j = 8 * words; j < inner; j++) sums[j] += from[j];
      }
      const auto* each = reinterpret_cast<const uint8_t*>(bytes.data());
      for (int64_t j = 0; j < 8 * words; j++) sums[j] += each[j];
    }
  }
}

// Sums over all dimensions, or over some that follow each other.
std::optional<Tensors> sum(const std::vector<c10::IValue>& stack) {
  const at::Tensor& given = stack[0].toTensor();
  if (!c10::isIntegralType(given.scalar_type(), /*includeBool=*/true) || given.dim() == 0) return std::nullopt;
  const c10::IValue& type = stack[3];
  if (!type.isNone() && type.toScalarType() != at::kLong) return std::nullopt;
  const int64_t dimensions = given.dim();
  const auto listed = stack[1].isNone() ? std::vector<int64_t>() : stack[1].toIntVector();
  std::vector<bool> summed(static_cast<size_t>(dimensions), listed.empty());
  for (const int64_t d : listed) summed[static_cast<size_t>(d < 0 ? d + dimensions : d)] = true;
  const auto first = std::find(summed.begin(), summed.end(), true), last = std::find(first, summed.end(), false);
  if (std::find(last, summed.end(), true) != summed.end()) return std::nullopt;
  const bool keeps = stack[2].toBool();
  std::vector<int64_t> shape;
  int64_t outer = 1, count = 1, inner = 1;
  for (auto d = summed.begin(); d != summed.end(); ++d) {
    const int64_t size = given.size(d - summed.begin());
    (*d ? count : d < first ? outer : inner) *= size;
    if (!*d || keeps) shape.push_back(*d ? 1 : size);
  }
  const at::Tensor from = given.contiguous();
  at::Tensor sums = at::zeros(shape, at::kLong);
  auto* to = sums.mutable_data_ptr<int64_t>();
  switch (from.scalar_type()) {
    case at::kBool: add_up_booleans(static_cast<const uint8_t*>(from.const_data_ptr()), outer, count, inner, to); break;
    case at::kByte: add_up(static_cast<const uint8_t*>(from.const_data_ptr()), outer, count, inner, to); break;
    case at::kInt: add_up(from.const_data_ptr<int32_t>(), outer, count, inner, to); break;
    case at::kLong: add_up(from.const_data_ptr<int64_t>(), outer, count, inner, to); break;
    default: return std::nullopt;
  }
  return Tensors{sums};
}

// Counts how often each number occurs, and puts every element behind those that are less, in order.
template <typename Number>
std::optional<Tensors> sort_by_counting(const at::Tensor& given, bool descending) {
  const Number* numbers = given.const_data_ptr<Number>();
  const int64_t count = given.numel();
  const auto [least, most] = std::minmax_element(numbers, numbers + count);
  const int64_t first = *least, keys = static_cast<int64_t>(static_cast<uint64_t>(*most) - static_cast<uint64_t>(*least)) + 1;
  if (keys <= 0 || keys > kMostKeys) return std::nullopt;
  std::vector<int64_t> places(static_cast<size_t>(keys) + 1);
  const auto key_of = [&](Number number) {
    const int64_t key = static_cast<int64_t>(number) - first;
    return static_cast<size_t>(descending ? keys - 1 - key : key);
  };
  for (int64_t i = 0; i < count; i++) places[key_of(numbers[i]) + 1]++;
  for (size_t i = 1; i < places.size(); i++) places[i] += places[i - 1];
  at::Tensor sorted = at::empty({count}, given.scalar_type()), order = at::empty({count}, at::kLong);
  auto* to = sorted.mutable_data_ptr<Number>();
  auto* from = order.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; i++) {
    const int64_t place = places[key_of(numbers[i])]++;
    to[place] = numbers[i];
    from[place] = i;
  }
  return Tensors{sorted, order};
}

std::optional<Tensors> sort(const std::vector<c10::IValue>& stack) {
  const at::Tensor& given = stack[0].toTensor();
  if (given.dim() != 1 || !given.is_contiguous()) return std::nullopt;
  const bool descending = stack[3].toBool();
  if (given.scalar_type() == at::kLong) return sort_by_counting<int64_t>(given, descending);
  if (given.scalar_type() == at::kInt) return sort_by_counting<int32_t>(given, descending);
  return std::nullopt;
}

}  // namespace

int64_t count_of_nonzeros(const at::Tensor& tensor) {
  if (!is_mask(tensor)) return at::count_nonzero(tensor).item<int64_t>();
  int64_t count = 0;
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < tensor.numel(); i++) count += bytes[i] != 0;
  return count;
}

std::optional<Tensors> fast_integer_results(const Operator& op, const std::vector<c10::IValue>& stack) {
  if (op.fast_form == Operator::FastForm::kNone || stack[0].toTensor().numel() < kLeastElements) return std::nullopt;
  switch (op.fast_form) {
    case Operator::FastForm::kNonzero: return nonzero(stack);
    case Operator::FastForm::kMaskedSelect: return masked_select(stack);
    case Operator::FastForm::kSum: return sum(stack);
    case Operator::FastForm::kSort: return sort(stack);
    case Operator::FastForm::kNone: break;
  }
  return std::nullopt;
}

}  // namespace maya
