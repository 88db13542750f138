// Placeholders, and the few of them that are not zero because programs size buffers by them or check them.

#include "placeholder_results.h"

#include <cstring>

#include "../shim/device/internal.h"
#include "cpu_call.h"

namespace maya {
namespace {

template <typename Bits>
void zero_where_exponent_is_full(const TensorView& view, Bits exponent) {
  auto* element = static_cast<Bits*>(view.data);
  for (size_t i = 0; i < view.bytes / sizeof(Bits); i++) {
    if ((element[i] & exponent) == exponent) element[i] = 0;
  }
}

// Writes the placeholder result of aten::all: true, so that a check for finite numbers passes.
void write_placeholder_truth(const Operator& op, void* data, size_t bytes) {
  if (op.name != "aten::all" || bytes == 0) return;
  maya_values_guessed(data, bytes);
  memset(data, 1, bytes);
}

template <typename Number>
void count_evenly(int64_t elements, void* data, size_t bytes) {
  auto* bin = static_cast<Number*>(data);
  const auto bins = static_cast<int64_t>(bytes / sizeof(Number));
  for (int64_t i = 0; i < bins; i++) bin[i] = static_cast<Number>(elements / bins + (i < elements % bins));
}

// Writes the placeholder result of bincount and histc, e.g. how many tokens a router sends to each expert. Programs size
// buffers and sends by these counts, so they have to add up; they are even, because routers are trained to balance.
void write_placeholder_counts(const Tally& tally, void* data, size_t bytes) {
  if (tally.elements == 0 || bytes == 0) return;
  switch (tally.type) {
    case c10::ScalarType::Long: maya_values_guessed(data, bytes); return count_evenly<int64_t>(tally.elements, data, bytes);
    case c10::ScalarType::Int: maya_values_guessed(data, bytes); return count_evenly<int32_t>(tally.elements, data, bytes);
    case c10::ScalarType::Float: maya_values_guessed(data, bytes); return count_evenly<float>(tally.elements, data, bytes);
    case c10::ScalarType::Double: maya_values_guessed(data, bytes); return count_evenly<double>(tally.elements, data, bytes);
    default: return;
  }
}

struct PlaceholderJob {
  const Operator* op;
  Written written;
};

void write_placeholders(const Operator& op, const Written& written) {
  maya_values_set_placeholder_ranges(written.ranges.data(), written.ranges.size());
  for (const TensorView& view : written.views) mark_placeholder(view);
  if (written.ranges.size() != 1) return;
  write_placeholder_truth(op, const_cast<void*>(written.ranges[0].address), written.ranges[0].size);
  write_placeholder_counts(written.tally, const_cast<void*>(written.ranges[0].address), written.ranges[0].size);
}

void run_placeholder_job(void* argument) {
  const auto* job = static_cast<PlaceholderJob*>(argument);
  write_placeholders(*job->op, job->written);
}

void release_placeholder_job(void* argument) { delete static_cast<PlaceholderJob*>(argument); }

}  // namespace

void replace_non_finite(const TensorView& view) {
  if (view.bytes == 0 || !view.dense) return;
  switch (view.dtype) {
    case c10::ScalarType::Float: return zero_where_exponent_is_full<uint32_t>(view, 0x7F800000u);
    case c10::ScalarType::Double: return zero_where_exponent_is_full<uint64_t>(view, 0x7FF0000000000000ull);
    case c10::ScalarType::Half: return zero_where_exponent_is_full<uint16_t>(view, 0x7C00u);
    case c10::ScalarType::BFloat16: return zero_where_exponent_is_full<uint16_t>(view, 0x7F80u);
    default: return;
  }
}

void write_placeholders(const Call& call) {
  for_each_result(call, mark_placeholder);
  if (call.outputs.size() != 1 || !call.outputs[0].dense) return;
  write_placeholder_truth(*call.op, call.outputs[0].data, call.outputs[0].bytes);
  write_placeholder_counts(call.tally, call.outputs[0].data, call.outputs[0].bytes);
}

Tally tally_of(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  const at::Tensor& counted = inputs[0].toTensor();
  if (is_symbolic(counted)) return {};
  if (op.name == "aten::histc") return {counted.numel(), counted.scalar_type()};
  const bool has_weights = inputs.size() > 1 && inputs[1].isTensor() && inputs[1].toTensor().defined();
  return {has_weights ? 0 : counted.numel(), c10::ScalarType::Long};
}

void mark_results_as_placeholders(void* stream, const Operator& op, const Written& written) {
  if (!maya_commands_are_queued() && !maya_stream_is_capturing(stream)) write_placeholders(op, written);
  else submit(stream, run_placeholder_job, release_placeholder_job, new PlaceholderJob{&op, written});
}

}  // namespace maya
