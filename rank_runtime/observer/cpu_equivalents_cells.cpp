// CPU implementations of smaller ops that exist only for CUDA, or whose CPU kernel rejects inputs that CUDA accepts: fused
// recurrent cells, softmax with a wider output type, scaled GEMMs, gradients of RMS norm; and dropout, whose CPU kernel draws
// from the program's own generator.

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include "cpu_equivalents.h"

namespace maya {
namespace {

// ---- LSTM cell: the workspace holds the four gates after their activation ----

Results lstm_cell(const Arguments& arguments) {
  at::Tensor gates = arguments.tensor("input_gates") + arguments.tensor("hidden_gates");
  if (arguments.has("input_bias")) gates = gates + arguments.tensor("input_bias") + arguments.tensor("hidden_bias");
  const auto parts = gates.chunk(4, 1);
  const at::Tensor in = at::sigmoid(parts[0]), forget = at::sigmoid(parts[1]), cell = at::tanh(parts[2]),
                   out = at::sigmoid(parts[3]);
  const at::Tensor next = forget * arguments.tensor("cx") + in * cell;
  return {out * at::tanh(next), next, at::cat({in, forget, cell, out}, 1)};
}

Results lstm_cell_backward(const Arguments& arguments) {
  const auto parts = arguments.tensor("workspace").chunk(4, 1);
  const at::Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const at::Tensor squashed = at::tanh(arguments.tensor("cy"));
  at::Tensor grad_next = arguments.has("grad_cy") ? arguments.tensor("grad_cy") : at::zeros_like(squashed);
  at::Tensor grad_out = at::zeros_like(squashed);
  if (arguments.has("grad_hy")) {
    grad_out = arguments.tensor("grad_hy") * squashed;
    grad_next = grad_next + arguments.tensor("grad_hy") * out * (1 - squashed * squashed);
  }
  const at::Tensor gates =
      at::cat({grad_next * cell * in * (1 - in), grad_next * arguments.tensor("cx") * forget * (1 - forget),
               grad_next * in * (1 - cell * cell), grad_out * out * (1 - out)},
              1);
  const at::Tensor bias = arguments.flag("has_bias") ? gates.sum(0) : at::Tensor();
  return {gates, grad_next * forget, bias};
}

// ---- GRU cell: the workspace holds reset, update and new gate, the old state and the hidden part of the new gate ----

Results gru_cell(const Arguments& arguments) {
  at::Tensor input = arguments.tensor("input_gates"), hidden = arguments.tensor("hidden_gates");
  if (arguments.has("input_bias")) {
    input = input + arguments.tensor("input_bias");
    hidden = hidden + arguments.tensor("hidden_bias");
  }
  const auto in = input.chunk(3, 1), old = hidden.chunk(3, 1);
  const at::Tensor state = arguments.tensor("hx");
  const at::Tensor reset = at::sigmoid(in[0] + old[0]), update = at::sigmoid(in[1] + old[1]);
  const at::Tensor fresh = at::tanh(in[2] + reset * old[2]);
  return {fresh + update * (state - fresh), at::cat({reset, update, fresh, state, old[2]}, 1)};
}

Results gru_cell_backward(const Arguments& arguments) {
  const auto parts = arguments.tensor("workspace").chunk(5, 1);
  const at::Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &state = parts[3], &old = parts[4];
  const at::Tensor grad = arguments.tensor("grad_hy");
  const at::Tensor grad_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const at::Tensor grad_update = grad * (state - fresh) * update * (1 - update);
  const at::Tensor grad_reset = grad_fresh * old * reset * (1 - reset);
  const at::Tensor input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const at::Tensor hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  const bool biased = arguments.flag("has_bias");
  return {input, hidden, grad * update, biased ? input.sum(0) : at::Tensor(), biased ? hidden.sum(0) : at::Tensor()};
}

// ---- softmax that reads half precision and writes float32 ----

at::Tensor softmax_input(const Arguments& arguments) {
  const at::Tensor self = arguments.tensor("self");
  return arguments.flag("half_to_float") ? self.to(at::kFloat) : self;
}

Results softmax(const Arguments& arguments) {
  return {at::_softmax(softmax_input(arguments), arguments.integer("dim"), false)};
}

Results log_softmax(const Arguments& arguments) {
  return {at::_log_softmax(softmax_input(arguments), arguments.integer("dim"), false)};
}

Results softmax_backward(const Arguments& arguments) {
  const at::Tensor output = arguments.tensor("output");
  return {at::_softmax_backward_data(arguments.tensor("grad_output"), output, arguments.integer("dim"), output.scalar_type())};
}

Results log_softmax_backward(const Arguments& arguments) {
  const at::Tensor output = arguments.tensor("output");
  return {
      at::_log_softmax_backward_data(arguments.tensor("grad_output"), output, arguments.integer("dim"), output.scalar_type())};
}

// ---- GEMMs of 8-bit floats, with scales per tensor or per row and column ----

Results scaled_mm(const Arguments& arguments) {
  const at::Tensor left = arguments.tensor("self").to(at::kFloat) * arguments.tensor("scale_a");
  const at::Tensor right = arguments.tensor("mat2").to(at::kFloat) * arguments.tensor("scale_b");
  at::Tensor product = at::mm(left, right);
  if (arguments.has("bias")) product = product + arguments.tensor("bias").to(at::kFloat);
  if (arguments.has("scale_result")) product = product * arguments.tensor("scale_result");
  return {product};
}

// ---- RMS norm ----

Results rms_norm_backward(const Arguments& arguments) {
  const at::Tensor input = arguments.tensor("input"), weight = arguments.tensor("weight");
  const at::ScalarType type = at::toOpMathType(input.scalar_type());
  const auto normed_dimensions = static_cast<int64_t>(arguments.integers("normalized_shape").size());
  std::vector<int64_t> inner, outer;
  for (int64_t i = 0; i < input.dim(); i++) (i < input.dim() - normed_dimensions ? outer : inner).push_back(i);
  const at::Tensor scale = arguments.tensor("rstd"), normed = input.to(type) * scale;
  const at::Tensor gradient = arguments.tensor("grad_out").to(type);
  const at::Tensor weighted = weight.defined() ? gradient * weight.to(type) : gradient;
  const at::Tensor of_input = scale * (weighted - normed * (weighted * normed).mean(inner, /*keepdim=*/true));
  if (!weight.defined()) return {of_input.to(input.scalar_type()), at::Tensor()};
  const at::Tensor product = gradient * normed;
  const at::Tensor of_weight = outer.empty() ? product : product.sum(outer);
  return {of_input.to(input.scalar_type()), of_weight.to(weight.scalar_type())};
}

// ---- dropout ----

Results dropout(const Arguments& arguments) {
  const at::Tensor input = arguments.tensor("input");
  const auto options = input.options().dtype(at::kBool);
  if (arguments.has("train") && !arguments.flag("train")) return {input.clone(), at::ones_like(input, options)};
  const double kept = 1.0 - arguments.number("p");
  const at::Tensor mask = at::empty_like(input, options).bernoulli_(kept, arguments.generator());
  return {input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept), mask};
}

}  // namespace

CpuEquivalent cell_equivalent(const std::string& name) {
  if (name == "aten::native_dropout") return dropout;
  if (name == "aten::_thnn_fused_lstm_cell") return lstm_cell;
  if (name == "aten::_thnn_fused_lstm_cell_backward_impl") return lstm_cell_backward;
  if (name == "aten::_thnn_fused_gru_cell") return gru_cell;
  if (name == "aten::_thnn_fused_gru_cell_backward") return gru_cell_backward;
  if (name == "aten::_softmax") return softmax;
  if (name == "aten::_log_softmax") return log_softmax;
  if (name == "aten::_softmax_backward_data") return softmax_backward;
  if (name == "aten::_log_softmax_backward_data") return log_softmax_backward;
  if (name == "aten::_scaled_mm") return scaled_mm;
  if (name == "aten::_fused_rms_norm_backward") return rms_norm_backward;
  return nullptr;
}

}  // namespace maya
