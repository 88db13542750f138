// Zeros times a number are zeros, so their pages need not be touched.

#include "host_zeros.h"

#include <cmath>

#include "host_memory.h"

namespace maya {
namespace {

// A finite number that the op is given; nullopt: it is something else, or itself a placeholder.
std::optional<double> finite_number(const c10::IValue& value) {
  double number = 0;
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!is_on_host(tensor) || tensor.dim() > 0 || tensor.is_complex() || memory_of(tensor).has_placeholder()) {
      return std::nullopt;
    }
    number = tensor.item<double>();
  } else if (value.isDouble() || value.isInt()) {
    number = value.toScalar().toDouble();
  } else {
    return std::nullopt;
  }
  return std::isfinite(number) ? std::make_optional(number) : std::nullopt;
}

bool are_the_same(const c10::IValue& one, const c10::IValue& other) {
  return one.isTensor() && other.isTensor() && one.toTensor().is_same(other.toTensor());
}

}  // namespace

std::optional<size_t> scaled_zeros(const Operator& op, c10::ArrayRef<const c10::IValue> values) {
  const bool divides = op.name == "aten::div_" || op.name == "aten::div";
  if (!divides && op.name != "aten::mul_" && op.name != "aten::mul") return std::nullopt;
  // An op on lists calls the form with `out` for each of its tensors, with the number first.
  const bool has_out = op.name.back() != '_';
  if (values.size() != (has_out ? 3 : 2)) return std::nullopt;
  const size_t zeros = has_out ? 2 : 0;
  const bool is_second = has_out && !divides && are_the_same(values[1], values[2]);
  if (has_out && !is_second && !are_the_same(values[0], values[2])) return std::nullopt;
  if (!is_on_host(values[zeros].toTensor())) return std::nullopt;
  const HostMemory memory = memory_of(values[zeros].toTensor());
  if (!memory.is_tracked() || memory.has_placeholder() || !memory.is_zero_and_large()) return std::nullopt;
  const std::optional<double> number = finite_number(values[is_second ? 0 : 1]);
  if (!number || (divides && *number == 0)) return std::nullopt;
  return zeros;
}

}  // namespace maya
