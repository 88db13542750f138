// Attention on the CPU, for the three fused CUDA implementations (flash, memory-efficient, cuDNN), forward and backward.
//
// All three compute the same in float32; they differ in the order of dimensions and in their additional results. Dropout is
// ignored.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpu_equivalents.h"

namespace maya {
namespace {

enum class Order { kSequenceThenHeads, kHeadsThenSequence };

struct Problem {
  at::Tensor bias;  // added to the scores; may be undefined
  bool causal = false;
  bool causal_from_bottom_right = false;
  double scale = 1.0;
};

double scale_of(const Arguments& arguments, const at::Tensor& query) {
  return arguments.number("scale", 1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

at::Tensor to_heads_first(const at::Tensor& tensor, Order order) {
  return order == Order::kSequenceThenHeads ? tensor.transpose(1, 2) : tensor;
}

at::Tensor causal_mask(int64_t queries, int64_t keys, bool from_bottom_right) {
  const int64_t shift = from_bottom_right ? keys - queries : 0;
  return at::ones({queries, keys}, at::kBool).tril(shift).logical_not();
}

// Query, key and value are [batch, heads, sequence, size] in float32 here and below; with grouped-query attention, the heads of
// key and value that several query heads share are repeated.
at::Tensor scores_of(const at::Tensor& query, const at::Tensor& key, const Problem& problem) {
  at::Tensor scores = at::matmul(query, key.transpose(-2, -1)) * problem.scale;
  if (problem.bias.defined()) scores = scores + problem.bias.to(at::kFloat);
  if (!problem.causal) return scores;
  return scores.masked_fill(causal_mask(scores.size(-2), scores.size(-1), problem.causal_from_bottom_right),
                            -std::numeric_limits<float>::infinity());
}

at::Tensor repeat_heads(const at::Tensor& tensor, int64_t heads) {
  return tensor.size(1) == heads ? tensor : tensor.repeat_interleave(heads / tensor.size(1), 1);
}

// The gradient of repeat_heads' input.
at::Tensor sum_repeated_heads(const at::Tensor& gradient, int64_t heads) {
  return gradient.size(1) == heads ? gradient : gradient.unflatten(1, {heads, -1}).sum(2);
}

struct Attended {
  at::Tensor output;
  at::Tensor lse;
};

Attended attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Problem& problem) {
  const at::Tensor scores = scores_of(query, repeat_heads(key, query.size(1)), problem);
  return {at::matmul(at::softmax(scores, -1), repeat_heads(value, query.size(1))), at::logsumexp(scores, {-1})};
}

struct AttentionGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor scores;
};

// Uses the given output and log-sum-exp, as the CUDA kernels do: where a sequence is split over ranks, they belong to the whole
// sequence, and the keys here are a part of it.
AttentionGradients attention_gradients(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                       const at::Tensor& gradient, const Attended& attended, const Problem& problem) {
  const int64_t heads = query.size(1), key_heads = key.size(1);
  const at::Tensor keys = repeat_heads(key, heads), values = repeat_heads(value, heads);
  const at::Tensor lse = attended.lse.reshape({query.size(0), heads, -1, 1}).narrow(2, 0, query.size(2));
  const at::Tensor weights = (scores_of(query, keys, problem) - lse).exp();
  const at::Tensor mean = (gradient * attended.output).sum(-1, true);
  const at::Tensor of_scores = weights * (at::matmul(gradient, values.transpose(-2, -1)) - mean);
  const at::Tensor of_keys = at::matmul(of_scores.transpose(-2, -1), query) * problem.scale;
  const at::Tensor of_values = at::matmul(weights.transpose(-2, -1), gradient);
  return {at::matmul(of_scores, keys) * problem.scale, sum_repeated_heads(of_keys, key_heads),
          sum_repeated_heads(of_values, key_heads), of_scores};
}

// Throws for sequences of different lengths packed into one [tokens, heads, size] tensor, which are implemented for flash only.
void refuse_packed(const Arguments& arguments) {
  TORCH_CHECK(!arguments.has("cu_seqlens_q"), "memory-efficient attention over packed sequences has no CPU equivalent here");
}

Results forward(const Arguments& arguments, Order order, const Problem& problem, bool sequence_lse_padded) {
  refuse_packed(arguments);
  auto prepare = [&](const char* name) { return to_heads_first(arguments.tensor(name).to(at::kFloat), order); };
  auto [output, lse] = attend(prepare("query"), prepare("key"), prepare("value"), problem);
  if (sequence_lse_padded) {  // memory-efficient attention rounds the sequence up to 32
    const int64_t padding = (32 - lse.size(-1) % 32) % 32;
    lse = at::constant_pad_nd(lse, {0, padding}, std::numeric_limits<float>::infinity());
  }
  at::Tensor nothing;
  return {to_heads_first(output, order), lse, nothing, nothing, nothing, nothing, nothing, nothing, nothing};
}

Results backward(const Arguments& arguments, Order order, const Problem& problem, const char* gradient_name) {
  refuse_packed(arguments);
  auto prepare = [&](const char* name) { return to_heads_first(arguments.tensor(name).to(at::kFloat), order); };
  const Attended attended{prepare("out"), arguments.tensor("logsumexp").to(at::kFloat)};
  const AttentionGradients found =
      attention_gradients(prepare("query"), prepare("key"), prepare("value"), prepare(gradient_name), attended, problem);
  return {to_heads_first(found.query, order), to_heads_first(found.key, order), to_heads_first(found.value, order),
          problem.bias.defined() ? found.scores.sum_to_size(problem.bias.sizes()) : at::Tensor()};
}

// ---- packed sequences: [tokens of all sequences, heads, size], and the offsets of the sequences ----

struct Packing {
  std::vector<int64_t> query;
  std::vector<int64_t> key;
};

std::vector<int64_t> offsets_of(const at::Tensor& offsets) {
  const at::Tensor wide = offsets.to(at::kLong).contiguous();
  return {wide.data_ptr<int64_t>(), wide.data_ptr<int64_t>() + wide.numel()};
}

Packing packing_of(const Arguments& arguments) {
  return {offsets_of(arguments.tensor("cum_seq_q")), offsets_of(arguments.tensor("cum_seq_k"))};
}

// One sequence as [1, heads, tokens, size].
at::Tensor unpacked(const at::Tensor& tensor, const std::vector<int64_t>& offsets, size_t sequence) {
  const int64_t length = offsets[sequence + 1] - offsets[sequence];
  return tensor.narrow(0, offsets[sequence], length).to(at::kFloat).transpose(0, 1).unsqueeze(0);
}

at::Tensor packed(const std::vector<at::Tensor>& sequences) { return at::cat(sequences, 2).squeeze(0).transpose(0, 1); }

Results packed_forward(const Arguments& arguments, const Problem& problem) {
  const Packing packing = packing_of(arguments);
  std::vector<at::Tensor> outputs, lses;
  for (size_t i = 0; i + 1 < packing.query.size(); i++) {
    const Attended attended =
        attend(unpacked(arguments.tensor("query"), packing.query, i), unpacked(arguments.tensor("key"), packing.key, i),
               unpacked(arguments.tensor("value"), packing.key, i), problem);
    outputs.push_back(attended.output);
    lses.push_back(attended.lse.squeeze(0));
  }
  at::Tensor nothing;
  return {packed(outputs), at::cat(lses, 1), nothing, nothing, nothing, nothing, nothing, nothing, nothing};
}

Results packed_backward(const Arguments& arguments, const Problem& problem) {
  const Packing packing = packing_of(arguments);
  std::vector<at::Tensor> of_queries, of_keys, of_values;
  for (size_t i = 0; i + 1 < packing.query.size(); i++) {
    auto of_query = [&](const char* name) { return unpacked(arguments.tensor(name), packing.query, i); };
    auto of_key = [&](const char* name) { return unpacked(arguments.tensor(name), packing.key, i); };
    const int64_t length = packing.query[i + 1] - packing.query[i];
    const at::Tensor lse = arguments.tensor("logsumexp").narrow(1, packing.query[i], length).to(at::kFloat);
    const AttentionGradients found = attention_gradients(of_query("query"), of_key("key"), of_key("value"),
                                                         of_query("grad_out"), {of_query("out"), lse}, problem);
    of_queries.push_back(found.query);
    of_keys.push_back(found.key);
    of_values.push_back(found.value);
  }
  return {packed(of_queries), packed(of_keys), packed(of_values), at::Tensor()};
}

Problem flash_problem(const Arguments& arguments) {
  return {at::Tensor(), arguments.flag("is_causal"), true, scale_of(arguments, arguments.tensor("query"))};
}

Problem efficient_problem(const Arguments& arguments) {
  const int64_t mask = arguments.integer("custom_mask_type");  // 0 none, 1 causal from top left, 2 from bottom right
  return {arguments.tensor("bias"), mask != 0, mask == 2, scale_of(arguments, arguments.tensor("query"))};
}

Problem cudnn_problem(const Arguments& arguments) {
  return {arguments.tensor("attn_bias"), arguments.flag("is_causal"), false, scale_of(arguments, arguments.tensor("query"))};
}

Results flash_forward(const Arguments& arguments) {
  if (arguments.has("cum_seq_q")) return packed_forward(arguments, flash_problem(arguments));
  return forward(arguments, Order::kSequenceThenHeads, flash_problem(arguments), false);
}

Results flash_backward(const Arguments& arguments) {
  if (arguments.has("cum_seq_q")) return packed_backward(arguments, flash_problem(arguments));
  return backward(arguments, Order::kSequenceThenHeads, flash_problem(arguments), "grad_out");
}

Results efficient_forward(const Arguments& arguments) {
  return forward(arguments, Order::kSequenceThenHeads, efficient_problem(arguments), true);
}

Results efficient_backward(const Arguments& arguments) {
  return backward(arguments, Order::kSequenceThenHeads, efficient_problem(arguments), "grad_out_");
}

Results cudnn_forward(const Arguments& arguments) {
  return forward(arguments, Order::kHeadsThenSequence, cudnn_problem(arguments), false);
}

Results cudnn_backward(const Arguments& arguments) {
  return backward(arguments, Order::kHeadsThenSequence, cudnn_problem(arguments), "grad_out");
}

}  // namespace

CpuEquivalent attention_equivalent(const std::string& name) {
  if (name == "aten::_flash_attention_forward") return flash_forward;
  if (name == "aten::_flash_attention_backward") return flash_backward;
  if (name == "aten::_efficient_attention_forward") return efficient_forward;
  if (name == "aten::_efficient_attention_backward") return efficient_backward;
  if (name == "aten::_cudnn_attention_forward" || name == "aten::_scaled_dot_product_cudnn_attention") return cudnn_forward;
  if (name == "aten::_cudnn_attention_backward" || name == "aten::_scaled_dot_product_cudnn_attention_backward") {
    return cudnn_backward;
  }
  return nullptr;
}

}  // namespace maya
