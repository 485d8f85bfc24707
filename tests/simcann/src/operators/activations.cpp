#include "precision.h"

#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/threshold_backward.h>

namespace simcann {
namespace {

template <class F>
void activation(Table& table, const char* name, const char* inplace_name, F) {
  table.add(name, [](const Tensor& self, Output out) { out = F{}(wide(self)); });
  table.add(inplace_name, [](const Tensor& self) { Output{self} = F{}(wide(self)); });
}

// The gradient from the gradient of the output and either the input or the output.
template <class F>
void gradient(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& grad_output, const Tensor& self, Output grad_input) {
    grad_input = F{}(wide(grad_output), wide(self));
  });
}

template <class F>
void softmax(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& self, std::int64_t dim, Output out) { out = F{}(wide(self), dim); });
}

template <class F>
void softmax_gradient(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& grad_output, const Tensor& output, std::int64_t dim, Output grad_input) {
    const auto result = wide(output);
    grad_input = F{}(wide(grad_output), result, dim, result.scalar_type());
  });
}

}  // namespace

void add_activations(Table& table) {
  activation(table, "aclnnRelu", "aclnnInplaceRelu", [](const auto& x) { return at::relu(x); });
  activation(table, "aclnnSigmoid", "aclnnInplaceSigmoid", [](const auto& x) { return at::sigmoid(x); });
  activation(table, "aclnnTanh", "aclnnInplaceTanh", [](const auto& x) { return at::tanh(x); });
  activation(table, "aclnnSilu", "aclnnInplaceSilu", [](const auto& x) { return at::silu(x); });
  activation(table, "aclnnGelu", "aclnnInplaceGelu", [](const auto& x) { return at::gelu(x); });
  activation(table, "aclnnHardswish", "aclnnInplaceHardswish", [](const auto& x) { return at::hardswish(x); });
  activation(table, "aclnnHardsigmoid", "aclnnInplaceHardsigmoid",
             [](const auto& x) { return at::hardsigmoid(x); });
  activation(table, "aclnnMish", "aclnnInplaceMish", [](const auto& x) { return at::mish(x); });

  gradient(table, "aclnnSigmoidBackward", [](auto&&... x) { return at::sigmoid_backward(x...); });
  gradient(table, "aclnnTanhBackward", [](auto&&... x) { return at::tanh_backward(x...); });
  gradient(table, "aclnnSiluBackward", [](auto&&... x) { return at::silu_backward(x...); });
  gradient(table, "aclnnGeluBackward", [](auto&&... x) { return at::gelu_backward(x...); });
  gradient(table, "aclnnHardswishBackward", [](auto&&... x) { return at::hardswish_backward(x...); });
  gradient(table, "aclnnHardswishBackwardV2", [](auto&&... x) { return at::hardswish_backward(x...); });
  gradient(table, "aclnnHardsigmoidBackward", [](auto&&... x) { return at::hardsigmoid_backward(x...); });

  table.add("aclnnThreshold", [](const Tensor& self, const Scalar& threshold, const Scalar& value, Output out) {
    out = at::threshold(self, threshold, value);
  });
  table.add("aclnnThresholdBackward",
            [](const Tensor& grad_output, const Tensor& self, const Scalar& threshold, Output grad_input) {
              grad_input = at::threshold_backward(grad_output, self, threshold);
            });
  table.add("aclnnHardtanh", [](const Tensor& self, const Scalar& lowest, const Scalar& highest, Output out) {
    out = at::hardtanh(self, lowest, highest);
  });
  table.add("aclnnInplaceHardtanh", [](const Tensor& self, const Scalar& lowest, const Scalar& highest) {
    Output{self} = at::hardtanh(self, lowest, highest);
  });
  table.add("aclnnHardtanhBackward", [](const Tensor& grad_output, const Tensor& self, const Scalar& lowest,
                                        const Scalar& highest, Output grad_input) {
    grad_input = at::hardtanh_backward(grad_output, self, lowest, highest);
  });
  table.add("aclnnLeakyRelu", [](const Tensor& self, const Scalar& slope, Output out) {
    out = at::leaky_relu(self, slope);
  });
  table.add("aclnnInplaceLeakyRelu",
            [](const Tensor& self, const Scalar& slope) { Output{self} = at::leaky_relu(self, slope); });
  table.add("aclnnLeakyReluBackward", [](const Tensor& grad_output, const Tensor& self, const Scalar& slope,
                                         bool self_is_result, Output grad_input) {
    grad_input = at::leaky_relu_backward(grad_output, self, slope, self_is_result);
  });

  // The number and the name of an approximation stand for the same choice.
  table.add("aclnnGeluV2", [](const Tensor& self, std::int64_t approximate, Output out) {
    out = at::gelu(wide(self), approximate == 1 ? "tanh" : "none");
  });
  table.add("aclnnGeluBackwardV2", [](const Tensor& grad_output, const Tensor& self, const std::string& approximate,
                                      Output grad_input) {
    grad_input = at::gelu_backward(wide(grad_output), wide(self), approximate);
  });

  softmax(table, "aclnnSoftmax", [](const auto& x, auto dim) { return at::softmax(x, dim); });
  softmax(table, "aclnnLogSoftmax", [](const auto& x, auto dim) { return at::log_softmax(x, dim); });
  softmax_gradient(table, "aclnnSoftmaxBackward", [](auto&&... x) { return at::_softmax_backward_data(x...); });
  softmax_gradient(table, "aclnnLogSoftmaxBackward",
                   [](auto&&... x) { return at::_log_softmax_backward_data(x...); });
}

}  // namespace simcann
