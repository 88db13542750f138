// The op observer: watches the ops that PyTorch dispatches, tells the recorder which op device work belongs to, and has ops
// really computed whose values a program may look at.
//
// In: torch's RecordFunction callbacks, at the start and the end of every op, on the thread that runs it. Out: op records in
// the trace, and results in memory. libmaya_device.so loads this library when a process that has torch first uses a device.

#include <ATen/Context.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../shim/device/internal.h"
#include "compute.h"
#include "observed.h"
#include "operators.h"
#include "scan.h"
#include "signature.h"
#include "source_line.h"

namespace maya {
namespace {

// An op that is running. Frames are reused: index in the thread's stack = nesting depth.
struct Frame {
  const Operator* op = nullptr;
  const char* name = nullptr;    // of something that is no operator; lives as long as its RecordFunction
  uint32_t number = 0, parent = 0;
  uint64_t start_ns = 0;
  uint32_t work_before = 0;      // the thread's device work when the op began
  uint32_t work_of_children = 0;
  uint32_t blocks_before = 0;
  int64_t sequence = -1;
  bool may_compute = false;
  bool described = false;        // `arguments` is filled in
  Fingerprint fingerprint;
  uint32_t signature = 0;
  Written written;               // arguments that the op writes to
  int exceptions = 0;
  const at::RecordFunction* function = nullptr;  // to recognise its end
  std::vector<Argument> arguments;
  size_t argument_count = 0;
  Call call;                     // values that computing needs, if may_compute
};

struct Thread {
  std::vector<std::unique_ptr<Frame>> frames;
  size_t depth = 0;
  bool computing = false;  // ops that run now are ours
  maya_thread* device = maya_this_thread();
  std::vector<TensorView> outputs;  // scratch
  std::unordered_map<std::string_view, uint32_t> name_signatures;
  std::deque<std::string> names;    // what the views view

  Frame& push() {
    if (depth == frames.size()) frames.push_back(std::make_unique<Frame>());
    return *frames[depth++];
  }
  Frame* top() { return depth ? frames[depth - 1].get() : nullptr; }

  // Makes the frame of `function` the top one; false if it has none here. Frames above it are of annotations that began on
  // this thread and were ended on another.
  bool pop_to(const at::RecordFunction& function) {
    size_t found = depth;
    while (found > 0 && frames[found - 1]->function != &function) found--;
    if (found > 0) depth = found;
    return found > 0;
  }
};

// A plain pointer, because a thread_local with a constructor is checked at every access. Lives as long as the thread.
Thread& this_thread() {
  static thread_local Thread* thread = nullptr;
  if (thread == nullptr) {
    static thread_local std::unique_ptr<Thread> owner;
    owner = std::make_unique<Thread>();
    thread = owner.get();
  }
  return *thread;
}

const char* current_op_name() {
  const Frame* top = this_thread().top();
  if (top == nullptr) return "";
  return top->op != nullptr ? top->op->name.c_str() : top->name;
}

// ---- arguments ----

void read_tensor_list(const c10::IValue& value, Argument& argument) {
  argument.kind = Argument::Kind::kTensorList;
  if (value.isTensorList()) {
    for (const auto& element : value.toListRef()) {
      const at::Tensor& tensor = element.toTensor();
      argument.tensors.push_back(tensor.defined() ? view_of(tensor) : TensorView());
    }
    return;
  }
  argument.optional_list = true;
  for (const auto& element : value.toListRef()) {
    const bool defined = element.isTensor() && element.toTensor().defined();
    argument.tensors.push_back(defined ? view_of(element.toTensor()) : TensorView());
  }
}

void read_argument(const c10::IValue& value, Argument& argument) {
  argument.kind = Argument::Kind::kOther;
  argument.integer = 0;
  argument.optional_list = false;
  argument.tensors.clear();
  argument.integers.clear();
  argument.text = {};
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    argument.kind = tensor.defined() ? Argument::Kind::kTensor : Argument::Kind::kNone;
    if (tensor.defined()) argument.tensors.push_back(view_of(tensor));
  } else if (value.isNone()) {
    argument.kind = Argument::Kind::kNone;
  } else if (value.isInt()) {
    argument.kind = Argument::Kind::kInteger;
    argument.integer = value.toInt();
  } else if (value.isBool()) {
    argument.kind = Argument::Kind::kBool;
    argument.integer = value.toBool();
  } else if (value.isDouble()) {
    argument.kind = Argument::Kind::kFloat;
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    read_tensor_list(value, argument);
  } else if (value.isIntList()) {
    argument.kind = Argument::Kind::kIntegerList;
    for (int64_t integer : value.toIntVector()) argument.integers.push_back(integer);
  } else if (value.isString()) {
    argument.kind = Argument::Kind::kString;
    argument.text = value.toStringView();
  }
}

// Keep what computing the op needs beyond the views: numbers, lists, and tensors in host memory.
void keep_values(Frame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  frame.call.values.clear();
  for (size_t i = 0; i < inputs.size(); i++) {
    const Argument& argument = frame.arguments[i];
    const bool gpu_tensor = argument.kind == Argument::Kind::kTensor && argument.tensors[0].on_gpu();
    if (gpu_tensor || argument.kind == Argument::Kind::kTensorList) frame.call.values.emplace_back();
    else frame.call.values.push_back(inputs[i]);
  }
}

void keep_random_state(Frame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  at::Generator generator;
  for (const c10::IValue& value : inputs) {
    if (value.isGenerator()) generator = value.toGenerator();
  }
  if (!generator.defined()) {
    generator = at::globalContext().defaultGenerator(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(maya_current_device())));
  }
  if (generator.device().type() != c10::DeviceType::CUDA) return;
  frame.call.random_seed = generator.current_seed();
  frame.call.random_offset = generator.get_offset();
}

// While it lives, the frame's call has the frame's arguments, and ops that run on the thread are ours. Afterwards the frame
// has them back, with their memory, for the next op.
class Computing {
 public:
  Computing(Thread& self, Frame& frame) : self_(self), frame_(frame) {
    frame.call.op = frame.op;
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

// ---- callbacks ----

// Autograd's number of the op; in backward, that of the forward op whose gradient is computed. The scope that announces
// backward nodes with their numbers is not observed: the engine announces every node anyway, and each time it puts together
// the node's name, which costs more than all the rest.
int64_t sequence_of(const at::RecordFunction& function) {
  const auto node = torch::autograd::get_current_node();
  return node ? static_cast<int64_t>(node->sequence_nr()) : function.seqNr();
}

// "autograd::engine::evaluate_function: MmBackward0" -> "MmBackward0"; nullptr for other names
const char* node_name(const char* name) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
  return std::strncmp(name, kEngine.data(), kEngine.size()) == 0 ? name + kEngine.size() : nullptr;
}

void look_at_arguments(Frame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  const maya_settings* settings = maya_get_settings();
  if (frame.op->counts_elements && inputs[0].toTensor().is_sparse()) guess_count(inputs[0].toTensor());
  const Scan scan = scan_arguments(*frame.op, inputs);
  frame.fingerprint = scan.fingerprint;
  frame.signature = find_signature(scan.fingerprint);
  frame.may_compute = frame.op->handle && settings->compute != MAYA_COMPUTE_NONE && scan.touches_gpu && scan.all_strided &&
                      scan.gpu_bytes <= settings->compute_bytes;
  if (frame.op->writes_any || frame.op->first_statistic >= 0) {
    for (size_t i = 0; i < inputs.size(); i++) {
      if (writes_argument(*frame.op, inputs, i)) frame.written.add(inputs[i]);
    }
  }
  if (!frame.may_compute && frame.signature != 0) return;
  frame.described = true;
  frame.argument_count = inputs.size();
  if (frame.arguments.size() < inputs.size()) frame.arguments.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) read_argument(inputs[i], frame.arguments[i]);
  if (!frame.may_compute) return;
  keep_values(frame, inputs);
  frame.call.writes.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) frame.call.writes[i] = writes_argument(*frame.op, inputs, i);
  if (frame.op->takes_generator || frame.op->draws_by_default) keep_random_state(frame, inputs);
  if (frame.op->counts_elements) answer_count(frame);
}

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& function) {
  Thread& self = this_thread();
  // An asynchronous function ends elsewhere and later: it is no frame of this thread.
  if (self.computing || function.isAsync()) return nullptr;
  const char* node = node_name(function.name());
  const Operator* op = node == nullptr ? operator_of(function) : nullptr;
  maya_thread* thread = self.device;
  Frame& frame = self.push();
  frame.op = op;
  frame.function = &function;
  frame.name = node != nullptr ? node : function.name();
  frame.number = maya_next_op();
  frame.parent = thread->current_op;
  frame.work_before = thread->device_work;
  frame.work_of_children = 0;
  frame.blocks_before = thread->blocks;
  frame.may_compute = false;
  frame.exceptions = std::uncaught_exceptions();
  frame.sequence = -1;
  thread->current_op = frame.number;
  thread->ops_uncounted++;

  frame.argument_count = 0;
  frame.signature = 0;
  frame.described = false;
  frame.written.clear();
  frame.start_ns = maya_now_ns();
  if (op != nullptr && !op->may_launch) {
    if (op->handle && !maya_get_settings()->observe_all) stop_observing(*op->handle);
    return nullptr;
  }
  frame.sequence = sequence_of(function);
  if (op != nullptr) look_at_arguments(frame, function.inputs());
  return nullptr;  // the end finds its frame by the function's address, without an allocation per op
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
  return bytes <= maya_get_settings()->compute_bytes;
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

uint32_t name_signature_of(Thread& self, const char* name) {
  auto found = self.name_signatures.find(name);
  if (found != self.name_signatures.end()) return found->second;
  self.names.emplace_back(name);
  return self.name_signatures.emplace(self.names.back(), name_signature(name)).first->second;
}

uint32_t signature_of(Thread& self, Frame& frame, const char* name) {
  if (frame.signature != 0) return frame.signature;
  if (frame.described) return make_signature(frame.fingerprint, name, frame.arguments, frame.argument_count);
  return name_signature_of(self, name);
}

void op_ends(const at::RecordFunction& function, at::ObserverContext*) {
  Thread& self = this_thread();
  if (self.computing || !self.pop_to(function)) return;
  Frame& frame = *self.top();
  maya_thread* thread = self.device;
  const uint32_t work = thread->device_work - frame.work_before;
  const bool failed = std::uncaught_exceptions() > frame.exceptions;
  const bool is_annotation = function.scope() == at::RecordScope::USER_SCOPE;
  if (work > 0 || is_annotation) {
    const uint64_t end_ns = maya_now_ns();
    const char* name = frame.op != nullptr ? frame.op->name.c_str() : frame.name;
    const uint32_t signature = signature_of(self, frame, name);
    const uint32_t sequence = frame.sequence < 0 ? UINT32_MAX : static_cast<uint32_t>(frame.sequence);
    maya_record_op(is_annotation ? MAYA_RECORD_ANNOTATION : MAYA_RECORD_OP, frame.number, frame.parent, signature,
                   frame.start_ns, end_ns - frame.start_ns, sequence);
  }
  if (work > frame.work_of_children && frame.op != nullptr && !failed) {
    apply_values(self, frame, function, thread->work_stream);
  } else if (work > frame.work_of_children && failed && frame.may_compute) {
    apply_abandoned(self, frame, thread->work_stream);
  }
  if (frame.op != nullptr && frame.op->counts_elements) maya_answer_next_read(0, 0, false);
  frame.call.values.clear();  // host tensors among them belong to the program, and must not outlive torch's own state
  thread->current_op = frame.parent;
  self.depth--;
  if (Frame* parent = self.top()) parent->work_of_children += work;
}

}  // namespace
}  // namespace maya

extern "C" MAYA_API void maya_observer_start() {
  maya_set_source_finder(maya::find_source_line);
  maya_set_op_namer(maya::current_op_name);
  at::addGlobalCallback(at::RecordFunctionCallback(maya::op_begins, maya::op_ends)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}
