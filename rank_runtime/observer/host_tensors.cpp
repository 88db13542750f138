// Large host tensors: torch's dispatcher calls the observer before each op with such a tensor, and the op is skipped where
// its contents would be placeholders.
//
// In: ops with a tensor whose memory is tracked (host_allocator.cpp). Such a tensor has one dispatch key more than others,
// which torch does not use and which comes after autograd and before CPU and CUDA; so ops on all other tensors cost the same
// as without Maya. Out: the op's results, and which of their bytes are placeholders (host_memory.h).
//
// random numbers, large        -> placeholders
// zeros                        -> known, without a page
// from placeholders            -> placeholders; the op runs on the Meta device to find the shapes of its results
// from small placeholders only -> computed, but still placeholders
// otherwise                    -> computed

#include "host_tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/empty_strided_native.h>
#include <ATen/ops/set_native.h>
#include <torch/library.h>

#include <cstring>
#include <unordered_map>

#include "../shim/device/host_values.h"
#include "../shim/device/internal.h"
#include "frames.h"
#include "host_allocator.h"
#include "host_memory.h"
#include "host_reads.h"
#include "host_zeros.h"
#include "source_line.h"
#include "torch_private.h"

namespace maya {
namespace {

using Stack = torch::jit::Stack;

thread_local bool runs_for_real = false;  // inside an op that is computed, its parts are computed as well

class RunsForReal {
 public:
  RunsForReal() { runs_for_real = true; }
  ~RunsForReal() { runs_for_real = before_; }
  RunsForReal(const RunsForReal&) = delete;
  RunsForReal& operator=(const RunsForReal&) = delete;

 private:
  bool before_ = runs_for_real;
};

// Ops that run meanwhile are the observer's own.
class Inferring {
 public:
  Inferring() { thread_.computing = true; }
  ~Inferring() { thread_.computing = before_; }
  Inferring(const Inferring&) = delete;
  Inferring& operator=(const Inferring&) = delete;

 private:
  Thread& thread_ = this_thread();
  bool before_ = thread_.computing;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard without_autocast_{c10::autocast_dispatch_keyset};
};

// ---- tensors whose memory is tracked ----

void follow(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (maya_host_is_tracked(storage->data(), storage->nbytes())) add_key(*tensor.unsafeGetTensorImpl(), kHostTensorKey);
}

// Pinned blocks come from another allocator, which tracks all of them.
void follow_new(const at::Tensor& tensor, std::optional<bool> pinned) {
  const size_t bytes = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  if (pinned.value_or(false) || maya_host_makes_placeholders(bytes)) follow(tensor);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  at::Tensor tensor = at::native::empty_cpu(size, dtype, layout, device, pinned, format);
  follow_new(tensor, pinned);
  return tensor;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pinned) {
  at::Tensor tensor = at::native::empty_strided_cpu(size, stride, dtype, layout, device, pinned);
  follow_new(tensor, pinned);
  return tensor;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
  follow(self);
  return self;
}

// ---- the arguments of an op ----

// The op's arguments are the last on the stack.
struct Inputs {
  const Operator& op;
  Stack& stack;
  size_t count = op.handle->schema().arguments().size();

  const c10::IValue& operator[](size_t index) const { return stack[stack.size() - count + index]; }
  // Not in braces: those would be a list of two values.
  c10::ArrayRef<const c10::IValue> all() const {
    return c10::ArrayRef<const c10::IValue>(stack.data() + stack.size() - count, count);
  }
  void replace_by(c10::IValue result) const {
    stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    stack.push_back(std::move(result));
  }
};

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  }
}

void report_read(const Operator& op, size_t bytes) {
  const bool is_error = maya_host_report_read(op.name.c_str(), bytes);
  TORCH_CHECK(!is_error, "--strict-values: ", op.name, " reads placeholder values");
}

// ---- computed ops ----

void run(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kHostTensorKey), stack);
}

std::vector<at::Tensor> written_tensors(const Inputs& inputs) {
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < inputs.count; i++) {
    if (!inputs.op.writes[i]) continue;
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      if (is_on_host(tensor)) written.push_back(tensor);
    });
  }
  return written;
}

void compute(const Inputs& inputs, c10::DispatchKeySet keys) {
  const std::vector<at::Tensor> written = written_tensors(inputs);
  {
    const RunsForReal real;
    run(*inputs.op.handle, keys, &inputs.stack);
  }
  for (const at::Tensor& tensor : written) set_known(tensor);
}

template <typename Bits>
void zero_where_exponent_is_full(const HostMemory& memory, Bits exponent) {
  auto* element = reinterpret_cast<Bits*>(memory.start);
  for (size_t i = 0; i < memory.bytes / sizeof(Bits); i++) {
    if ((element[i] & exponent) == exponent) element[i] = 0;
  }
}

// A finite placeholder passes checks for infinities and NaNs, as on the device.
void replace_non_finite(const at::Tensor& tensor) {
  const HostMemory memory = memory_of(tensor);
  if (memory.empty() || !memory.dense) return;
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float: return zero_where_exponent_is_full<uint32_t>(memory, 0x7F800000u);
    case c10::ScalarType::Double: return zero_where_exponent_is_full<uint64_t>(memory, 0x7FF0000000000000ull);
    case c10::ScalarType::Half: return zero_where_exponent_is_full<uint16_t>(memory, 0x7C00u);
    case c10::ScalarType::BFloat16: return zero_where_exponent_is_full<uint16_t>(memory, 0x7F80u);
    default: return;
  }
}

// Small results keep the bytes that were computed from placeholders.
void keep_placeholder(const at::Tensor& tensor) {
  if (maya_host_makes_placeholders(memory_of(tensor).bytes)) {
    set_placeholder(tensor);
    return;
  }
  replace_non_finite(tensor);
  mark_computed_placeholder(tensor);
}

// Runs an op on placeholders. Its results are placeholders, whatever bytes they have.
void compute_placeholders(const Inputs& inputs, c10::DispatchKeySet keys) {
  const std::vector<at::Tensor> written = written_tensors(inputs);
  const size_t rest = inputs.stack.size() - inputs.count;
  {
    const RunsForReal real;
    const TracksAllSizes tracks_all_sizes;
    run(*inputs.op.handle, keys, &inputs.stack);
  }
  for (const at::Tensor& tensor : written) {
    if (memory_of(tensor).is_tracked()) keep_placeholder(tensor);
    else report_read(inputs.op, memory_of(tensor).bytes);  // from here on nobody would know
  }
  for (size_t i = rest; i < inputs.stack.size(); i++) {
    for_each_tensor(inputs.stack[i], [](const at::Tensor& result) {
      if (!is_on_host(result) || !memory_of(result).is_tracked()) return;
      follow(result);
      keep_placeholder(result);
    });
  }
}

// ---- skipped ops ----

// Runs the op on the Meta device, and makes host tensors like its results.
class Inference {
 public:
  // false: the Meta device cannot run it.
  bool run(const Inputs& inputs) {
    const Inferring inferring;
    try {
      for (const c10::IValue& value : inputs.all()) results_.push_back(meta_of(value));
      inputs.op.handle->callBoxed(results_);
    } catch (const c10::NotImplementedError& error) {
      // An op that returns nothing (an optimizer's step over lists) has no shapes to find.
      return inputs.op.handle->schema().returns().empty() || report(inputs.op, error.what_without_backtrace());
    } catch (const c10::Error& error) {
      return report(inputs.op, error.what_without_backtrace());
    } catch (const std::exception& error) {
      return report(inputs.op, error.what());
    }
    // An `out` tensor that the op would resize has other memory afterwards.
    for (const auto& [meta, original] : originals_) {
      if (meta->sizes() != original.sizes()) return false;
    }
    return true;
  }

  void push_results(const Inputs& inputs) {
    inputs.stack.erase(inputs.stack.end() - static_cast<std::ptrdiff_t>(inputs.count), inputs.stack.end());
    if (inputs.op.handle->schema().returns().empty()) return;
    for (const c10::IValue& value : results_) inputs.stack.push_back(host_of(value, inputs.op));
  }

 private:
  static bool report(const Operator& op, const char* problem) {
    if (maya_get_settings()->debug > 0) maya_message("%s of placeholders runs on the host: %s", op.name.c_str(), problem);
    return false;
  }

  at::Tensor meta_of(const at::Tensor& tensor) {
    // torch takes Python numbers to be on the CPU.
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
    at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::DeviceType::Meta));
    arguments_.push_back(meta);
    originals_.emplace(meta.unsafeGetTensorImpl(), tensor);
    return meta;
  }

  c10::IValue meta_of(const c10::IValue& value) {
    if (value.isTensor()) return meta_of(value.toTensor());
    if (value.isDevice()) return c10::Device(c10::DeviceType::Meta);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(meta_of(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::make_optional(meta_of(*tensor)) : std::nullopt);
      }
      return list;
    }
    return value;
  }

  at::Tensor host_of(const at::Tensor& meta, const Operator& op) {
    if (!meta.defined()) return meta;
    const auto original = originals_.find(meta.unsafeGetTensorImpl());
    if (original != originals_.end()) return original->second;
    const TracksAllSizes tracks_all_sizes;
    at::Tensor made = at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(c10::DeviceType::CPU));
    const HostMemory memory = memory_of(made);
    follow(made);
    if (memory.empty()) return made;
    maya_host_set_placeholder(memory.start, memory.bytes);
    if (op.name == "aten::all") std::memset(memory.start, 1, memory.bytes);  // isfinite(x).all() passes
    return made;
  }

  c10::IValue host_of(const c10::IValue& value, const Operator& op) {
    if (value.isTensor()) return host_of(value.toTensor(), op);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(host_of(tensor, op));
      return list;
    }
    return value;
  }

  Stack results_;
  std::vector<at::Tensor> arguments_;  // keeps the keys of `originals_` alive
  std::unordered_map<const c10::TensorImpl*, at::Tensor> originals_;
};

bool skip(const Inputs& inputs) {
  const std::vector<at::Tensor> written = written_tensors(inputs);
  bool has_room = written.empty();
  for (const at::Tensor& tensor : written) has_room = has_room || memory_of(tensor).is_tracked();
  Inference inference;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!has_room || !inference.run(inputs)) return false;
  for (const at::Tensor& tensor : written) set_placeholder(tensor);  // small real ones among many keep their values
  inference.push_results(inputs);
  return true;
}

// ---- the forms of ops ----

// What an op reads.
struct Contents {
  bool all_on_host = true, has_placeholder = false;
  bool has_untouched = false, has_real = false;  // large tensors that were never written; tensors with contents
  bool has_large = false;                        // a placeholder, that is
};

Contents contents_of(const Inputs& inputs) {
  Contents found;
  for (size_t i = 0; i < inputs.count; i++) {
    const bool is_read = inputs.op.reads_argument(inputs.all(), i);
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      found.all_on_host = found.all_on_host && is_on_host(tensor);
      if (!found.all_on_host || !is_read) return;
      const HostMemory memory = memory_of(tensor);
      if (memory.has_placeholder()) {
        found.has_placeholder = true;
        found.has_large = found.has_large || maya_host_makes_placeholders(memory.span);
      } else if (memory.is_untouched_and_large()) {
        found.has_untouched = true;
      } else {
        found.has_real = found.has_real || tensor.dim() > 0;
      }
    });
  }
  return found;
}

void run_general(const Inputs& inputs, c10::DispatchKeySet keys) {
  if (const std::optional<size_t> zeros = scaled_zeros(inputs.op, inputs.all())) return inputs.replace_by(inputs[*zeros]);
  const Contents contents = contents_of(inputs);
  if (!contents.all_on_host) return run(*inputs.op.handle, keys, &inputs.stack);
  const bool is_untouched = contents.has_untouched && !contents.has_real;
  if (!contents.has_placeholder && !is_untouched) return compute(inputs, keys);
  if ((contents.has_large || is_untouched) && skip(inputs)) return;
  if (contents.has_placeholder) compute_placeholders(inputs, keys);
  else compute(inputs, keys);
}

// Takes one number, so that the state of the generator still depends on how often it was used.
void advance(const c10::IValue& generator) {
  auto given = generator.isGenerator() ? std::make_optional(generator.toGenerator()) : std::nullopt;
  auto* state = at::get_generator_or_default<at::CPUGeneratorImpl>(given, at::detail::getDefaultCPUGenerator());
  std::lock_guard<std::mutex> guard(state->mutex_);
  state->random64();
}

void run_random(const Inputs& inputs, c10::DispatchKeySet keys) {
  const at::Tensor self = inputs[0].toTensor();
  const bool is_number = c10::isFloatingType(self.scalar_type()) || c10::isComplexType(self.scalar_type());
  if (!is_on_host(self) || !is_number || !maya_host_makes_placeholders(memory_of(self).bytes) || !set_placeholder(self)) {
    return run_general(inputs, keys);
  }
  advance(inputs[inputs.count - 1]);
  inputs.replace_by(self);
}

// The number that fill_ writes; nullopt: it is itself a placeholder.
std::optional<c10::Scalar> fill_value(const Inputs& inputs) {
  if (inputs.count == 1) return c10::Scalar(0);  // zero_
  if (!inputs[1].isTensor()) return inputs[1].toScalar();
  const at::Tensor& value = inputs[1].toTensor();
  if (!is_on_host(value) || value.numel() != 1 || memory_of(value).has_placeholder()) return std::nullopt;
  return value.item();
}

void run_fill(const Inputs& inputs, c10::DispatchKeySet keys) {
  const at::Tensor self = inputs[0].toTensor();
  const std::optional<c10::Scalar> value = is_on_host(self) ? fill_value(inputs) : std::nullopt;
  if (!value) return run_general(inputs, keys);
  const HostMemory memory = memory_of(self);
  const bool is_zero = value->isFloatingPoint() ? value->toDouble() == 0.0 : value->equal(0);
  const bool is_number = c10::isFloatingType(self.scalar_type()) || c10::isComplexType(self.scalar_type());
  const bool is_large = maya_host_makes_placeholders(memory.bytes);
  if (is_large && is_zero && memory.dense && memory.is_tracked()) {
    set_zero(memory);
    return inputs.replace_by(self);
  }
  const bool is_kept = static_cast<int64_t>(memory.bytes) <= maya_get_settings()->copy_bytes;
  if (is_large && is_number && !is_kept && set_placeholder(self)) return inputs.replace_by(self);
  compute(inputs, keys);
}

void run_copy(const Inputs& inputs, c10::DispatchKeySet keys) {
  const at::Tensor to = inputs[0].toTensor(), from = inputs[1].toTensor();
  if (!is_on_host(to) || !is_on_host(from)) return run(*inputs.op.handle, keys, &inputs.stack);
  const HostMemory source = memory_of(from), target = memory_of(to);
  if (!at::is_expandable_to(from.sizes(), to.sizes())) return compute(inputs, keys);  // an error
  if (source.has_placeholder()) {
    if (set_placeholder(to)) return inputs.replace_by(to);
    return compute_placeholders(inputs, keys);
  }
  if (target.dense && target.is_tracked() && (source.is_zero_and_large() || source.is_untouched_and_large())) {
    set_zero(target);
    return inputs.replace_by(to);
  }
  compute(inputs, keys);
}

void run_read(const Inputs& inputs, c10::DispatchKeySet keys) {
  size_t bytes = 0;
  for (size_t i = 0; i < inputs.count; i++) {
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      if (is_on_host(tensor) && memory_of(tensor).has_placeholder()) bytes += memory_of(tensor).bytes;
    });
  }
  if (bytes > 0) report_read(inputs.op, bytes);
  run(*inputs.op.handle, keys, &inputs.stack);
}

// The dispatcher calls it for every op with a tensor that has the key.
void run_op(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  if (runs_for_real || !maya_host_makes_placeholders(INT64_MAX)) return run(handle, keys, stack);
  const Operator& op = operator_of(handle.schema(), this_thread().operators);
  const Inputs inputs{op, *stack};
  switch (op.host_form) {
    case Operator::HostForm::kPass: return run(handle, keys, stack);
    case Operator::HostForm::kRandom: return run_random(inputs, keys);
    case Operator::HostForm::kFill: return run_fill(inputs, keys);
    case Operator::HostForm::kCopy: return run_copy(inputs, keys);
    case Operator::HostForm::kRead: return run_read(inputs, keys);
    case Operator::HostForm::kGeneral: return run_general(inputs, keys);
  }
}

// torch warns when a kernel takes the place of another.
struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void watch_host_tensors() {
  static bool done = false;
  maya_set_source_finder(find_source_line);
  if (done || maya_get_settings()->host_tensors == MAYA_HOST_TENSORS_REAL) return;
  done = true;
  NoWarnings handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  // A fallback alone would come after kernels that compose other ops for all backends.
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& kernels = *new std::vector<c10::RegistrationHandleRAII>;  // never destroyed, as in optimizers.cpp
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle || (!handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) && name.name != "aten::copy_")) continue;
    kernels.push_back(dispatcher.registerImpl(name, kHostTensorKey, c10::KernelFunction::makeFromBoxedFunction<&run_op>(),
                                              std::nullopt, nullptr, "host_tensors.cpp"));
  }
  auto& all = *new torch::Library(torch::Library::IMPL, "_", kHostTensorKey, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_op>());
  auto& aten = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  replace_cpu_allocator();
  watch_host_reads();
}

}  // namespace maya
