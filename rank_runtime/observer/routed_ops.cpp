// How marks of choices get from the arguments of an op to its results.

#include "routed_ops.h"

#include <algorithm>

#include "../shim/device/routing.h"
#include "argument_scan.h"
#include "choices.h"
#include "tensor_view.h"

namespace maya {
namespace {

// A result with fewer elements than this part of the rows it is computed from is a statistic or the gradient of a bias.
constexpr int64_t kSmallPart = 16;

// The memory between a tensor's first and its last element.
struct Extent {
  const char* start = nullptr;
  size_t bytes = 0;
};

Extent extent_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->device_type() != c10::DeviceType::CUDA || impl->layout() != c10::Layout::Strided || !impl->has_storage() ||
      tensor.is_nested() || is_symbolic(tensor) || impl->numel() == 0) {
    return {};
  }
  const auto* base = static_cast<const char*>(impl->unsafe_storage().unsafeGetStorageImpl()->data());
  if (base == nullptr) return {};
  int64_t last = 0;
  const auto sizes = impl->sizes(), strides = impl->strides();
  for (size_t i = 0; i < sizes.size(); i++) last += (sizes[i] - 1) * strides[i];
  const auto item = static_cast<int64_t>(impl->itemsize());
  return {base + impl->storage_offset() * item, static_cast<size_t>((last + 1) * item)};
}

bool has_integers(const at::Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true); }

// An index that is expanded along the activations picks whole rows of them.
bool is_expanded(const at::Tensor& index) {
  const auto sizes = index.sizes(), strides = index.strides();
  for (size_t i = 0; i < sizes.size(); i++) {
    if (sizes[i] > 1 && strides[i] == 0) return true;
  }
  return false;
}

uint32_t choices_among(uint32_t marks) { return marks & ~(MAYA_ROUTED_ROWS | MAYA_ROUTING_MIXED); }

// Whether the op picks rows of a floating-point tensor, or puts them there, by `index`. With an index for each dimension it
// picks single elements.
bool uses_rows(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, const at::Tensor& index) {
  if (!inputs[0].isTensor() || !inputs[0].toTensor().defined() || has_integers(inputs[0].toTensor())) return false;
  const at::Tensor& data = inputs[0].toTensor();
  switch (op.indexing) {
    case Operator::Indexing::kRows: {
      int64_t indices = 0;
      for (const c10::IValue& input : inputs) {
        if (!input.isList() || input.isIntList()) continue;
        for (const c10::IValue& element : input.toListRef()) indices += element.isTensor() && element.toTensor().defined();
      }
      return data.dim() > std::max<int64_t>(indices, 1);
    }
    case Operator::Indexing::kElements: return is_expanded(index);
    case Operator::Indexing::kMask: return true;
    case Operator::Indexing::kNone: break;
  }
  return false;
}

}  // namespace

void RoutedOp::clear() {
  followed_ = routed_ = picks_rows_ = data_is_rows_ = has_destination_ = false;
  floats_follow_ = true;
  marked_factors_ = 0;
  chosen_ = choices_ = rows_ = mixed_ = destination_ = 0;
  most_choices_ = other_integers_ = 0;
  most_rows_ = 0;
  unmarked_.clear();
}

void RoutedOp::look_at(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, size_t index, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const Extent extent = extent_of(tensor);
  if (extent.bytes == 0) return;
  const uint32_t marks = maya_routing_marks(extent.start, extent.bytes);
  const bool integers = has_integers(tensor);
  followed_ = followed_ || marks != 0;
  if (!op.reads_argument(inputs, index)) return;
  if (op.writes[index] || (op.puts && index == 0)) {
    has_destination_ = true;
    destination_ |= marks;
    if (op.puts) return;
  }
  if (!integers && choices_among(marks) == 0) floats_follow_ = false;
  if (!integers && marks == 0) unmarked_.push_back({tensor.numel(), {tensor.sizes().begin(), tensor.sizes().end()}});
  if (integers && marks == 0) other_integers_ = std::max(other_integers_, tensor.numel());
  if (marks == 0) return;
  if (integers) most_choices_ = std::max(most_choices_, tensor.numel());
  choices_ |= choices_among(marks);
  mixed_ |= marks & MAYA_ROUTING_MIXED;
  rows_ |= marks & MAYA_ROUTED_ROWS;
  marked_factors_ += !integers;
  if ((marks & MAYA_ROUTED_ROWS) != 0) {
    most_rows_ = std::max(most_rows_, tensor.numel());
    data_is_rows_ = data_is_rows_ || index == 0;
  }
  if (integers && choices_among(marks) != 0) picks_rows_ = picks_rows_ || uses_rows(op, inputs, tensor);
}

void RoutedOp::begin(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, int place) {
  clear();
  if (!maya_routing_exists()) return;
  for (size_t i = 0; i < inputs.size(); i++) {
    if (inputs[i].isTensor()) {
      look_at(op, inputs, i, inputs[i].toTensor());
    } else if ((op.joins || op.indexing == Operator::Indexing::kRows) &&
               (inputs[i].isTensorList() || inputs[i].isOptionalTensorList())) {
      for (const c10::IValue& element : inputs[i].toListRef()) {
        if (element.isTensor()) look_at(op, inputs, i, element.toTensor());
      }
    }
  }
  if (place >= 0) {
    chosen_ = mark_of_place(place);
    followed_ = true;
  }
  if (op.indexing == Operator::Indexing::kNone && other_integers_ > 1 && other_integers_ == most_choices_)
    mixed_ = MAYA_ROUTING_MIXED;
  const bool uses = op.counts_elements || op.is_gemm || (op.tallies && mixed_ == 0);
  if (picks_rows_ || (uses && choices_ != 0)) place_routes(choices_);
  routed_ = maya_routing_is_work(choices_ | rows_ | chosen_);
}

uint32_t RoutedOp::marks_of_floats(const Operator& op, const at::Tensor& tensor) const {
  const uint32_t choices = floats_follow_ ? choices_ : 0;
  if (op.is_gemm) return marked_factors_ == 1 || (marked_factors_ == 0 && choices_ != 0) ? MAYA_ROUTED_ROWS : choices;
  if (op.indexing != Operator::Indexing::kNone) {
    return picks_rows_ || data_is_rows_ ? MAYA_ROUTED_ROWS : choices;
  }
  if (rows_ == 0 || tensor.numel() * kSmallPart <= most_rows_) return choices;
  const auto same = [&](const Sizes& other) { return tensor.sizes() == c10::IntArrayRef(other.sizes); };
  return std::any_of(unmarked_.begin(), unmarked_.end(), same) ? 0 : MAYA_ROUTED_ROWS;
}

void RoutedOp::mark_result(const Operator& op, const at::Tensor& tensor) {
  const Extent extent = extent_of(tensor);
  if (extent.bytes == 0) return;
  uint32_t marks = chosen_;
  if (marks == 0 && has_destination_) {
    marks = destination_ | (has_integers(tensor) || (op.puts && !picks_rows_) ? choices_ : 0);
  } else if (marks == 0) {
    marks = has_integers(tensor) ? choices_ : marks_of_floats(op, tensor);
  }
  if (choices_among(marks) != 0) marks |= mixed_;
  maya_routing_mark(extent.start, extent.bytes, marks);
}

void RoutedOp::mark_results(const Operator& op, const c10::IValue& result) {
  if (result.isTensor()) {
    if (result.toTensor().defined()) mark_result(op, result.toTensor());
  } else if (result.isTensorList()) {
    for (const c10::IValue& element : result.toListRef()) mark_results(op, element);
  } else if (result.isTuple()) {
    for (const c10::IValue& element : result.toTupleRef().elements()) mark_results(op, element);
  }
}

}  // namespace maya
