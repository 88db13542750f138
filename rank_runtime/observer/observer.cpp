// The op observer: watches every op that PyTorch dispatches, tells the recorder which op device work belongs to, and has ops
// really computed whose values a program may look at.
//
// In: torch's RecordFunction callbacks, at the start and the end of every op, on the thread that runs it. Out: op records in
// the trace, and results in memory. libmaya_device.so loads this library when a process that has torch first uses a device.

#include <ATen/Context.h>
#include <ATen/record_function.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "../shim/device/internal.h"
#include "compute.h"
#include "operators.h"
#include "signature.h"
#include "source_line.h"

namespace maya {
namespace {

// An op that is running. Frames are reused: index in the thread's stack = nesting depth.
struct Frame {
  const Operator* op = nullptr;
  std::string name;              // of something that is no operator
  uint32_t number = 0, parent = 0;
  uint64_t start_ns = 0;
  uint32_t work_before = 0;      // the thread's device work when the op began
  uint32_t work_of_children = 0;
  int64_t sequence = -1;
  bool in_backward = false;
  bool may_compute = false;
  int exceptions = 0;
  std::vector<Argument> arguments;
  size_t argument_count = 0;
  Call call;                     // values that computing needs, if may_compute
};

struct Thread {
  std::vector<std::unique_ptr<Frame>> frames;
  size_t depth = 0;

  Frame& push() {
    if (depth == frames.size()) frames.push_back(std::make_unique<Frame>());
    return *frames[depth++];
  }
  Frame* top() { return depth ? frames[depth - 1].get() : nullptr; }
};

thread_local Thread this_thread;

struct Context : at::ObserverContext {
  explicit Context(size_t frame_depth) : depth(frame_depth) {}
  size_t depth;
};

const char* current_op_name() {
  const Frame* top = this_thread.top();
  if (top == nullptr) return "";
  return top->op != nullptr ? top->op->name.c_str() : top->name.c_str();
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

// true when every tensor can be aliased and those on the GPU are together small enough.
bool small_enough(const Frame& frame, int64_t limit) {
  size_t bytes = 0;
  for (size_t i = 0; i < frame.argument_count; i++) {
    for (const TensorView& view : frame.arguments[i].tensors) {
      if (view.dtype == c10::ScalarType::Undefined) continue;
      if (!view.strided) return false;
      if (view.on_gpu()) bytes += view.bytes;
    }
  }
  return static_cast<int64_t>(bytes) <= limit;
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

bool touches_gpu(const Frame& frame) {
  for (size_t i = 0; i < frame.argument_count; i++) {
    for (const TensorView& view : frame.arguments[i].tensors) {
      if (view.on_gpu()) return true;
    }
  }
  return false;
}

// nonzero and unique copy a count to the host before anything is computed; the answer has to be there by then.
void answer_count(Frame& frame) {
  frame.call.arguments.assign(frame.arguments.begin(), frame.arguments.begin() + static_cast<ptrdiff_t>(frame.argument_count));
  frame.call.op = frame.op;
  const int64_t count = maya_work_is_queued() ? -1 : count_of_elements(frame.call);
  if (count >= 0) maya_answer_next_read(count, 64);
}

// ---- callbacks ----

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& function) {
  if (function.isAsync()) return nullptr;  // ends elsewhere and later: not a frame of this thread
  maya_thread* thread = maya_this_thread();
  Frame* parent = this_thread.top();
  Frame& frame = this_thread.push();
  frame.op = operator_of(function);
  if (frame.op == nullptr) frame.name = function.name();
  frame.number = maya_next_op();
  frame.parent = thread->current_op;
  frame.work_before = thread->device_work;
  frame.work_of_children = 0;
  frame.may_compute = false;
  frame.exceptions = std::uncaught_exceptions();
  // In backward the number is that of the forward op, which only the node itself knows.
  const bool is_node = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  frame.in_backward = is_node || (parent != nullptr && parent->in_backward);
  frame.sequence = !is_node && frame.in_backward ? parent->sequence : function.seqNr();
  thread->current_op = frame.number;
  thread->ops_uncounted++;

  const auto inputs = function.inputs();
  frame.argument_count = inputs.size();
  if (frame.arguments.size() < inputs.size()) frame.arguments.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) read_argument(inputs[i], frame.arguments[i]);

  const maya_settings* settings = maya_get_settings();
  if (frame.op != nullptr && frame.op->handle && settings->compute != MAYA_COMPUTE_NONE && touches_gpu(frame) &&
      small_enough(frame, settings->compute_bytes)) {
    frame.may_compute = true;
    keep_values(frame, inputs);
    if (frame.op->takes_generator) keep_random_state(frame, inputs);
    if (frame.op->counts_elements) answer_count(frame);
  }
  frame.start_ns = maya_now_ns();
  return std::make_unique<Context>(this_thread.depth);
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

// The op launched kernels of its own: do what they would have done to values, or say that it was not done.
void apply_values(Frame& frame, const at::RecordFunction& function, void* stream) {
  thread_local std::vector<TensorView> outputs;
  outputs.clear();
  for (const c10::IValue& value : function.outputs()) collect_outputs(value, outputs);
  bool can_compute = frame.may_compute;
  size_t output_bytes = 0;
  for (const TensorView& output : outputs) {
    output_bytes += output.on_gpu() ? output.bytes : 0;
    can_compute = can_compute && (output.strided || output.dtype == c10::ScalarType::Undefined);
  }
  can_compute = can_compute && static_cast<int64_t>(output_bytes) <= maya_get_settings()->compute_bytes;
  if (!can_compute) {
    results_are_made_up(stream, frame.arguments, frame.argument_count, frame.op, outputs);
    return;
  }
  Call call = std::move(frame.call);
  frame.call = Call();
  call.op = frame.op;
  call.arguments.assign(frame.arguments.begin(), frame.arguments.begin() + static_cast<ptrdiff_t>(frame.argument_count));
  call.outputs = outputs;
  if (call.gpu_bytes() > static_cast<size_t>(maya_get_settings()->compute_bytes)) {
    results_are_made_up(stream, frame.arguments, frame.argument_count, frame.op, outputs);
    return;
  }
  apply_in_stream(stream, std::move(call));
}

void op_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr || this_thread.depth != static_cast<Context*>(context)->depth) return;
  Frame& frame = *this_thread.top();
  maya_thread* thread = maya_this_thread();
  const uint32_t work = thread->device_work - frame.work_before;
  const bool failed = std::uncaught_exceptions() > frame.exceptions;
  const bool is_annotation = function.scope() == at::RecordScope::USER_SCOPE;
  if (work > 0 || is_annotation) {
    const uint64_t end_ns = maya_now_ns();
    const char* name = frame.op != nullptr ? frame.op->name.c_str() : frame.name.c_str();
    const uint32_t signature =
        frame.op != nullptr ? op_signature(name, frame.arguments, frame.argument_count) : name_signature(name);
    const uint32_t sequence = frame.sequence < 0 ? UINT32_MAX : static_cast<uint32_t>(frame.sequence);
    maya_record_op(is_annotation ? MAYA_RECORD_ANNOTATION : MAYA_RECORD_OP, frame.number, frame.parent, signature,
                   frame.start_ns, end_ns - frame.start_ns, sequence);
  }
  if (work > frame.work_of_children && frame.op != nullptr && !failed) {
    apply_values(frame, function, thread->work_stream);
  }
  if (frame.op != nullptr && frame.op->counts_elements) maya_answer_next_read(0, 0);
  thread->current_op = frame.parent;
  this_thread.depth--;
  if (Frame* parent = this_thread.top()) parent->work_of_children += work;
}

struct Registration {
  Registration() {
    maya_set_source_finder(find_source_line);
    maya_set_op_namer(current_op_name);
    at::addGlobalCallback(at::RecordFunctionCallback(op_begins, op_ends)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                       at::RecordScope::USER_SCOPE, at::RecordScope::CUSTOM_CLASS}));
  }
};

const Registration registration;

}  // namespace
}  // namespace maya
