// Attention on the CPU, for the three fused CUDA implementations (flash, memory-efficient, cuDNN), forward and backward.
//
// All are the same mathematics in float32; they differ in the order of dimensions and in what else they return. Dropout
// draws nothing here: with dropout the result is that without.

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "substitutes.h"

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

// query, key, value as [batch, heads, sequence, size] in float32 -> output, log-sum-exp of the scores
std::pair<at::Tensor, at::Tensor> attend(const at::Tensor& query, at::Tensor key, at::Tensor value, const Problem& problem) {
  const int64_t repeats = query.size(1) / key.size(1);  // grouped-query attention
  if (repeats > 1) {
    key = key.repeat_interleave(repeats, 1);
    value = value.repeat_interleave(repeats, 1);
  }
  at::Tensor scores = at::matmul(query, key.transpose(-2, -1)) * problem.scale;
  if (problem.bias.defined()) scores = scores + problem.bias.to(at::kFloat);
  if (problem.causal) {
    scores = scores.masked_fill(causal_mask(scores.size(-2), scores.size(-1), problem.causal_from_bottom_right),
                                -std::numeric_limits<float>::infinity());
  }
  return {at::matmul(at::softmax(scores, -1), value), at::logsumexp(scores, {-1})};
}

// Sequences of different lengths packed into one [tokens, heads, size] tensor are not covered.
void refuse_packed(const Arguments& arguments) {
  for (const char* name : {"cum_seq_q", "cu_seqlens_q"}) {
    TORCH_CHECK(!arguments.has(name), "attention over packed sequences has no CPU equivalent here");
  }
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
  const auto run = [&](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    Problem with_bias = problem;
    if (inputs.size() > 3) with_bias.bias = inputs[3];
    return {to_heads_first(attend(to_heads_first(inputs[0], order), to_heads_first(inputs[1], order),
                                  to_heads_first(inputs[2], order), with_bias).first, order)};
  };
  std::vector<at::Tensor> inputs;
  for (const char* name : {"query", "key", "value"}) inputs.push_back(arguments.tensor(name).to(at::kFloat));
  if (problem.bias.defined()) inputs.push_back(problem.bias.to(at::kFloat));
  const auto gradients = gradients_of(run, inputs, {arguments.tensor(gradient_name).to(at::kFloat)});
  Results results(gradients.begin(), gradients.end());
  results.resize(4, at::Tensor());
  return results;
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

Substitute attention_substitute(const std::string& name) {
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
