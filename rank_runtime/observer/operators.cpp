// Operators, keyed by the address of their schema's name, which is stable and different for every overload.

#include "operators.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace maya {
namespace {

bool counts_elements(const std::string& name) {
  static const std::array<const char*, 6> names = {"aten::nonzero",    "aten::_unique2",           "aten::_unique",
                                                   "aten::unique_dim", "aten::unique_consecutive", "aten::_coalesce"};
  for (const char* candidate : names) {
    if (name == candidate) return true;
  }
  return false;
}

// In-place ops whose result does not depend on what the tensor held before.
bool overwrites(const std::string& name) {
  static const auto& names = *new std::unordered_set<std::string>{
      "aten::fill_",          "aten::zero_",          "aten::copy_",          "aten::normal_",    "aten::uniform_",
      "aten::random_",        "aten::bernoulli_",     "aten::exponential_",   "aten::geometric_", "aten::log_normal_",
      "aten::cauchy_",        "aten::_foreach_copy_", "aten::_foreach_zero_", "aten::eye_",       "aten::fill_diagonal_",
      "aten::_cummax_helper", "aten::_cummin_helper",
  };
  return names.count(name) > 0;
}

void find_statistics(Operator& op) {
  const bool is_forward = op.name.find("batch_norm") != std::string::npos && op.name.find("backward") == std::string::npos;
  if (!is_forward) return;
  const auto& arguments = op.handle->schema().arguments();
  for (size_t i = 0; i < arguments.size(); i++) {
    if (arguments[i].name() == "running_mean") op.first_statistic = static_cast<int>(i);
    if (arguments[i].name() == "training" || arguments[i].name() == "train") op.training_flag = static_cast<int>(i);
  }
  if (op.training_flag < 0) op.first_statistic = -1;
}

// Whether the op may launch kernels itself. Most ops that a program calls only call others or make views, so the observer need
// not read their arguments.
bool may_launch(const c10::OperatorHandle& handle) {
  static const auto& allocate_or_call_others = *new std::unordered_set<std::string>{
      "aten::empty",          "aten::empty_strided", "aten::empty_like",
      "aten::empty_permuted", "aten::new_empty",     "aten::new_empty_strided",
      "aten::resize_",        "aten::set_",          "aten::detach_",
      "aten::record_stream",  "aten::result_type",   "aten::_to_copy",
      "aten::clone",          "aten::zero_",         "aten::zeros",
      "aten::zeros_like",     "aten::new_zeros",     "aten::ones",
      "aten::ones_like",      "aten::new_ones",      "aten::full",
      "aten::full_like",      "aten::new_full",      "aten::rand",
      "aten::rand_like",      "aten::randn",         "aten::randn_like",
      "aten::randint",        "aten::randint_like",
  };
  if (allocate_or_call_others.count(handle.operator_name().name) > 0) return false;
  // It is composed of other ops on every device.
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
    return false;
  }
  // It is a view: it shares its input's memory and does not write it.
  for (const auto& result : handle.schema().returns()) {
    const auto* alias = result.alias_info();
    if (alias != nullptr && !alias->isWrite()) return false;
  }
  return true;
}

bool tallies(const std::string& name) { return name == "aten::bincount" || name == "aten::histc"; }

Operator::Choice choice_of(const c10::OperatorName& name) {
  if (name.name == "aten::topk") return Operator::Choice::kTop;
  if (name.name == "aten::sort") return Operator::Choice::kSort;
  if (name.name == "aten::argmax" || name.name == "aten::argmin") return Operator::Choice::kBest;
  const std::string& overload = name.overload_name;
  const bool along_dimension = overload == "dim" || overload == "dim_max" || overload == "dim_min";
  if ((name.name == "aten::max" || name.name == "aten::min") && along_dimension) return Operator::Choice::kBestWithScore;
  return Operator::Choice::kNone;
}

// The kind of index of an op, and whether it writes by it.
std::pair<Operator::Indexing, bool> indexing_of(std::string_view name) {
  using Indexing = Operator::Indexing;
  struct Known {
    std::string_view name;
    Indexing indexing;
    bool puts;
  };
  static constexpr Known kKnown[] = {
      {"aten::index", Indexing::kRows, false},
      {"aten::_unsafe_index", Indexing::kRows, false},
      {"aten::index_select", Indexing::kRows, false},
      {"aten::gather", Indexing::kElements, false},
      {"aten::masked_select", Indexing::kMask, false},
      {"aten::index_add", Indexing::kRows, true},
      {"aten::index_put", Indexing::kRows, true},
      {"aten::_index_put_impl", Indexing::kRows, true},
      {"aten::_unsafe_index_put", Indexing::kRows, true},
      {"aten::index_copy", Indexing::kRows, true},
      {"aten::index_reduce", Indexing::kRows, true},
      {"aten::scatter", Indexing::kElements, true},
      {"aten::scatter_add", Indexing::kElements, true},
      {"aten::scatter_reduce", Indexing::kElements, true},
      {"aten::masked_scatter", Indexing::kMask, true},
  };
  if (name.back() == '_') name.remove_suffix(1);
  for (const Known& known : kKnown) {
    if (known.name == name) return {known.indexing, known.puts};
  }
  return {Indexing::kNone, false};
}

bool replaces(const c10::OperatorName& name) {
  std::string_view plain = name.name;
  if (plain.back() == '_') plain.remove_suffix(1);
  if (plain == "aten::scatter") return name.overload_name == "src" || name.overload_name == "value";
  const bool puts = plain == "aten::index_put" || plain == "aten::_index_put_impl" || plain == "aten::index_copy";
  return puts && name.overload_name.empty();
}

bool is_gemm(std::string_view name) {
  static constexpr std::string_view kNames[] = {"aten::mm",          "aten::addmm",
                                                "aten::bmm",         "aten::baddbmm",
                                                "aten::_scaled_mm",  "aten::_addmm_activation",
                                                "aten::_grouped_mm", "aten::_scaled_grouped_mm"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Operator::Results results_of(const c10::FunctionSchema& schema) {
  bool all_written = true, all_tensors = true;
  for (const auto& result : schema.returns()) {
    if (result.type()->isSubtypeOf(*c10::NumberType::get())) continue;
    const auto* alias = result.alias_info();
    all_written = all_written && alias != nullptr && alias->isWrite();
    all_tensors = all_tensors && alias == nullptr && result.type()->kind() == c10::TypeKind::TensorType;
  }
  // The op may resize an `out` argument and thereby allocate its memory.
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    if (alias != nullptr && alias->isWrite() && argument.kwarg_only()) return Operator::Results::kAnywhere;
  }
  // Placeholder results of these ops are written to their output, so its exact location is needed.
  if (schema.name() == "aten::all" || tallies(schema.name())) return Operator::Results::kAnywhere;
  return all_written   ? Operator::Results::kArguments
         : all_tensors ? Operator::Results::kNewBlocks
                       : Operator::Results::kAnywhere;
}

Operator::KernelFree kernel_free_form_of(const c10::OperatorName& name) {
  if (name.name == "aten::copy_") return Operator::KernelFree::kCopy;
  if (name.name == "aten::_foreach_add_" && name.overload_name == "Scalar") return Operator::KernelFree::kAddNumber;
  return Operator::KernelFree::kNone;
}

// Only overloads that launch kernels of their own: others call these.
Operator::FastForm fast_form_of(const c10::OperatorName& name) {
  const std::string& overload = name.overload_name;
  if (name.name == "aten::nonzero" && overload.empty()) return Operator::FastForm::kNonzero;
  if (name.name == "aten::masked_select" && overload.empty()) return Operator::FastForm::kMaskedSelect;
  if (name.name == "aten::sum" && overload == "dim_IntList") return Operator::FastForm::kSum;
  if (name.name == "aten::sort" && overload == "stable") return Operator::FastForm::kSort;
  return Operator::FastForm::kNone;
}

// Views and composed ops touch no memory themselves.
Operator::HostForm host_form_of(const Operator& op) {
  using Form = Operator::HostForm;
  if (op.name == "aten::copy_") return Form::kCopy;
  if (!op.handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) || op.handle->hasTag(at::Tag::inplace_view))
    return Form::kPass;
  for (const auto& result : op.handle->schema().returns()) {
    const auto* alias = result.alias_info();
    if (alias != nullptr && !alias->isWrite()) return Form::kPass;
  }
  static const auto& metadata_only = *new std::unordered_set<std::string>{"aten::set_", "aten::resize_", "aten::is_set_to"};
  if (metadata_only.count(op.name) > 0) return Form::kPass;
  if (op.name == "aten::fill_" || op.name == "aten::zero_") return Form::kFill;
  if (op.name == "aten::_local_scalar_dense" || op.name == "aten::equal") return Form::kRead;
  return op.takes_generator && !op.writes.empty() && op.writes[0] && !op.reads[0] ? Form::kRandom : Form::kGeneral;
}

int find_beta(const c10::FunctionSchema& schema) {
  static constexpr std::string_view kNames[] = {"aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::addmv"};
  std::string_view name = schema.name();
  if (name.back() == '_') name.remove_suffix(1);
  if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) return -1;
  return schema.argumentIndexWithName("beta").value_or(-1);
}

std::unique_ptr<Operator> describe(const c10::OperatorName& name) {
  auto made = std::make_unique<Operator>();
  made->name = name.name;
  made->overload = name.overload_name;
  made->handle = c10::Dispatcher::singleton().findSchema(name);
  if (!made->handle) return made;
  for (const auto& argument : made->handle->schema().arguments()) {
    const auto* alias = argument.alias_info();
    made->writes.push_back(alias != nullptr && alias->isWrite());
    made->writes_any = made->writes_any || made->writes.back();
    const bool is_result = made->writes.back() && (argument.kwarg_only() || overwrites(made->name));
    made->reads.push_back(!is_result);
    const bool is_tensor = argument.type()->kind() == c10::TypeKind::TensorType;
    made->is_out.push_back(made->writes.back() && argument.kwarg_only() && is_tensor);
    made->has_out = made->has_out || made->is_out.back();
    const auto type = argument.type();
    const auto inner =
        type->kind() == c10::TypeKind::OptionalType ? type->expectRef<c10::OptionalType>().getElementType() : type;
    made->takes_generator = made->takes_generator || inner->kind() == c10::TypeKind::GeneratorType;
  }
  made->draws_by_default = !made->takes_generator && made->handle->hasTag(at::Tag::nondeterministic_seeded);
  made->changes_inside = made->name == "aten::scatter_reduce_" || made->name == "aten::index_reduce_";
  made->is_pointwise = made->handle->hasTag(at::Tag::pointwise);
  made->beta = find_beta(made->handle->schema());
  made->is_gemm = is_gemm(made->name);
  made->joins = made->name == "aten::cat";
  made->is_collective = made->name.rfind("c10d::", 0) == 0;
  made->fills = made->name == "aten::fill_" && made->overload == "Scalar";
  made->tallies = tallies(made->name);
  made->choice = choice_of(name);
  std::tie(made->indexing, made->puts) = indexing_of(made->name);
  made->replaces = replaces(name);
  made->counts_elements = counts_elements(made->name);
  made->compares = made->name == "aten::equal";
  made->may_launch = may_launch(*made->handle);
  made->results = results_of(made->handle->schema());
  made->kernel_free = kernel_free_form_of(name);
  made->fast_form = fast_form_of(name);
  for (const auto& result : made->handle->schema().returns()) {
    made->reports_errors = made->reports_errors || result.name() == "info";
  }
  find_statistics(*made);
  made->host_form = host_form_of(*made);
  return made;
}

struct Described {
  std::shared_mutex lock;
  std::unordered_map<const char*, std::unique_ptr<Operator>> operators;
};

Described& described() {
  static Described& all = *new Described;  // never destroyed, as in optimizers.cpp
  return all;
}

const Operator* find(const char* key, RecentOperators& recent) {
  auto& slot = recent[(reinterpret_cast<uintptr_t>(key) >> 5) % recent.size()];
  if (slot.first == key) return slot.second;
  std::shared_lock<std::shared_mutex> reading(described().lock);
  auto found = described().operators.find(key);
  if (found == described().operators.end()) return nullptr;
  slot = {key, found->second.get()};
  return slot.second;
}

const Operator* keep(const char* key, std::unique_ptr<Operator> made) {
  std::unique_lock<std::shared_mutex> writing(described().lock);
  return described().operators.emplace(key, std::move(made)).first->second.get();
}

}  // namespace

bool Operator::has_cpu_kernel() const { return handle && handle->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU); }

bool Operator::reads_argument(c10::ArrayRef<const c10::IValue> values, size_t index) const {
  if (index >= reads.size()) return true;
  if (index == 0 && beta >= 0 && values[beta].isScalar() && values[beta].toScalar().toDouble() == 0.0) return false;
  return reads[index];
}

const Operator& operator_of(const c10::FunctionSchema& schema, RecentOperators& recent) {
  const char* key = schema.name().c_str();
  if (const Operator* known = find(key, recent)) return *known;
  return *keep(key, describe(schema.operator_name()));
}

const Operator* operator_of(const at::RecordFunction& function, RecentOperators& recent) {
  const char* key = function.name();
  if (const Operator* known = find(key, recent)) return known;
  // The name of an annotation lives no longer than its RecordFunction, so it must not become a key.
  const auto name = function.operator_name();
  return name ? keep(key, describe(*name)) : nullptr;
}

void describe_all_operators(const std::function<void(const Operator&)>& visit) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    std::unique_ptr<Operator> made = describe(name);
    if (!made->handle) continue;
    const char* key = made->handle->schema().name().c_str();  // the address that RecordFunction::name() returns
    visit(*keep(key, std::move(made)));
  }
}

}  // namespace maya
