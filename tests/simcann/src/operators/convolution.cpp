#include "precision.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

namespace simcann {

void add_convolution(Table& table) {
  table.add("aclnnConvolution",
            [](const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const IntArray& stride,
               const IntArray& padding, const IntArray& dilation, bool transposed, const IntArray& output_padding,
               std::int64_t groups, Output output, std::int8_t) {
              output = at::convolution(wide(input), wide(weight), wide(bias), stride, padding, dilation, transposed,
                                       output_padding, groups);
            });

  table.add("aclnnConvDepthwise2d",
            [](const Tensor& input, const Tensor& weight, const IntArray&, const std::optional<Tensor>& bias,
               const IntArray& stride, const IntArray& padding, const IntArray& dilation, Output output,
               std::int8_t) {
              const auto channels = input.size(1);
              output = at::convolution(wide(input), wide(weight), wide(bias), stride, padding, dilation, false,
                                       {0, 0}, channels);
            });

  table.add("aclnnConvolutionBackward",
            [](const Tensor& grad_output, const Tensor& input, const Tensor& weight,
               const std::optional<IntArray>& bias_sizes, const IntArray& stride, const IntArray& padding,
               const IntArray& dilation, bool transposed, const IntArray& output_padding, std::int64_t groups,
               const std::array<bool, 3>& wanted, std::int8_t, std::optional<Output> grad_input,
               std::optional<Output> grad_weight, std::optional<Output> grad_bias) {
              const auto bias = wanted[2] && bias_sizes ? at::OptionalIntArrayRef(*bias_sizes) : std::nullopt;
              const auto [for_input, for_weight, for_bias] =
                  at::convolution_backward(wide(grad_output), wide(input), wide(weight), bias, stride, padding,
                                           dilation, transposed, output_padding, groups, wanted);
              if (wanted[0]) grad_input.value() = for_input;
              if (wanted[1]) grad_weight.value() = for_weight;
              if (wanted[2]) grad_bias.value() = for_bias;
            });
}

}  // namespace simcann
