// The op observer: sees every op that PyTorch dispatches, tells the recorder which op a kernel launch belongs to, and computes
// the small ops whose values a program may read.
//
// In: the start and the end of every at::RecordFunction, on the thread that runs the op. If no profiler is active, Maya's
// functions in the place of libtorch's call the observer (shim/device/record_function.c); otherwise the observer is one of
// torch's RecordFunction callbacks. Out: op records in the trace, and results in memory. libmaya_device.so loads this library
// when a process that has torch first uses a device.

#include <ATen/SparseTensorImpl.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>

#include "../shim/device/internal.h"
#include "../shim/device/routing.h"
#include "callback_cost.h"
#include "call_sites.h"
#include "choices.h"
#include "arguments.h"
#include "compute.h"
#include "data_pointer.h"
#include "frames.h"
#include "integer_ops.h"
#include "host_tensors.h"
#include "autograd_nodes.h"
#include "torch_private.h"
#include "operators.h"
#include "optimizers.h"
#include "argument_scan.h"
#include "signature.h"
#include "source_line.h"

namespace maya {
namespace {

const char* current_op_name() {
  Thread& self = this_thread();
  const Frame* top = self.top();
  if (top == nullptr) return "";
  if (!top->is_node) return top->op != nullptr ? top->op->name.c_str() : top->name;
  self.node_name = name_of_node(self);
  return self.node_name.c_str();
}

// Lends the frame's arguments to the frame's call, and marks the ops that run on the thread as the observer's own. The
// destructor gives them back, with their memory, for the next op.
class Computing {
 public:
  Computing(Thread& self, Frame& frame) : self_(self), frame_(frame) {
    frame.call.op = frame.op;
    frame.call.fingerprint = frame.fingerprint;
    frame.arguments.resize(frame.argument_count);
    frame.call.arguments.swap(frame.arguments);
    self.computing = true;
  }
  ~Computing() {
    self_.computing = false;
    frame_.call.arguments.swap(frame_.arguments);
  }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

 private:
  Thread& self_;
  Frame& frame_;
};

// Waits until the arguments have the values that the op will read. The op synchronizes its stream anyway.
void wait_for_arguments(Thread& self, const Frame& frame) {
  const c10::impl::VirtualGuardImpl device_type(c10::DeviceType::CUDA);
  c10::Device device = device_type.getDevice();
  for (size_t i = 0; i < frame.argument_count; i++) {
    for (const TensorView& view : frame.arguments[i].tensors) {
      const int index = view.on_gpu() ? maya_address_device(view.data) : -1;
      if (index >= 0) device.set_index(static_cast<c10::DeviceIndex>(index));
    }
  }
  self.device->waits_unrecorded = true;
  try {
    device_type.synchronizeStream(device_type.getStream(device));
  } catch (const c10::Error&) {
    // The stream is being captured into a graph: the op itself will fail for the same reason.
  }
  self.device->waits_unrecorded = false;
}

// nonzero and unique copy a count to the host before the observer computes them, so it answers the count beforehand.
void answer_element_count(Frame& frame) {
  if (maya_commands_are_queued()) wait_for_arguments(this_thread(), frame);
  Computing computing(this_thread(), frame);
  bool guessed = false;
  const int64_t count = count_of_elements(frame.call, &guessed);
  if (count >= 0) maya_answer_next_read(count, 64, guessed);
}

// Keeps the inputs of an op that may overwrite them before it ends. If they may not have their values yet, an op is not computed
// if ops inside it change its arguments.
void keep_overwritten(Frame& frame) {
  Computing computing(this_thread(), frame);
  if (!frame.op->changes_inside && !overwrites_input(frame.call)) return;
  if (!maya_commands_are_queued() && !maya_captures_exist()) keep_originals(frame.call);
  else if (frame.op->changes_inside) frame.may_compute = false;
}

// equal compares with a kernel that torch does not dispatch, and copies what it finds to the host.
void answer_comparison(Frame& frame) {
  if (maya_commands_are_queued()) wait_for_arguments(this_thread(), frame);
  Computing computing(this_thread(), frame);
  const std::optional<Comparison> answer = result_of_comparison(frame.call);
  if (answer) maya_answer_next_read(answer->result ? 1 : 0, 1, answer->is_guess);
}

// Answers the number of elements of a coalesced sparse tensor as if all its indices differed, without reading them. The
// answer 0 would leave an empty tensor, and later ops on it would launch nothing.
void assume_distinct_indices(const at::Tensor& sparse) {
  maya_answer_next_read(static_cast<const at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl())->nnz(), 64, true);
}

// torch sends pickled objects as uint8 vectors.
bool may_be_object(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == c10::ScalarType::Byte && tensor.dim() == 1;
}

// Not so while a graph is traced.
bool has_bytes(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() && !is_symbolic(tensor) && impl->unsafe_storage().unsafeGetStorageImpl()->data() != nullptr;
}

maya_content content_of(const c10::IValue& written) {
  if (!written.isTensor() || !written.toTensor().defined()) return MAYA_CONTENT_OTHER;
  if (may_be_object(written.toTensor())) return MAYA_CONTENT_OBJECT;
  return c10::isIntegralType(written.toTensor().scalar_type(), true) ? MAYA_CONTENT_OTHER : MAYA_CONTENT_FLOATING;
}

// The largest size, in bytes of all tensors, at which the op is computed. torch concatenates pickled objects before it sends
// them together; for these the limit is the size up to which objects are kept.
int64_t byte_limit_of(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  const maya_settings* settings = maya_get_settings();
  if (!op.joins || !inputs[0].isTensorList() || settings->compute_bytes >= settings->object_bytes) {
    return settings->compute_bytes;
  }
  for (const c10::IValue& element : inputs[0].toListRef()) {
    const at::Tensor& tensor = element.toTensor();
    if (!may_be_object(tensor) || !tensor.is_cuda() || !has_bytes(tensor)) return settings->compute_bytes;
    if (maya_values_find_object(tensor.const_data_ptr(), tensor.nbytes()) == MAYA_LOST_OBJECT) {
      maya_message("a pickled object of %zu bytes is too large to be kept (MAYA_OBJECT_BYTES is %lld): it will arrive as zeros",
                   tensor.nbytes(), static_cast<long long>(settings->object_bytes));
    }
  }
  return settings->object_bytes;
}

// ---- callbacks ----

uint64_t callback_ns = 0;  // torch's overhead per observed op

bool has_empty_tensor(c10::ArrayRef<const c10::IValue> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
    if (!input.isTensor() || !input.toTensor().defined() || is_symbolic(input.toTensor())) return false;
    return input.toTensor().numel() == 0;
  });
}

void read_arguments(Thread& self, Frame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  const maya_settings* settings = maya_get_settings();
  if (frame.op->counts_elements && inputs[0].toTensor().is_sparse()) assume_distinct_indices(inputs[0].toTensor());
  const Scan scan = scan_arguments(*frame.op, inputs);
  frame.fingerprint = scan.fingerprint;
  frame.signature = self.find_signature(scan.fingerprint);
  frame.byte_limit = byte_limit_of(*frame.op, inputs);
  const int64_t limit_after_choices = limit_of_computing(*frame.op, inputs, scan);
  frame.call.any_size = limit_after_choices > frame.byte_limit;
  if (frame.call.any_size) frame.byte_limit = limit_after_choices;
  const bool chooses = may_choose(*frame.op, inputs) && scan.all_strided;
  frame.call.place = chooses ? place_of_choice(*frame.op, inputs) : -1;
  frame.routing.begin(*frame.op, inputs, frame.call.place);
  frame.call.choices = frame.routing.choices();
  self.device->routed = frame.routing.is_routed();
  frame.is_empty_gemm = frame.op->is_gemm && has_empty_tensor(inputs);
  frame.may_compute = frame.op->handle && settings->compute != MAYA_COMPUTE_NONE && scan.touches_gpu && scan.all_strided &&
                      (chooses || frame.op->compares ||
                       (scan.gpu_bytes <= frame.byte_limit && !is_certainly_placeholder(*frame.op, inputs, scan.gpu_bytes)));
  if (frame.op->writes_any || frame.op->first_statistic >= 0) {
    frame.content = content_of(inputs[0]);
    for (size_t i = 0; i < inputs.size(); i++) {
      if (writes_argument(*frame.op, inputs, i)) frame.written.add(inputs[i]);
    }
  }
  if (frame.op->tallies) frame.written.tally = tally_of(*frame.op, inputs);
  if (!frame.may_compute && frame.signature != 0) return;
  frame.described = true;
  frame.argument_count = inputs.size();
  if (frame.arguments.size() < inputs.size()) frame.arguments.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) read_argument(inputs[i], frame.arguments[i]);
  if (!frame.may_compute) return;
  frame.call.tally = frame.written.tally;
  keep_values(frame.call, frame.arguments, inputs);
  frame.call.writes.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) frame.call.writes[i] = writes_argument(*frame.op, inputs, i);
  if (frame.op->takes_generator || frame.op->draws_by_default) keep_random_state(frame.call, inputs);
  frame.call.originals.clear();
  if ((frame.op->has_out && !frame.op->is_pointwise) || frame.op->changes_inside) keep_overwritten(frame);
  if (frame.op->counts_elements) answer_element_count(frame);
  if (frame.op->compares) {
    answer_comparison(frame);
    frame.may_compute = false;
  }
}

// New blocks hold no known bytes when the allocator returns them, unless queued work may still use them.
bool needs_outputs(const Frame& frame) {
  if (frame.routing.is_followed()) return true;
  switch (frame.op->results) {
    case Operator::Results::kArguments: return false;
    case Operator::Results::kNewBlocks: return frame.may_compute || maya_commands_are_queued();
    case Operator::Results::kAnywhere: break;
  }
  return true;
}

// `sequence()` returns autograd's sequence number of the op. Inside a backward node, the number of the forward op whose
// gradient the node computes is recorded instead.
template <typename Sequence>
void op_begins(Thread& self, const at::RecordFunction& function, const Operator& op, c10::ArrayRef<const c10::IValue> inputs,
               const Sequence& sequence) {
  if (maya_measures_host) maya_discount(callback_ns);
  Frame& frame = self.push(&function);
  frame.op = &op;
  frame.exceptions = self.exceptions->uncaught;
  if (!op.may_launch) {
    if (op.handle && !maya_get_settings()->observe_all) stop_observing(*op.handle);
    return;
  }
  if (op.is_collective) collective_begins();
  frame.sequence = self.node.address != nullptr ? self.node.sequence : sequence();
  read_arguments(self, frame, inputs);
  if (!needs_outputs(frame)) skip_outputs(function);
}

void annotation_begins(Thread& self, const at::RecordFunction& function) {
  Frame& frame = self.push(&function);
  frame.name = function.name();
  frame.exceptions = self.exceptions->uncaught;
  frame.sequence = self.node.address != nullptr ? self.node.sequence : function.seqNr();
  // If an optimizer steps inside another one's step, only the outer one is counted.
  if (!is_optimizer_step(frame.name) || self.is_in_optimizer_step()) return;
  frame.is_optimizer_step = true;
  frame.optimizer = find_optimizer();
  optimizer_step_begins(frame.optimizer);
  if (frame.optimizer != 0) frame.signature = optimizer_signature(frame.name, frame.optimizer);
}

// The start callback registered with torch.
std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& function) {
  MAYA_OWN_TIME;
  maya_boxing_ends();
  Thread& self = this_thread();
  // An asynchronous RecordFunction may end later on another thread, so it gets no frame on this one.
  if (self.computing || function.isAsync()) return nullptr;
  if (const Operator* op = operator_of(function, self.operators)) {
    op_begins(self, function, *op, function.inputs(), [&] { return function.seqNr(); });
  } else if (is_node_callback(function)) {
    node_begins(self, &function);
  } else {
    annotation_begins(self, function);
  }
  return nullptr;  // the end callback finds its frame by the RecordFunction's address, so no context is allocated
}

// Runs the action and keeps its exceptions away from the program, as torch does with callbacks.
template <typename Action>
void without_exceptions(const Action& action) {
  static std::atomic<bool> said{false};
  try {
    action();
  } catch (const std::exception& error) {
    if (!said.exchange(true)) maya_message("an op could not be observed: %s", error.what());
  }
}

// In place of Dispatcher::runRecordFunction: calls the observer without torch's callback machinery. false: there are other
// callbacks, and torch has to run them all.
bool dispatcher_runs_callback(void* record_function, const void* schema, uint64_t keys, const void* inputs, size_t count) {
  const auto& function = *static_cast<const at::RecordFunction*>(record_function);
  if (!is_only_callback(begins, function)) return false;
  MAYA_OWN_TIME;
  maya_boxing_ends();
  Thread& self = this_thread();
  if (self.computing) {
    skip_outputs(function);
    return true;
  }
  without_exceptions([&] {
    const Operator& op = operator_of(*static_cast<const c10::FunctionSchema*>(schema), self.operators);
    op_begins(self, function, op, c10::ArrayRef<const c10::IValue>(static_cast<const c10::IValue*>(inputs), count),
              [&] { return sequence_number_of(c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys)); });
  });
  return true;
}

bool record_function_is_made(void* function, uint8_t scope) {
  MAYA_OWN_TIME;
  return make_record_function(function, scope, begins);
}

void collect_outputs(const c10::IValue& value, std::vector<TensorView>& outputs) {
  if (value.isTensor()) {
    outputs.push_back(value.toTensor().defined() ? view_of(value.toTensor()) : TensorView());
  } else if (value.isTensorList()) {
    for (const auto& element : value.toListRef()) collect_outputs(element, outputs);
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) collect_outputs(element, outputs);
  } else if (value.isNone()) {
    outputs.emplace_back();  // an optional result that is absent keeps its place
  }
}

// true if every result can be aliased on the CPU, and arguments and results together are within the frame's limit.
bool can_be_computed(const Frame& frame, const std::vector<TensorView>& outputs) {
  int64_t bytes = 0;
  for (const TensorView& output : outputs) {
    if (!output.strided && output.dtype != c10::ScalarType::Undefined) return false;
    if (output.on_gpu()) bytes += static_cast<int64_t>(output.bytes);
  }
  for (size_t i = 0; i < frame.argument_count; i++) {
    for (const TensorView& view : frame.arguments[i].tensors) {
      if (view.on_gpu()) bytes += static_cast<int64_t>(view.bytes);
    }
  }
  if (frame.call.place >= 0) return true;
  if (frame.op->fills) return bytes <= frame.byte_limit;
  const bool has_numbers = std::any_of(outputs.begin(), outputs.end(),
                                       [](const TensorView& output) { return output.on_gpu() && !has_integers(output); });
  return bytes <= (frame.call.any_size && has_numbers ? std::min(frame.byte_limit, kMostAssumedBytes) : frame.byte_limit);
}

// Adds the blocks allocated during the op, in place of outputs that the callback did not request.
void add_new_blocks(Thread& self, Frame& frame) {
  const uint32_t count = std::min<uint32_t>(self.device->blocks - frame.blocks_before, MAYA_RECENT_BLOCKS);
  for (uint32_t i = 1; i <= count; i++) {
    const auto& block = self.device->recent_blocks[(self.device->blocks - i) % MAYA_RECENT_BLOCKS];
    frame.written.ranges.push_back({block.address, block.size});
  }
}

// Whether an op around this one sums integers by a fast form (integer_ops.h), from its own arguments. Then only that op sees the
// results of this one: a cast of its argument.
bool is_inside_fast_sum(const Thread& self) {
  if (maya_get_settings()->compute == MAYA_COMPUTE_ALL) return false;
  for (size_t depth = 0; depth + 1 < self.depth; depth++) {
    const Frame& outer = *self.frames[depth];
    if (outer.op == nullptr || outer.op->fast_form != Operator::FastForm::kSum || !outer.may_compute) continue;
    const TensorView& given = outer.arguments[0].tensors[0];
    if (has_integers(given) && static_cast<int64_t>(given.bytes / c10::elementSize(given.dtype)) >= kLeastElements) return true;
  }
  return false;
}

// For an op that launched kernels of its own: computes its results, or marks them as placeholders.
void apply_values(Thread& self, Frame& frame, const at::RecordFunction& function, void* stream) {
  if (frame.may_compute && self.depth > 1 && is_inside_fast_sum(self)) frame.may_compute = false;
  if (frame.may_compute) {
    self.outputs.clear();
    for (const c10::IValue& value : function.outputs()) collect_outputs(value, self.outputs);
  }
  if (!frame.may_compute || !can_be_computed(frame, self.outputs)) {
    if (maya_get_settings()->compute == MAYA_COMPUTE_ALL) report_once(*frame.op, "it works on sparse or nested tensors");
    for (const c10::IValue& value : function.outputs()) frame.written.add(value);
    if (!function.needsOutputs() && frame.op->results == Operator::Results::kNewBlocks) add_new_blocks(self, frame);
    mark_results_as_placeholders(stream, *frame.op, frame.written);
    return;
  }
  Computing computing(self, frame);
  frame.call.outputs.swap(self.outputs);
  apply_in_stream(stream, frame.call);
  frame.call.outputs.swap(self.outputs);
}

// Tells the ops around this one that it has changed an argument of theirs.
void note_changes_inside(Thread& self, const Frame& frame) {
  for (size_t depth = 0; depth + 1 < self.depth; depth++) {
    Frame& outer = *self.frames[depth];
    if (outer.op == nullptr || !outer.may_compute || !outer.op->writes_any) continue;
    for (size_t i = 0; i < outer.argument_count; i++) {
      if (!outer.call.writes[i] || !outer.op->reads[i]) continue;
      for (const TensorView& view : outer.arguments[i].tensors) {
        if (view.on_gpu() && frame.written.overlaps(view.data, view.bytes)) outer.is_changed_inside = true;
      }
    }
  }
}

// An op computed from what the ops inside it have left in its arguments would be wrong: a mean that divides twice.
void refuse_changed_arguments(Frame& frame) {
  if (!frame.is_changed_inside || !frame.call.originals.empty()) return;
  frame.op->changes_inside = true;  // from the next call on, its arguments are kept
  frame.may_compute = false;
}

// For an op that launched its kernels and then threw an exception.
void apply_abandoned(Thread& self, Frame& frame, void* stream) {
  if (frame.op->writes_any || maya_stream_is_capturing(stream)) return;
  Computing computing(self, frame);
  apply_to_new_blocks(stream, frame.call, frame.blocks_before);
}

uint32_t signature_of(Thread& self, Frame& frame, const char* name) {
  if (frame.signature != 0) return frame.signature;
  if (frame.described) return make_signature(frame.fingerprint, name, frame.arguments, frame.argument_count);
  return self.signature_of_name(name);
}

// The signature that the record of the current op will have. The virtual clock needs it at launch time.
uint32_t current_op_signature() {
  Thread& self = this_thread();
  Frame* top = self.top();
  if (top == nullptr) return 0;
  if (top->signature == 0) {
    if (top->is_node) top->signature = signature_of_node(self);
    else top->signature = signature_of(self, *top, top->op != nullptr ? top->op->name.c_str() : top->name);
  }
  return top->signature;
}

// The kind of tensor that the current op writes, for copies from the host.
maya_content current_op_content() {
  const Frame* top = this_thread().top();
  return top != nullptr ? top->content : MAYA_CONTENT_OTHER;
}

// The signature of a GEMM with an empty operand. It names the line of the script (none if autograd called the GEMM), because
// the reason matters: a router's placeholder values may have sent an expert no tokens.
uint32_t signature_of_empty_gemm(const Frame& frame) {
  enum { LINES_FOUND = 10000 };  // as in copies.c: finding a line takes Python's lock
  static std::atomic<int> found{0};
  char line[512] = "", text[1024];
  if (found++ < LINES_FOUND) find_source_line(line, sizeof line);
  const int length =
      std::snprintf(text, sizeof text, "{\"op\":\"%.200s\",\"empty\":true,\"at\":\"%s\"}", frame.op->name.c_str(), line);
  return maya_intern(text, static_cast<size_t>(length));
}

// Ends the top frame, which belongs to `function` and is not an autograd node's.
void op_ends(Thread& self, const at::RecordFunction& function) {
  Frame& frame = *self.top();
  maya_thread* thread = self.device;
  if (frame.op != nullptr && frame.op->is_collective) collective_ends();
  const uint32_t launches = thread->device_work - frame.launches_before;
  const bool is_annotation = function.scope() == at::RecordScope::USER_SCOPE;
  if (launches > 0 || is_annotation) {
    const char* name = frame.op != nullptr ? frame.op->name.c_str() : frame.name;
    self.record(is_annotation ? MAYA_RECORD_ANNOTATION : MAYA_RECORD_OP, signature_of(self, frame, name));
    if (frame.is_optimizer_step) {
      if (count_optimizer_step(frame.optimizer)) maya_count_step();
      maya_record_flush();  // if the job fails or is stopped, its finished steps are predicted
    }
  } else if (frame.is_empty_gemm) {
    self.record(MAYA_RECORD_OP, signature_of_empty_gemm(frame));
  }
  if (launches > 0 && frame.op != nullptr && frame.op->writes_any && self.depth > 1) note_changes_inside(self, frame);
  if (launches > frame.launches_of_children && frame.op != nullptr) {
    refuse_changed_arguments(frame);
    const bool failed = self.exceptions->uncaught > frame.exceptions;
    if (!failed) apply_values(self, frame, function, thread->work_stream);
    else if (frame.may_compute) apply_abandoned(self, frame, thread->work_stream);
  }
  if (frame.routing.is_followed()) {
    for (const c10::IValue& value : function.outputs()) frame.routing.mark_results(*frame.op, value);
  }
  if (frame.op != nullptr && (frame.op->counts_elements || frame.op->compares)) maya_answer_next_read(0, 0, false);
  frame.call.originals.clear();
  frame.call.values.clear();  // host tensors among them belong to the program, and must not outlive torch's own state
  maya_flush_deferred_increfs();
  self.pop(launches);
}

void ends(const at::RecordFunction& function) {
  MAYA_OWN_TIME;
  Thread& self = this_thread();
  if (self.computing || !self.pop_to(&function)) return;
  if (self.top()->is_node) node_ends(self);
  else op_ends(self, function);
}

// The end callback registered with torch. An annotation may end before its RecordFunction is destroyed.
void ends(const at::RecordFunction& function, at::ObserverContext*) { ends(function); }

// Called before any RecordFunction is destroyed.
void record_function_is_destroyed(void* function) {
  without_exceptions([&] { ends(*static_cast<const at::RecordFunction*>(function)); });
}

constexpr maya_record_function_callbacks kObserver = {record_function_is_made, dispatcher_runs_callback,
                                                      record_function_is_destroyed, tls_is_unchanged};

}  // namespace
}  // namespace maya

// Called in the zygote, before it forks ranks: looks up all operators, so that ranks need not write to shared pages.
extern "C" MAYA_API void maya_observer_prepare() {
  const bool observe_all = maya_get_settings()->observe_all;
  maya::describe_all_operators([&](const maya::Operator& op) {
    if (!op.may_launch && !observe_all) maya::stop_observing(*op.handle);
  });
  maya::watch_host_tensors();
}

extern "C" MAYA_API void maya_observer_watch_host_tensors() { maya::watch_host_tensors(); }

extern "C" MAYA_API void maya_observer_start() {
  maya_set_source_finder(maya::find_source_line);
  maya_set_choice_recorder(maya::record_choices);
  maya_set_routing_listener(maya::place_routes);
  maya_set_op_namer(maya::current_op_name);
  maya_set_content_finder(maya::current_op_content);
  maya_set_op_signer(maya::current_op_signature);
  at::addGlobalCallback(at::RecordFunctionCallback(maya::begins, maya::ends)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
  maya_set_record_function_callbacks(&maya::kObserver);
  maya::watch_data_pointers();
  maya::watch_host_tensors();
  if (maya_get_settings()->measure_host) maya::callback_ns = maya::cost_of_callback();
}
