// The op observer: watches the ops that PyTorch dispatches, tells the recorder which op device work belongs to, and has ops
// really computed whose values a program may look at.
//
// In: torch's announcements of the start and the end of every op, on the thread that runs it. If nobody else listens they are
// taken from torch's hands before it calls anybody (shim/device/announcements.c); else we are one of its RecordFunction
// callbacks. Out: op records in the trace, and results in memory. libmaya_device.so loads this library when a process that has
// torch first uses a device.

#include <ATen/SparseTensorImpl.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>

#include "../shim/device/internal.h"
#include "announcing.h"
#include "arguments.h"
#include "compute.h"
#include "data_pointer.h"
#include "frames.h"
#include "nodes.h"
#include "observed.h"
#include "operators.h"
#include "optimizers.h"
#include "scan.h"
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

// While it lives, the frame's call has the frame's arguments, and ops that run on the thread are ours. Afterwards the frame
// has them back, with their memory, for the next op.
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

// The op is going to wait for its stream anyway: its arguments are what they will be then.
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
    // captured into a graph, where the op itself will fail for the same reason
  }
  self.device->waits_unrecorded = false;
}

// nonzero and unique copy a count to the host before anything is computed; the answer has to be there by then.
void answer_count(Frame& frame) {
  if (maya_work_is_queued()) wait_for_arguments(this_thread(), frame);
  Computing computing(this_thread(), frame);
  const int64_t count = count_of_elements(frame.call);
  if (count >= 0) maya_answer_next_read(count, 64, false);
}

// The same for coalescing a sparse tensor, whose indices are not looked at: all are taken to be different. Without a guess
// nothing would be left of the tensor, nor of the work that is done with it.
void guess_count(const at::Tensor& sparse) {
  maya_answer_next_read(static_cast<const at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl())->nnz(), 64, true);
}

// Pickled objects are vectors of bytes.
bool may_be_object(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == c10::ScalarType::Byte && tensor.dim() == 1;
}

maya_content content_of(const c10::IValue& written) {
  if (!written.isTensor() || !written.toTensor().defined()) return MAYA_CONTENT_OTHER;
  if (may_be_object(written.toTensor())) return MAYA_CONTENT_OBJECT;
  return c10::isIntegralType(written.toTensor().scalar_type(), true) ? MAYA_CONTENT_OTHER : MAYA_CONTENT_FLOATING;
}

// How large an op may be that is computed. torch joins objects that travel together, which are tensors of bytes: no other
// size than that at which they are kept limits these.
int64_t most_bytes_of(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  const maya_settings* settings = maya_get_settings();
  if (!op.joins || !inputs[0].isTensorList() || settings->compute_bytes >= settings->object_bytes) {
    return settings->compute_bytes;
  }
  for (const c10::IValue& element : inputs[0].toListRef()) {
    const at::Tensor& tensor = element.toTensor();
    if (!may_be_object(tensor) || !tensor.is_cuda()) return settings->compute_bytes;
    if (maya_values_find_object(tensor.const_data_ptr(), tensor.nbytes()) == MAYA_LOST_OBJECT) {
      maya_message("an object of %zu bytes that is to travel is not kept (MAYA_OBJECT_BYTES is %lld): it will arrive as zeros",
                   tensor.nbytes(), static_cast<long long>(settings->object_bytes));
    }
  }
  return settings->object_bytes;
}

// ---- callbacks ----

uint64_t announcement_ns = 0;  // what it costs torch to announce an op

bool has_empty_tensor(c10::ArrayRef<const c10::IValue> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
    return input.isTensor() && input.toTensor().defined() && input.toTensor().numel() == 0;
  });
}

void look_at_arguments(Thread& self, Frame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  const maya_settings* settings = maya_get_settings();
  if (frame.op->counts_elements && inputs[0].toTensor().is_sparse()) guess_count(inputs[0].toTensor());
  const Scan scan = scan_arguments(*frame.op, inputs);
  frame.fingerprint = scan.fingerprint;
  frame.signature = self.find_signature(scan.fingerprint);
  frame.most_bytes = most_bytes_of(*frame.op, inputs);
  frame.is_empty_product = frame.op->is_product && has_empty_tensor(inputs);
  frame.may_compute = frame.op->handle && settings->compute != MAYA_COMPUTE_NONE && scan.touches_gpu && scan.all_strided &&
                      scan.gpu_bytes <= frame.most_bytes && !is_certainly_made_up(*frame.op, inputs, scan.gpu_bytes);
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
  if (frame.op->counts_elements) answer_count(frame);
}

// New blocks hold no known bytes when they are handed out, unless work is queued that may still use them.
bool needs_outputs(const Frame& frame) {
  switch (frame.op->results) {
    case Operator::Results::kArguments: return false;
    case Operator::Results::kNewBlocks: return frame.may_compute || maya_work_is_queued();
    case Operator::Results::kAnywhere: break;
  }
  return true;
}

// `sequence()` is autograd's number of the op; in backward, that of the forward op whose gradient is computed counts.
template <typename Sequence>
void op_begins(Thread& self, const at::RecordFunction& function, const Operator& op, c10::ArrayRef<const c10::IValue> inputs,
               const Sequence& sequence) {
  if (maya_measures_host) maya_discount(announcement_ns);
  Frame& frame = self.push(&function);
  frame.op = &op;
  frame.exceptions = self.exceptions->uncaught;
  if (!op.may_launch) {
    if (op.handle && !maya_get_settings()->observe_all) stop_observing(*op.handle);
    return;
  }
  frame.sequence = self.node.address != nullptr ? self.node.sequence : sequence();
  look_at_arguments(self, frame, inputs);
  if (!needs_outputs(frame)) spare_outputs(function);
}

void annotation_begins(Thread& self, const at::RecordFunction& function) {
  Frame& frame = self.push(&function);
  frame.name = function.name();
  frame.exceptions = self.exceptions->uncaught;
  frame.sequence = self.node.address != nullptr ? self.node.sequence : function.seqNr();
  // Of an optimizer that steps inside of another one's step, the outer one counts.
  if (!is_optimizer_step(frame.name) || self.is_in_optimizer_step()) return;
  frame.is_optimizer_step = true;
  frame.optimizer = find_optimizer();
  if (frame.optimizer != 0) frame.signature = optimizer_signature(frame.name, frame.optimizer);
}

// torch's callback.
std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& function) {
  MAYA_OWN_TIME;
  maya_boxing_ends();
  Thread& self = this_thread();
  // An asynchronous function ends elsewhere and later: it is no frame of this thread.
  if (self.computing || function.isAsync()) return nullptr;
  if (const Operator* op = operator_of(function, self.operators)) {
    op_begins(self, function, *op, function.inputs(), [&] { return function.seqNr(); });
  } else if (announces_node(function)) {
    node_begins(self, &function);
  } else {
    annotation_begins(self, function);
  }
  return nullptr;  // the end finds its frame by the function's address, without an allocation per op
}

// As torch does with its callbacks: what goes wrong in one is not the program's business.
template <typename Action>
void contained(const Action& action) {
  static std::atomic<bool> said{false};
  try {
    action();
  } catch (const std::exception& error) {
    if (!said.exchange(true)) maya_message("an op could not be observed: %s", error.what());
  }
}

// What torch would have done to call us back, if it were for us alone.
bool op_is_announced(void* record_function, const void* schema, uint64_t keys, const void* inputs, size_t count) {
  const auto& function = *static_cast<const at::RecordFunction*>(record_function);
  if (!hears_alone(begins, function)) return false;
  MAYA_OWN_TIME;
  maya_boxing_ends();
  Thread& self = this_thread();
  if (self.computing) {
    spare_outputs(function);
    return true;
  }
  contained([&] {
    const Operator& op = operator_of(*static_cast<const c10::FunctionSchema*>(schema), self.operators);
    op_begins(self, function, op, c10::ArrayRef<const c10::IValue>(static_cast<const c10::IValue*>(inputs), count),
              [&] { return sequence_number_of(c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys)); });
  });
  return true;
}

bool announcement_begins(void* function, uint8_t scope) {
  MAYA_OWN_TIME;
  return make_announcement(function, scope, begins);
}

void collect_outputs(const c10::IValue& value, std::vector<TensorView>& outputs) {
  if (value.isTensor()) {
    outputs.push_back(value.toTensor().defined() ? view_of(value.toTensor()) : TensorView());
  } else if (value.isTensorList()) {
    for (const auto& element : value.toListRef()) collect_outputs(element, outputs);
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) collect_outputs(element, outputs);
  }
}

// true if all results can be aliased and together with the arguments are still small.
bool results_are_small(const Frame& frame, const std::vector<TensorView>& outputs) {
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
  return bytes <= frame.most_bytes;
}

// In place of outputs that were not asked for.
void add_new_blocks(Thread& self, Frame& frame) {
  const uint32_t count = std::min<uint32_t>(self.device->blocks - frame.blocks_before, MAYA_RECENT_BLOCKS);
  for (uint32_t i = 1; i <= count; i++) {
    const auto& block = self.device->recent_blocks[(self.device->blocks - i) % MAYA_RECENT_BLOCKS];
    frame.written.ranges.push_back({block.address, block.size});
  }
}

// The op launched kernels of its own: do what they would have done to values, or say that it was not done.
void apply_values(Thread& self, Frame& frame, const at::RecordFunction& function, void* stream) {
  if (frame.may_compute) {
    self.outputs.clear();
    for (const c10::IValue& value : function.outputs()) collect_outputs(value, self.outputs);
  }
  if (!frame.may_compute || !results_are_small(frame, self.outputs)) {
    if (maya_get_settings()->compute == MAYA_COMPUTE_ALL) say_once(*frame.op, "it works on sparse or nested tensors");
    for (const c10::IValue& value : function.outputs()) frame.written.add(value);
    if (!function.needsOutputs() && frame.op->results == Operator::Results::kNewBlocks) add_new_blocks(self, frame);
    results_are_made_up(stream, *frame.op, frame.written);
    return;
  }
  Computing computing(self, frame);
  frame.call.outputs.swap(self.outputs);
  apply_in_stream(stream, frame.call);
  frame.call.outputs.swap(self.outputs);
}

// The op launched its kernels and then threw.
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

// For the virtual clock, when the op launches: what its record will say when it ends.
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

// For copies from the host.
maya_content current_op_content() {
  const Frame* top = this_thread().top();
  return top != nullptr ? top->content : MAYA_CONTENT_OTHER;
}

// A matrix product that had nothing to compute, and why may be of interest: a router's placeholder values may have sent an
// expert no tokens. Its record names the line of the script, or none if autograd called it.
uint32_t signature_of_empty_product(const Frame& frame) {
  enum { LINES_FOUND = 10000 };  // as in copies.c: finding a line takes Python's lock
  static std::atomic<int> found{0};
  char line[512] = "", text[1024];
  if (found++ < LINES_FOUND) find_source_line(line, sizeof line);
  const int length =
      std::snprintf(text, sizeof text, "{\"op\":\"%.200s\",\"empty\":true,\"at\":\"%s\"}", frame.op->name.c_str(), line);
  return maya_intern(text, static_cast<size_t>(length));
}

// The frame on top, which is that of `function` and no node's.
void op_ends(Thread& self, const at::RecordFunction& function) {
  Frame& frame = *self.top();
  maya_thread* thread = self.device;
  const uint32_t work = thread->device_work - frame.work_before;
  const bool is_annotation = function.scope() == at::RecordScope::USER_SCOPE;
  if (work > 0 || is_annotation) {
    const char* name = frame.op != nullptr ? frame.op->name.c_str() : frame.name;
    self.record(is_annotation ? MAYA_RECORD_ANNOTATION : MAYA_RECORD_OP, signature_of(self, frame, name));
    if (frame.is_optimizer_step && count_optimizer_step(frame.optimizer)) maya_count_step();
  } else if (frame.is_empty_product) {
    self.record(MAYA_RECORD_OP, signature_of_empty_product(frame));
  }
  if (work > frame.work_of_children && frame.op != nullptr) {
    const bool failed = self.exceptions->uncaught > frame.exceptions;
    if (!failed) apply_values(self, frame, function, thread->work_stream);
    else if (frame.may_compute) apply_abandoned(self, frame, thread->work_stream);
  }
  if (frame.op != nullptr && frame.op->counts_elements) maya_answer_next_read(0, 0, false);
  frame.call.values.clear();  // host tensors among them belong to the program, and must not outlive torch's own state
  maya_make_counts_good();
  self.pop(work);
}

void ends(const at::RecordFunction& function) {
  MAYA_OWN_TIME;
  Thread& self = this_thread();
  if (self.computing || !self.pop_to(&function)) return;
  if (self.top()->is_node) node_ends(self);
  else op_ends(self, function);
}

// torch's callback. Annotations may end before they are destroyed.
void ends(const at::RecordFunction& function, at::ObserverContext*) { ends(function); }

// Before any RecordFunction is destroyed.
void announcement_ends(void* function) {
  contained([&] { ends(*static_cast<const at::RecordFunction*>(function)); });
}

constexpr maya_announcement_observer kObserver = {announcement_begins, op_is_announced, announcement_ends, observers_are_set};

}  // namespace
}  // namespace maya

// In a process from which ranks are forked: what each of them would otherwise find out for itself, and write next to what they
// share.
extern "C" MAYA_API void maya_observer_prepare() {
  const bool observe_all = maya_get_settings()->observe_all;
  maya::describe_all_operators([&](const maya::Operator& op) {
    if (!op.may_launch && !observe_all) maya::stop_observing(*op.handle);
  });
}

extern "C" MAYA_API void maya_observer_start() {
  maya_set_source_finder(maya::find_source_line);
  maya_set_op_namer(maya::current_op_name);
  maya_set_content_finder(maya::current_op_content);
  maya_set_op_signer(maya::current_op_signature);
  at::addGlobalCallback(at::RecordFunctionCallback(maya::begins, maya::ends)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
  maya_set_announcement_observer(&maya::kObserver);
  maya::watch_data_pointers();
  if (maya_get_settings()->measure_host) maya::announcement_ns = maya::cost_of_announcing();
}
