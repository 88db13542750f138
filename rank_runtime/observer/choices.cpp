// Choices among placeholder scores: which alternatives each row prefers, and the records about it.

#include "choices.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "../shim/device/internal.h"
#include "../shim/device/routing.h"
#include "source_line.h"

namespace maya {
namespace {

// argmax over more alternatives picks a word of a vocabulary rather than an expert, and stays a placeholder.
constexpr int64_t kMostAlternatives = 512;
constexpr int kUnknownPlaces = 10000;  // as in copies.c: finding a line takes Python's lock

std::atomic<bool> exist{false};

// ---- the rule ----

uint64_t mixed(uint64_t value) {  // splitmix64
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ value >> 27) * 0x94D049BB133111EBull;
  return value ^ value >> 31;
}

// The smallest number from `least` on that has no common divisor with `of`.
int64_t coprime_from(int64_t least, int64_t of) {
  int64_t number = std::max<int64_t>(least, 1);
  while (std::gcd(number, of) != 1) number++;
  return number;
}

// Which of `count` alternatives each of `rows` rows prefers, if it takes `taken` of them.
class Rule {
 public:
  Rule(int64_t rows, int64_t count, int64_t taken) : rows_(rows), count_(count), taken_(taken) {
    const int64_t skew = maya_get_settings()->moe_skew;
    if (skew > 1000 && taken < count && rows > 0) fill_unevenly(static_cast<double>(skew) / 1000.0);
    else step_ = coprime_from(count / taken, count);
  }

  // Writes the first `wanted` preferences of a row.
  void preferences(int64_t row, int64_t wanted, int64_t* chosen) const {
    if (cells_.empty()) {
      // Rows take turns, `taken_` alternatives each. After `period` rows all turns repeat; then each row begins with another of
      // its alternatives, so that first choices are spread evenly as well.
      const int64_t period = count_ / std::gcd(count_, taken_), first = row * taken_, round = row / period;
      for (int64_t i = 0; i < wanted; i++) {
        const int64_t turn = i < taken_ ? (i + round) % taken_ : i;
        chosen[i] = (first + turn) % count_ * step_ % count_;
      }
      return;
    }
    const int64_t line = row % rows_ * row_step_ % rows_;
    int64_t found = 0;
    for (; found < std::min(wanted, taken_); found++) chosen[found] = cells_[line + found * rows_];
    for (int64_t other : by_load_) {
      if (found >= wanted) return;
      const int64_t* end = chosen + std::min(found, taken_);
      if (std::find(static_cast<const int64_t*>(chosen), end, other) == end) chosen[found++] = other;
    }
  }

 private:
  // How often each alternative is chosen, most frequent first: a power law whose first is `skew` times the mean. No row can
  // choose an alternative twice, so none is chosen more often than there are rows.
  std::vector<int64_t> loads(double skew) const {
    const double wanted = std::min(skew, static_cast<double>(count_) / static_cast<double>(taken_));
    const auto total_at = [&](double exponent) {
      double total = 0;
      for (int64_t i = 0; i < count_; i++) total += std::pow(static_cast<double>(i + 1), -exponent);
      return total;
    };
    double low = 0, high = 64;
    for (int i = 0; i < 60; i++) {
      const double middle = (low + high) / 2;
      (static_cast<double>(count_) / total_at(middle) < wanted ? low : high) = middle;
    }
    const double each = static_cast<double>(rows_ * taken_) / total_at(high);
    std::vector<int64_t> load(static_cast<size_t>(count_));
    int64_t left = rows_ * taken_;
    for (int64_t i = 0; i < count_; i++) {
      load[i] = std::min({rows_, left, static_cast<int64_t>(each * std::pow(static_cast<double>(i + 1), -high))});
      left -= load[i];
    }
    while (left > 0) {  // fractions, and what is above the number of rows
      for (int64_t i = 0; i < count_ && left > 0; i++) {
        if (load[i] >= rows_) continue;
        load[i]++;
        left--;
      }
    }
    return load;
  }

  // Fills a table of `taken` columns, column by column, with every alternative as often as it is chosen. An alternative fills
  // at most as many successive cells as there are rows, so no row has it twice.
  void fill_unevenly(double skew) {
    by_load_.resize(static_cast<size_t>(count_));
    std::iota(by_load_.begin(), by_load_.end(), 0);
    uint64_t random = static_cast<uint64_t>(maya_get_settings()->moe_seed);
    for (int64_t i = count_ - 1; i > 0; i--) {
      random = mixed(random);
      std::swap(by_load_[i], by_load_[random % static_cast<uint64_t>(i + 1)]);
    }
    const std::vector<int64_t> load = loads(skew);
    cells_.reserve(static_cast<size_t>(rows_ * taken_));
    for (int64_t i = 0; i < count_; i++) cells_.insert(cells_.end(), static_cast<size_t>(load[i]), by_load_[i]);
    row_step_ = coprime_from(static_cast<int64_t>(0.618 * static_cast<double>(rows_)), rows_);
  }

  int64_t rows_, count_, taken_;
  int64_t step_ = 1, row_step_ = 1;
  std::vector<int64_t> cells_;    // with a skew: the table
  std::vector<int64_t> by_load_;  // with a skew: the alternatives, most frequent first
};

// ---- places ----

struct Place {
  std::string text;            // the record's signature
  std::atomic<int64_t> times;  // choices by rule since the last record
};

struct Places {
  std::mutex lock;
  std::deque<Place> all;
  std::unordered_map<std::string, int> numbers;
};

Places& places() {
  static Places& known = *new Places;  // never destroyed, as in result_cache.cpp
  return known;
}

// ---- calls ----

int position_of(const Operator& op, const char* name) { return op.handle->schema().argumentIndexWithName(name).value_or(-1); }

// The dimension along which the op chooses; nullopt: none, or all of them.
std::optional<int64_t> dimension_of(const Operator& op, c10::ArrayRef<const c10::IValue> values, int64_t dimensions) {
  const int position = position_of(op, "dim");
  if (position < 0 || dimensions == 0 || !values[position].isInt()) return std::nullopt;
  const int64_t given = values[position].toInt();
  return given < 0 ? given + dimensions : given;
}

bool takes_smallest(const Call& call) {
  if (call.op->name == "aten::argmin" || call.op->name == "aten::min") return true;
  const int largest = position_of(*call.op, "largest"), descending = position_of(*call.op, "descending");
  const int flag = largest >= 0 ? largest : descending;
  return flag >= 0 && call.values[flag].isBool() && !call.values[flag].toBool();
}

// The alternatives of a row, best first: by score, and by the rule among equal ones.
void order_by_score(const float* scores, bool smallest_first, std::vector<int64_t>& preferred) {
  std::stable_sort(preferred.begin(), preferred.end(), [&](int64_t one, int64_t other) {
    return smallest_first ? scores[one] < scores[other] : scores[one] > scores[other];
  });
}

}  // namespace

bool choices_exist() { return exist.load(std::memory_order_relaxed); }

bool may_choose(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (op.choice == Operator::Choice::kNone || maya_get_settings()->compute != MAYA_COMPUTE_SMALL) return false;
  if (!inputs[0].isTensor()) return false;
  const at::Tensor& scores = inputs[0].toTensor();
  if (!scores.defined() || !scores.is_cuda() || !scores.is_floating_point() || scores.numel() == 0) return false;
  const auto dimension = dimension_of(op, inputs, scores.dim());
  if (!dimension) return false;
  const bool is_best = op.choice == Operator::Choice::kBest || op.choice == Operator::Choice::kBestWithScore;
  return !is_best || scores.size(*dimension) <= kMostAlternatives;
}

int place_of_choice(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  static std::atomic<int> found{0};
  exist.store(true, std::memory_order_relaxed);
  maya_routing_begins();
  const at::Tensor& scores = inputs[0].toTensor();
  char line[512] = "", text[1024];
  char skew[64] = "";
  const maya_settings* settings = maya_get_settings();
  if (settings->moe_skew > 1000) {
    std::snprintf(skew, sizeof skew, ",\"skew\":%lld,\"seed\":%lld", static_cast<long long>(settings->moe_skew),
                  static_cast<long long>(settings->moe_seed));
  }
  if (found++ < kUnknownPlaces) find_source_line(line, sizeof line);
  std::snprintf(text, sizeof text, "{\"choice\":\"%.200s\",\"at\":\"%s\",\"alternatives\":%lld%s}", op.name.c_str(), line,
                static_cast<long long>(scores.size(*dimension_of(op, inputs, scores.dim()))), skew);
  std::lock_guard<std::mutex> guard(places().lock);
  const auto [entry, is_new] = places().numbers.emplace(text, static_cast<int>(places().all.size()));
  if (is_new) {
    const int number = entry->second;
    std::string& made = places().all.emplace_back().text;
    made = text;
    made.pop_back();
    made += ",\"place\":" + std::to_string(number) + "}";
  }
  return entry->second;
}

uint32_t mark_of_place(int place) { return uint32_t{1} << std::min<int>(place, MAYA_ROUTING_OTHERS); }

void place_routes(uint32_t marks) {
  const uint32_t found = maya_routing_prove(marks);
  if (found == 0) return;
  std::lock_guard<std::mutex> guard(places().lock);
  for (size_t i = 0; i < places().all.size() && i < MAYA_ROUTING_OTHERS; i++) {
    if ((found >> i & 1) == 0) continue;
    const std::string text = places().all[i].text.substr(0, places().all[i].text.size() - 1) + ",\"routes\":true}";
    maya_record(MAYA_RECORD_CHOICE, 0, maya_intern(text.c_str(), text.size()), 0, 0);
  }
}

void record_choices() {
  std::lock_guard<std::mutex> guard(places().lock);
  for (Place& place : places().all) {
    const int64_t times = place.times.exchange(0);
    if (times == 0) continue;
    maya_record(MAYA_RECORD_CHOICE, 0, maya_intern(place.text.c_str(), place.text.size()), static_cast<uint64_t>(times), 0);
  }
}

void choose_by_rule(const Call& call, bool scores_known) {
  const Operator::Choice kind = call.op->choice;
  const at::Tensor scores = cpu_alias(call.arguments[0].tensors[0]);
  const c10::ArrayRef<const c10::IValue> values(call.values.data(), call.values.size());
  const int64_t dimension = *dimension_of(*call.op, values, scores.dim());
  const bool is_best = kind == Operator::Choice::kBest || kind == Operator::Choice::kBestWithScore;
  const size_t last = kind == Operator::Choice::kBest ? 0 : 1;
  TORCH_CHECK(call.outputs.size() > last, "it has too few results");
  const TensorView& indices = call.outputs[last];
  const int64_t count = scores.size(dimension), rows = scores.numel() / count;
  const int64_t wanted = is_best ? 1 : indices.sizes[dimension];
  if (wanted == 0) return;
  const Rule rule(rows, count, kind == Operator::Choice::kSort ? 1 : wanted);
  at::Tensor chosen = at::empty({rows, wanted}, at::kLong);
  auto* to = chosen.mutable_data_ptr<int64_t>();
  at::Tensor by_row;
  if (scores_known) by_row = scores.movedim(dimension, -1).to(at::kFloat).reshape({rows, count}).contiguous();
  std::vector<int64_t> preferred(scores_known ? static_cast<size_t>(count) : 0);
  for (int64_t row = 0; row < rows; row++, to += wanted) {
    if (!scores_known) {
      rule.preferences(row, wanted, to);
      continue;
    }
    rule.preferences(row, count, preferred.data());
    order_by_score(by_row.const_data_ptr<float>() + row * count, takes_smallest(call), preferred);
    std::copy_n(preferred.begin(), wanted, to);
  }
  std::vector<int64_t> shape = scores.movedim(dimension, -1).sizes().vec();
  shape.back() = wanted;
  chosen = chosen.view(shape).movedim(-1, dimension);
  cpu_alias(indices).copy_(chosen.reshape(indices.sizes));
  mark_computed(indices, /*assumed=*/true);
  {
    std::lock_guard<std::mutex> guard(places().lock);
    places().all[static_cast<size_t>(call.place)].times++;
  }
  if (is_best) return;
  const TensorView& best = call.outputs[0];
  if (!best.on_gpu() || !best.dense || static_cast<int64_t>(best.bytes) > kMostAssumedBytes) return;
  // Equal positive scores that sum to 1. After a sort most of them would be those of alternatives that nobody takes.
  if (scores_known) cpu_alias(best).copy_(scores.gather(dimension, chosen).reshape(best.sizes));
  else if (kind != Operator::Choice::kSort) cpu_alias(best).fill_(1.0 / static_cast<double>(wanted));
  else return;
  mark_computed(best, /*assumed=*/true);
}

}  // namespace maya
