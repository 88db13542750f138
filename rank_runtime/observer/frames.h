// The ops that a thread is in, innermost last.
#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <cxxabi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "../shim/device/internal.h"
#include "compute.h"
#include "operators.h"
#include "scan.h"
#include "signature.h"

namespace maya {

// An autograd node that is being evaluated.
struct Node {
  const torch::autograd::Node* address = nullptr;  // nullptr: none
  int64_t sequence = -1;
};

// An op, an autograd node or an annotation that is running. Frames are reused: index in the thread's stack = nesting depth.
struct Frame {
  const Operator* op = nullptr;  // nullptr: a node or an annotation
  bool is_node = false;
  const char* name = nullptr;  // of an annotation; lives as long as its RecordFunction
  uint32_t number = 0, parent = 0;
  uint64_t start_ns = 0;
  uint32_t work_before = 0;  // the thread's device work when the op began
  uint32_t work_of_children = 0;
  uint32_t blocks_before = 0;
  int64_t sequence = -1;
  Node around;  // of a node: the one that is evaluated meanwhile
  bool may_compute = false;
  maya_content content = MAYA_CONTENT_OTHER;  // of the tensor that the op writes
  bool is_empty_product = false;              // a matrix product of nothing
  bool is_optimizer_step = false;             // an annotation of torch.optim's that is in no other one
  uint32_t optimizer = 0;                     // its number; 0: not known
  int64_t most_bytes = 0;                     // of its tensors together, if it is to be computed
  bool described = false;                     // `arguments` is filled in
  Fingerprint fingerprint;
  uint32_t signature = 0;
  Written written;                 // arguments that the op writes to
  unsigned int exceptions = 0;     // under way when the op began
  const void* function = nullptr;  // its RecordFunction, to recognise the end
  std::vector<Argument> arguments;
  size_t argument_count = 0;
  Call call;  // values that computing needs, if may_compute
};

// What the C++ ABI lays down about a thread's exceptions; std::uncaught_exceptions() reads the same, after two calls.
struct ExceptionState {
  void* caught;
  unsigned int uncaught;
};

struct Thread {
  std::vector<std::unique_ptr<Frame>> frames;
  size_t depth = 0;
  bool computing = false;    // ops that run now are ours ...
  bool calibrating = false;  // ... and only there to be announced
  Node node;                 // the innermost one
  maya_thread* device = maya_this_thread();
  const ExceptionState* exceptions = reinterpret_cast<const ExceptionState*>(abi::__cxa_get_globals());
  std::vector<TensorView> outputs;  // scratch
  RecentOperators operators{};
  // By fingerprint, the last two of each slot.
  std::array<std::array<std::pair<Fingerprint, uint32_t>, 2>, 512> signatures{};
  std::array<std::pair<const std::type_info*, uint32_t>, 64> node_signatures{};  // by type of node
  std::unordered_map<std::string_view, uint32_t> name_signatures;
  std::deque<std::string> names;  // what the views view
  std::string node_name;          // for messages

  // A frame for what begins now, with everything that does not depend on its kind filled in.
  Frame& push(const void* function);
  Frame* top() { return depth ? frames[depth - 1].get() : nullptr; }
  // Makes the frame of `function` the top one; false if it has none here. Frames above it are of annotations that began on
  // this thread and were ended on another.
  bool pop_to(const void* function);
  // The top one ends.
  void pop(uint32_t work);
  // Records the top frame, which ends now, as an op or an annotation.
  void record(maya_record_kind kind, uint32_t signature);
  // As the function of that name, which it asks only if the thread did not lately.
  uint32_t find_signature(const Fingerprint& print);
  // Whether an optimizer's step is around what begins now.
  bool is_in_optimizer_step() const;
  // Number of the text {"op": name}.
  uint32_t signature_of_name(const char* name);
};

Thread& this_thread();

}  // namespace maya
