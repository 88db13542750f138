// CPU implementations of cuDNN's ops: convolution, batch norm, recurrent networks.

#include <ATen/TensorOperators.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "cpu_equivalents.h"

namespace maya {
namespace {

at::Tensor convolve(const Arguments& arguments, const at::Tensor& bias, bool transposed) {
  std::vector<int64_t> output_padding = arguments.integers("output_padding");
  if (output_padding.empty()) output_padding.assign(arguments.integers("padding").size(), 0);
  const std::optional<at::Tensor> maybe_bias = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return at::convolution(arguments.tensor("self"), arguments.tensor("weight"), maybe_bias, arguments.integers("stride"),
                         arguments.integers("padding"), arguments.integers("dilation"), transposed, output_padding,
                         arguments.integer("groups", 1));
}

Results convolution(const Arguments& arguments) { return {convolve(arguments, at::Tensor(), false)}; }

Results transposed_convolution(const Arguments& arguments) { return {convolve(arguments, at::Tensor(), true)}; }

Results convolution_relu(const Arguments& arguments) {
  return {at::relu(convolve(arguments, arguments.tensor("bias"), false))};
}

Results convolution_add_relu(const Arguments& arguments) {
  const double alpha = arguments.number("alpha", 1.0);
  return {at::relu(convolve(arguments, arguments.tensor("bias"), false) + arguments.tensor("z") * alpha)};
}

Results batch_norm(const Arguments& arguments) {
  auto [output, mean, inverse_deviation] =
      at::native_batch_norm(arguments.tensor("input"), arguments.optional("weight"), arguments.optional("bias"),
                            arguments.optional("running_mean"), arguments.optional("running_var"), arguments.flag("training"),
                            arguments.number("exponential_average_factor"), arguments.number("epsilon"));
  return {output, mean, inverse_deviation, at::Tensor()};
}

Results batch_norm_backward(const Arguments& arguments) {
  auto [input, weight, bias] = at::native_batch_norm_backward(
      arguments.tensor("grad_output"), arguments.tensor("input"), arguments.optional("weight"),
      arguments.optional("running_mean"), arguments.optional("running_var"), arguments.optional("save_mean"),
      arguments.optional("save_var"), /*train=*/true, arguments.number("epsilon"), {true, true, true});
  return {input, weight, bias};
}

// ---- recurrent networks ----

enum Mode { kReluCell = 0, kTanhCell = 1, kLstm = 2, kGru = 3 };

struct Recurrent {
  int64_t mode, layers;
  bool batch_first, bidirectional, has_biases;
  at::Tensor batch_sizes;

  explicit Recurrent(const Arguments& arguments)
      : mode(arguments.integer("mode")),
        layers(arguments.integer("num_layers")),
        batch_first(arguments.flag("batch_first")),
        bidirectional(arguments.flag("bidirectional")),
        has_biases(arguments.integer("weight_stride0") >= 4) {
    TORCH_CHECK(arguments.number("dropout") == 0.0 || !arguments.flag("train"),
                "a recurrent network with dropout between its layers has no CPU equivalent here");
    const std::vector<int64_t> sizes = arguments.integers("batch_sizes");
    if (!sizes.empty()) batch_sizes = at::tensor(sizes, at::kLong);
  }

  // output, hidden state and, for an LSTM, cell state
  std::vector<at::Tensor> run(const at::Tensor& input, const at::Tensor& hidden, const at::Tensor& cell,
                              const std::vector<at::Tensor>& weights) const {
    const bool packed = batch_sizes.defined();
    if (mode == kLstm) {
      auto [output, last, last_cell] =
          packed ? at::lstm(input, batch_sizes, {hidden, cell}, weights, has_biases, layers, 0.0, false, bidirectional)
                 : at::lstm(input, {hidden, cell}, weights, has_biases, layers, 0.0, false, bidirectional, batch_first);
      return {output, last, last_cell};
    }
    const auto plain = [&](auto function) {
      auto [output, last] = function(input, hidden, weights, has_biases, layers, 0.0, false, bidirectional, batch_first);
      return std::vector<at::Tensor>{output, last};
    };
    const auto over_packed = [&](auto function) {
      auto [output, last] = function(input, batch_sizes, hidden, weights, has_biases, layers, 0.0, false, bidirectional);
      return std::vector<at::Tensor>{output, last};
    };
    using Weights = at::TensorList;
    using T = const at::Tensor&;
    using Plain = std::tuple<at::Tensor, at::Tensor> (*)(T, T, Weights, bool, int64_t, double, bool, bool, bool);
    using Packed = std::tuple<at::Tensor, at::Tensor> (*)(T, T, T, Weights, bool, int64_t, double, bool, bool);
    switch (mode) {
      case kGru: return packed ? over_packed(static_cast<Packed>(at::gru)) : plain(static_cast<Plain>(at::gru));
      case kTanhCell: return packed ? over_packed(static_cast<Packed>(at::rnn_tanh)) : plain(static_cast<Plain>(at::rnn_tanh));
      default: return packed ? over_packed(static_cast<Packed>(at::rnn_relu)) : plain(static_cast<Plain>(at::rnn_relu));
    }
  }
};

Results recurrent(const Arguments& arguments) {
  const Recurrent network(arguments);
  auto results =
      network.run(arguments.tensor("input"), arguments.tensor("hx"), arguments.tensor("cx"), arguments.tensors("weight"));
  results.resize(5);  // the remaining results (cell state, reserve, weight buffer) are never read
  return Results(results.begin(), results.end());
}

Results recurrent_backward(const Arguments& arguments) {
  const Recurrent network(arguments);
  const std::vector<at::Tensor> weights = arguments.tensors("weight");
  std::vector<at::Tensor> inputs = {arguments.tensor("input"), arguments.tensor("hx"), arguments.tensor("cx")};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  const auto gradients = gradients_of(
      [&](const std::vector<at::Tensor>& leaves) {
        return network.run(leaves[0], leaves[1], leaves[2], {leaves.begin() + 3, leaves.end()});
      },
      inputs, {arguments.tensor("grad_output"), arguments.tensor("grad_hy"), arguments.tensor("grad_cy")});
  return Results(gradients.begin(), gradients.end());
}

}  // namespace

CpuEquivalent cudnn_equivalent(const std::string& name) {
  if (name == "aten::cudnn_convolution") return convolution;
  if (name == "aten::cudnn_convolution_transpose") return transposed_convolution;
  if (name == "aten::cudnn_convolution_relu") return convolution_relu;
  if (name == "aten::cudnn_convolution_add_relu") return convolution_add_relu;
  if (name == "aten::cudnn_batch_norm") return batch_norm;
  if (name == "aten::cudnn_batch_norm_backward") return batch_norm_backward;
  if (name == "aten::_cudnn_rnn") return recurrent;
  if (name == "aten::_cudnn_rnn_backward") return recurrent_backward;
  return nullptr;
}

}  // namespace maya
