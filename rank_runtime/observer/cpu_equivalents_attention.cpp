// Attention on the CPU, for the three fused CUDA implementations (flash, memory-efficient, cuDNN), forward and backward.
//
// All three compute the same in float32; they differ in the order of dimensions and in their additional results. Dropout is
// ignored.

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

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

// Throws for sequences of different lengths packed into one [tokens, heads, size] tensor, which are not implemented.
void refuse_packed(const Arguments& arguments) {
  for (const char* name : {"cum_seq_q", "cu_seqlens_q"}) {
    TORCH_CHECK(!arguments.has(name), "attention over packed sequences has no CPU equivalent here");
  }
}

Results forward(const Arguments& arguments, Order order, const Problem& problem, bool sequence_lse_padded) {
  refuse_packed(arguments);
  auto prepare = [&](const char* name) { return to_heads_first(arguments.tensor(name).to(at::kFloat), order); };
  const at::Tensor query = prepare("query");
  const at::Tensor scores = scores_of(query, repeat_heads(prepare("key"), query.size(1)), problem);
  const at::Tensor output = at::matmul(at::softmax(scores, -1), repeat_heads(prepare("value"), query.size(1)));
  at::Tensor lse = at::logsumexp(scores, {-1});
  if (sequence_lse_padded) {  // memory-efficient attention rounds the sequence up to 32
    const int64_t padding = (32 - lse.size(-1) % 32) % 32;
    lse = at::constant_pad_nd(lse, {0, padding}, std::numeric_limits<float>::infinity());
  }
  at::Tensor nothing;
  return {to_heads_first(output, order), lse, nothing, nothing, nothing, nothing, nothing, nothing, nothing};
}

// Uses the given output and log-sum-exp, as the CUDA kernels do: where a sequence is split over ranks, they belong to the whole
// sequence, and the keys here are a part of it.
Results backward(const Arguments& arguments, Order order, const Problem& problem, const char* gradient_name) {
  refuse_packed(arguments);
  auto prepare = [&](const char* name) { return to_heads_first(arguments.tensor(name).to(at::kFloat), order); };
  const at::Tensor query = prepare("query"), key = prepare("key"), gradient = prepare(gradient_name);
  const int64_t heads = query.size(1), key_heads = key.size(1);
  const at::Tensor keys = repeat_heads(key, heads), values = repeat_heads(prepare("value"), heads);
  const at::Tensor lse = arguments.tensor("logsumexp").to(at::kFloat).reshape({query.size(0), heads, -1, 1});
  const at::Tensor weights = (scores_of(query, keys, problem) - lse.narrow(2, 0, query.size(2))).exp();
  const at::Tensor mean = (gradient * prepare("out")).sum(-1, true);
  const at::Tensor of_scores = weights * (at::matmul(gradient, values.transpose(-2, -1)) - mean);
  const at::Tensor of_keys = at::matmul(of_scores.transpose(-2, -1), query) * problem.scale;
  const at::Tensor of_values = at::matmul(weights.transpose(-2, -1), gradient);
  return {to_heads_first(at::matmul(of_scores, keys) * problem.scale, order),
          to_heads_first(sum_repeated_heads(of_keys, key_heads), order),
          to_heads_first(sum_repeated_heads(of_values, key_heads), order),
          problem.bias.defined() ? of_scores.sum_to_size(problem.bias.sizes()) : at::Tensor()};
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
  return forward(arguments, Order::kSequenceThenHeads, flash_problem(arguments), false);
}

Results flash_backward(const Arguments& arguments) {
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
