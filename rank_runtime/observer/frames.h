// The stack of ops, autograd nodes and annotations that a thread is in, innermost last.
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
#include "routed_ops.h"
#include "argument_scan.h"
#include "signature.h"

namespace maya {

// An autograd node that the engine is evaluating.
struct Node {
  const torch::autograd::Node* address = nullptr;  // nullptr: none
  int64_t sequence = -1;
};

// A running op, autograd node or annotation. Frames are reused: a frame's index in the thread's stack is its nesting depth.
struct Frame {
  const Operator* op = nullptr;  // nullptr: an autograd node or an annotation
  bool is_node = false;
  const char* name = nullptr;  // of an annotation; lives as long as its RecordFunction
  uint32_t number = 0, parent = 0;
  uint64_t start_ns = 0;
  uint32_t launches_before = 0;  // the thread's kernels and library calls when the op began
  uint32_t launches_of_children = 0;
  uint32_t blocks_before = 0;
  int64_t sequence = -1;
  Node outer;  // for a node: the node that was being evaluated when this one began
  bool may_compute = false;
  bool is_changed_inside = false;             // an op inside it has changed an argument that it reads and writes
  maya_content content = MAYA_CONTENT_OTHER;  // of the tensor that the op writes
  bool is_empty_gemm = false;                 // a GEMM with an empty operand
  bool is_optimizer_step = false;             // a torch.optim annotation that is not inside another one
  uint32_t optimizer = 0;                     // the optimizer's number; 0: unknown
  int64_t byte_limit = 0;                     // largest total size of its tensors at which it is computed
  bool described = false;                     // `arguments` is filled in
  Fingerprint fingerprint;
  uint32_t signature = 0;
  Written written;                 // arguments that the op writes to
  unsigned int exceptions = 0;     // uncaught exceptions when the op began
  const void* function = nullptr;  // its RecordFunction, by which the end callback finds the frame
  std::vector<Argument> arguments;
  size_t argument_count = 0;
  RoutedOp routing;
  Call call;  // the values needed to compute the op, if may_compute
};

// The layout of a thread's exception state in the C++ ABI. std::uncaught_exceptions() reads the same field after two calls.
struct ExceptionState {
  void* caught;
  unsigned int uncaught;
};

struct Thread {
  std::vector<std::unique_ptr<Frame>> frames;
  size_t depth = 0;
  bool computing = false;    // ops that run now are the observer's own ...
  bool calibrating = false;  // ... and only measure the overhead of callbacks
  Node node;                 // the innermost node
  maya_thread* device = maya_this_thread();
  const ExceptionState* exceptions = reinterpret_cast<const ExceptionState*>(abi::__cxa_get_globals());
  std::vector<TensorView> outputs;  // scratch
  RecentOperators operators{};
  // Recent signatures by fingerprint; a slot holds two.
  std::array<std::array<std::pair<Fingerprint, uint32_t>, 2>, 512> signatures{};
  std::array<std::pair<const std::type_info*, uint32_t>, 64> node_signatures{};  // by type of node
  std::unordered_map<std::string_view, uint32_t> name_signatures;
  std::deque<std::string> names;  // owns the text of name_signatures' keys
  std::string node_name;          // for messages

  // Pushes a frame and fills in every field that does not depend on its kind.
  Frame& push(const void* function);
  Frame* top() { return depth ? frames[depth - 1].get() : nullptr; }
  // Pops frames until that of `function` is the top one; false if this thread has none. The popped frames belong to
  // annotations that began on this thread and ended on another.
  bool pop_to(const void* function);
  // Pops the top frame; `launches` counts its kernels and library calls.
  void pop(uint32_t launches);
  // Records the top frame as an op or annotation that ends now.
  void record(maya_record_kind kind, uint32_t signature);
  // Like the free function find_signature, behind a cache of the thread.
  uint32_t find_signature(const Fingerprint& print);
  // Whether an optimizer step is among the thread's frames.
  bool is_in_optimizer_step() const;
  // Number of the text {"op": name}.
  uint32_t signature_of_name(const char* name);
};

Thread& this_thread();

}  // namespace maya
