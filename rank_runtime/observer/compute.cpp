// Computes an op, or makes its results placeholders.
//
// inputs known          -> computed; the results are known. Once the program has made a choice (choices.h), ops on integers are
//                          computed at any size, and ops on floating-point numbers that follow from it up to a larger size
// tiny, inputs unknown  -> computed from the placeholder zeros, with non-finite results replaced by zero; the results stay
//                          placeholders, but consistent ones: isfinite(loss) is true, loss > 10 is false
// otherwise             -> the results are placeholders that read as zero, with two exceptions: `all` returns true, so that
//                          isfinite(x).all() passes, and counts (bincount, histc) are even and sum to the number of elements

#include "compute.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/count_nonzero.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "../shim/device/internal.h"
#include "choices.h"
#include "kernel_free_ops.h"
#include "one_thread.h"
#include "random.h"
#include "result_cache.h"
#include "cpu_equivalents.h"

namespace maya {
namespace {

constexpr size_t kGuessBytes = 1024;  // an op is tiny when its tensors together are smaller

// While it exists, no known bytes are evicted.
struct ValuesHeld {
  ValuesHeld() { maya_values_hold(); }
  ~ValuesHeld() { maya_values_release(); }
  ValuesHeld(const ValuesHeld&) = delete;
  ValuesHeld& operator=(const ValuesHeld&) = delete;
};

// Dispatches to CPU kernels only, without the program's autograd, autocast and dispatch modes.
struct PlainDispatch {
  c10::impl::ForceDispatchKeyGuard keys{c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
  OneThread one_thread;
};

c10::IValue alias_list(const Argument& argument) {
  if (!argument.optional_list) {
    c10::List<at::Tensor> list;
    for (const TensorView& view : argument.tensors) list.push_back(cpu_alias(view));
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  for (const TensorView& view : argument.tensors) {
    if (view.dtype == c10::ScalarType::Undefined) list.push_back(std::nullopt);
    else list.push_back(cpu_alias(view));
  }
  return list;
}

// The result that belongs to an `out` argument. The op may have resized the argument and thereby moved its memory.
const TensorView* output_for(const Call& call, size_t argument) {
  if (!call.op->is_out[argument]) return nullptr;
  size_t position = 0;
  for (size_t i = 0; i < argument; i++) position += call.op->is_out[i];
  return position < call.outputs.size() && call.outputs[position].on_gpu() ? &call.outputs[position] : nullptr;
}

std::vector<c10::IValue> stack_of(const Call& call) {
  std::vector<c10::IValue> stack;
  stack.reserve(call.arguments.size());
  for (size_t i = 0; i < call.arguments.size(); i++) {
    const Argument& argument = call.arguments[i];
    if (const TensorView* output = output_for(call, i)) {
      stack.emplace_back(cpu_alias(*output));
    } else if (argument.kind == Argument::Kind::kTensor && argument.tensors[0].on_gpu()) {
      stack.emplace_back(cpu_alias(argument.tensors[0]));
    } else if (argument.kind == Argument::Kind::kTensorList) {
      stack.push_back(alias_list(argument));
    } else if (call.values[i].isDevice()) {
      stack.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else if (call.values[i].isGenerator() || (call.op->takes_generator && is_generator_argument(*call.op, i))) {
      stack.emplace_back(cpu_generator(call.random_seed, call.random_offset));
    } else {
      stack.push_back(call.values[i]);
    }
  }
  return stack;
}

void flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) flatten(element, tensors);
  }
}

bool is_written_argument(const Call& call, const TensorView& output) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.writes[i]) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (view.data == output.data) return true;
    }
  }
  return false;
}

// Runs the op; its exceptions propagate.
std::vector<at::Tensor> results_of(const Call& call) {
  std::vector<c10::IValue> stack = stack_of(call);
  const CpuEquivalent equivalent = cpu_equivalent_for(*call.op);
  if (equivalent != nullptr) {
    at::Generator generator;
    if (call.op->draws_by_default) generator = cpu_generator(call.random_seed, call.random_offset);
    stack = equivalent(Arguments(*call.op, std::move(stack), std::move(generator)));
  } else {
    TORCH_CHECK(call.op->has_cpu_kernel(), "it has no CPU kernel");
    TORCH_CHECK(!call.op->draws_by_default, "its CPU kernel would take the program's own random numbers");
    call.op->handle->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) flatten(value, results);
  return results;
}

// Runs the op and copies its results to the call's outputs.
void compute_uncached(const Call& call) {
  PlainDispatch plain;
  const std::vector<at::Tensor> results = results_of(call);
  TORCH_CHECK(results.size() >= call.outputs.size(), "its CPU kernel has ", results.size(), " results instead of ",
              call.outputs.size());
  for (size_t i = 0; i < call.outputs.size(); i++) {
    const TensorView& output = call.outputs[i];
    if (!output.on_gpu() || output.bytes == 0 || is_written_argument(call, output)) continue;
    if (!results[i].defined() || results[i].const_data_ptr() == output.data) continue;
    at::Tensor target = cpu_alias(output);
    TORCH_CHECK(results[i].numel() == target.numel(), "result ", i, " of its CPU kernel has shape ", results[i].sizes(),
                " instead of ", target.sizes());
    target.copy_(results[i].reshape(target.sizes()));
  }
}

// Computes the call by the cheapest way. With --compute all the cache is not used: few calls repeat there.
void compute(const Call& call, bool all) {
  if (compute_without_kernel(call)) return;
  if (all) return compute_uncached(call);
  const CachedCall cached(call);
  if (cached.load()) return;
  compute_uncached(call);
  cached.store();
}

void for_each_result(const Call& call, void (*visit)(const TensorView&)) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.writes[i]) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (view.on_gpu()) visit(view);
    }
  }
  for (const TensorView& output : call.outputs) {
    if (output.on_gpu()) visit(output);
  }
}

bool inputs_are_known(const Call& call) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.reads_argument(i)) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (!is_known(view)) return false;
    }
  }
  return true;
}

bool inputs_are_assumed(const Call& call) {
  if (!choices_exist()) return false;
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.reads_argument(i)) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (is_assumed(view)) return true;
    }
  }
  return false;
}

bool results_are_integers(const Call& call) {
  const auto others = [](const TensorView& view) { return view.on_gpu() && !has_integers(view); };
  for (size_t i = 0; i < call.arguments.size(); i++) {
    const auto& tensors = call.arguments[i].tensors;
    if (call.writes[i] && std::any_of(tensors.begin(), tensors.end(), others)) return false;
  }
  return std::none_of(call.outputs.begin(), call.outputs.end(), others);
}

template <typename Bits>
void zero_where_exponent_is_full(const TensorView& view, Bits exponent) {
  auto* element = static_cast<Bits*>(view.data);
  for (size_t i = 0; i < view.bytes / sizeof(Bits); i++) {
    if ((element[i] & exponent) == exponent) element[i] = 0;
  }
}

// Replaces infinities and NaNs, the numbers with all exponent bits set, by zero.
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

void write_placeholders(const Call& call) {
  for_each_result(call, mark_placeholder);
  if (call.outputs.size() != 1 || !call.outputs[0].dense) return;
  write_placeholder_truth(*call.op, call.outputs[0].data, call.outputs[0].bytes);
  write_placeholder_counts(call.tally, call.outputs[0].data, call.outputs[0].bytes);
}

bool sets_zero(const Operator& op, c10::ArrayRef<const c10::IValue> values) {
  return op.fills && values[1].isScalar() && !values[1].toScalar().isComplex() && values[1].toScalar().toDouble() == 0.0;
}

// A tensor of zeros is known without touching a page.
bool set_zero(const Call& call) {
  const TensorView& target = call.arguments[0].tensors[0];
  const c10::ArrayRef<const c10::IValue> values(call.values.data(), call.values.size());
  if (!sets_zero(*call.op, values) || !target.dense) return false;
  constexpr char kZero = 0;
  maya_values_fill(target.data, &kZero, sizeof kZero, target.bytes, target.bytes);
  return true;
}

size_t result_bytes(const Call& call, bool integers) {
  size_t bytes = 0;
  for (const TensorView& output : call.outputs) bytes += output.on_gpu() && has_integers(output) == integers ? output.bytes : 0;
  return bytes;
}

// Whether the results of a call that is not small can be kept.
bool have_room(const Call& call) {
  const size_t integers = result_bytes(call, true), others = result_bytes(call, false);
  return (integers == 0 || maya_values_room_to_compute(integers, MAYA_CONTENT_OTHER)) &&
         (others == 0 || maya_values_room_to_compute(others, MAYA_CONTENT_FLOATING));
}

void mark_results(const Call& call, bool assumed) {
  const bool large = static_cast<int64_t>(call.gpu_bytes()) > maya_get_settings()->compute_bytes;
  const bool joins_objects = call.op->joins && call.outputs[0].dtype == c10::ScalarType::Byte;
  if (assumed) for_each_result(call, [](const TensorView& view) { mark_computed(view, true); });
  else if (large && !joins_objects) for_each_result(call, [](const TensorView& view) { mark_computed(view, false); });
  else for_each_result(call, mark_known);
}

// A choice among scores that are placeholders, follow from other choices, or are too large to be computed from.
bool choose(const Call& call, bool known, bool assumed) {
  if (call.place < 0) return false;
  if (known && !assumed && static_cast<int64_t>(call.gpu_bytes()) <= maya_get_settings()->compute_bytes) return false;
  for_each_result(call, mark_placeholder);
  try {
    PlainDispatch plain;
    choose_by_rule(call, known && assumed);
  } catch (const std::exception& error) {
    report_once(*call.op, error.what());
    write_placeholders(call);
  }
  return true;
}

void apply(const Call& call) {
  const bool all = maya_get_settings()->compute == MAYA_COMPUTE_ALL;
  const bool large = !all && call.any_size && static_cast<int64_t>(call.gpu_bytes()) > maya_get_settings()->compute_bytes;
  if (large && set_zero(call)) return;
  if (large && !have_room(call)) {
    write_placeholders(call);
    return;
  }
  const ValuesHeld values_held;
  const bool known = inputs_are_known(call);
  const bool assumed = inputs_are_assumed(call);
  if (choose(call, known, assumed)) return;
  if (large && !assumed && !results_are_integers(call)) {
    write_placeholders(call);
    return;
  }
  if (!known && !all && (call.gpu_bytes() >= kGuessBytes || call.op->reports_errors || call.tally.elements > 0)) {
    write_placeholders(call);
    return;
  }
  try {
    compute(call, all);
    if (!known && !all) for_each_result(call, replace_non_finite);
    // Mark results that were known before as well: they may have been lazy zeros, for which no page was touched.
    if (known) mark_results(call, assumed);
    else for_each_result(call, mark_guessed);
  } catch (const c10::Error& error) {
    report_once(*call.op, error.what_without_backtrace());
    write_placeholders(call);
  } catch (const std::exception& error) {
    report_once(*call.op, error.what());
    write_placeholders(call);
  }
}

void run_call(void* argument) { apply(*static_cast<Call*>(argument)); }

void release_call(void* argument) { delete static_cast<Call*>(argument); }

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

// A block that PyTorch's caching allocator returned.
struct Block {
  void* address;
  size_t size;
};

void apply_to_blocks(const Call& call, const std::vector<Block>& blocks) {
  const ValuesHeld values_held;
  if (!inputs_are_known(call)) return;
  std::vector<at::Tensor> results;
  try {
    PlainDispatch plain;
    results = results_of(call);
  } catch (const std::exception& error) {
    report_once(*call.op, error.what());
    return;
  }
  // Blocks are matched to results of their size, in order; dropout allocates its second result, the mask, first.
  if (call.op->name == "aten::native_dropout") std::reverse(results.begin(), results.end());
  uint32_t taken = 0;  // a bit for every block
  for (const at::Tensor& result : results) {
    if (!result.defined() || result.nbytes() == 0 || !result.is_non_overlapping_and_dense()) continue;
    for (size_t i = 0; i < blocks.size(); i++) {
      const Block& block = blocks[i];
      const size_t rounded = (result.nbytes() + 511) / 512 * 512;  // as the allocator rounds
      if (taken >> i & 1 || block.size != rounded) continue;
      taken |= 1u << i;
      memcpy(block.address, result.const_data_ptr(), result.nbytes());
      maya_values_known(block.address, result.nbytes());
      break;
    }
  }
}

struct Abandoned {
  Call call;
  std::vector<Block> blocks;
};

void run_abandoned(void* argument) {
  const auto* job = static_cast<Abandoned*>(argument);
  apply_to_blocks(job->call, job->blocks);
}

void release_abandoned(void* argument) { delete static_cast<Abandoned*>(argument); }

void submit(void* stream, void (*run)(void*), void (*release)(void*), void* argument) {
  maya_command command{};
  command.run = run;
  command.release = release;
  command.argument = argument;
  command.unrecorded = true;
  maya_submit(stream, &command);
}

}  // namespace

void report_once(const Operator& op, const char* problem) {
  static std::mutex lock;
  static auto& said = *new std::unordered_set<const Operator*>;  // never destroyed, as in result_cache.cpp
  const maya_settings* settings = maya_get_settings();
  if (settings->compute != MAYA_COMPUTE_ALL && settings->debug == 0) return;
  std::lock_guard<std::mutex> guard(lock);
  if (!said.insert(&op).second) return;
  std::string first_line(problem);
  first_line.resize(std::min(first_line.find('\n'), first_line.size()));
  maya_message("%s%s%s cannot be computed, so its results are placeholders: %s", op.name.c_str(),
               op.overload.empty() ? "" : ".", op.overload.c_str(), first_line.c_str());
}

size_t Call::gpu_bytes() const {
  size_t bytes = 0;
  for (const Argument& argument : arguments) {
    for (const TensorView& view : argument.tensors) bytes += view.on_gpu() ? view.bytes : 0;
  }
  for (const TensorView& output : outputs) bytes += output.on_gpu() ? output.bytes : 0;
  return bytes;
}

bool Call::reads_argument(size_t index) const {
  return op->reads_argument(c10::ArrayRef<const c10::IValue>(values.data(), values.size()), index);
}

Tally tally_of(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  const at::Tensor& counted = inputs[0].toTensor();
  if (is_symbolic(counted)) return {};
  if (op.name == "aten::histc") return {counted.numel(), counted.scalar_type()};
  const bool has_weights = inputs.size() > 1 && inputs[1].isTensor() && inputs[1].toTensor().defined();
  return {has_weights ? 0 : counted.numel(), c10::ScalarType::Long};
}

int64_t limit_of_computing(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, const Scan& scan) {
  if (maya_get_settings()->compute != MAYA_COMPUTE_SMALL || !choices_exist()) return 0;
  if (op.is_gemm || op.takes_generator || op.draws_by_default) return 0;
  if (scan.all_integers || sets_zero(op, inputs)) return INT64_MAX;
  return scan.gpu_bytes <= kMostAssumedBytes ? kMostAssumedBytes : 0;
}

bool is_certainly_placeholder(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, int64_t gpu_bytes) {
  if (maya_get_settings()->compute == MAYA_COMPUTE_ALL) return false;
  if (gpu_bytes < static_cast<int64_t>(kGuessBytes) && !op.reports_errors && !op.tallies) return false;
  if (maya_commands_are_queued() || maya_captures_exist()) return false;  // its inputs may be known when it runs
  for (size_t i = 0; i < inputs.size() && i < op.reads.size(); i++) {
    if (!op.reads_argument(inputs, i)) continue;
    if (inputs[i].isTensor() && starts_with_placeholder(inputs[i].toTensor())) return true;
    if (!inputs[i].isTensorList()) continue;
    for (const c10::IValue& element : inputs[i].toListRef()) {
      if (starts_with_placeholder(element.toTensor())) return true;
    }
  }
  return false;
}

void apply_in_stream(void* stream, Call& call) {
  if (!maya_commands_are_queued() && !maya_stream_is_capturing(stream)) {
    apply(call);
    return;
  }
  submit(stream, run_call, release_call, new Call(std::move(call)));
}

void mark_results_as_placeholders(void* stream, const Operator& op, const Written& written) {
  if (!maya_commands_are_queued() && !maya_stream_is_capturing(stream)) write_placeholders(op, written);
  else submit(stream, run_placeholder_job, release_placeholder_job, new PlaceholderJob{&op, written});
}

bool writes_argument(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, size_t index) {
  if (index >= op.writes.size()) return false;
  if (op.writes[index]) return true;
  const int position = static_cast<int>(index);
  const bool is_statistic = op.first_statistic >= 0 && (position == op.first_statistic || position == op.first_statistic + 1);
  return is_statistic && inputs[op.training_flag].isBool() && inputs[op.training_flag].toBool();
}

void apply_to_new_blocks(void* stream, Call& call, uint32_t blocks_before) {
  const maya_thread* thread = maya_this_thread();
  const uint32_t count = thread->blocks - blocks_before;
  if (count == 0 || count > MAYA_RECENT_BLOCKS) return;
  std::vector<Block> blocks;
  for (uint32_t i = 0; i < count; i++) {
    const auto& block = thread->recent_blocks[(blocks_before + i) % MAYA_RECENT_BLOCKS];
    blocks.push_back({block.address, block.size});
  }
  if (!maya_commands_are_queued()) apply_to_blocks(call, blocks);
  else submit(stream, run_abandoned, release_abandoned, new Abandoned{std::move(call), std::move(blocks)});
}

int64_t count_of_elements(const Call& call) {
  const ValuesHeld values_held;
  if (!inputs_are_known(call)) return -1;
  if (inputs_are_assumed(call)) maya_record_assumed_read(sizeof(int64_t));
  try {
    PlainDispatch plain;
    std::vector<c10::IValue> stack = stack_of(call);
    if (call.op->name == "aten::nonzero") return at::count_nonzero(stack[0].toTensor()).item<int64_t>();
    call.op->handle->callBoxed(stack);
    return stack[0].toTensor().size(0);
  } catch (const std::exception&) {
    return -1;  // the op itself will report what is wrong with its arguments
  }
}

}  // namespace maya
