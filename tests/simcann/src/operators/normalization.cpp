#include "precision.h"

#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

namespace simcann {

void add_normalization(Table& table) {
  table.add("aclnnBatchNorm",
            [](const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
               const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var, bool training,
               double momentum, double eps, Output out, std::optional<Output> save_mean,
               std::optional<Output> save_invstd) {
              const auto [result, mean, invstd] =
                  at::native_batch_norm(wide(input), weight, bias, running_mean, running_var, training, momentum, eps);
              out = result;
              if (!training) return;  // nothing to save
              save_mean.value() = mean;
              save_invstd.value() = invstd;
            });
  table.add("aclnnBatchNormBackward",
            [](const Tensor& grad_output, const Tensor& input, const std::optional<Tensor>& weight,
               const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var,
               const std::optional<Tensor>& save_mean, const std::optional<Tensor>& save_invstd, bool training,
               double eps, const std::array<bool, 3>& wanted, std::optional<Output> grad_input,
               std::optional<Output> grad_weight, std::optional<Output> grad_bias) {
              const auto [for_input, for_weight, for_bias] = at::native_batch_norm_backward(
                  wide(grad_output), wide(input), weight, running_mean, running_var, save_mean, save_invstd, training,
                  eps, wanted);
              if (wanted[0]) grad_input.value() = for_input;
              if (wanted[1]) grad_weight.value() = for_weight;
              if (wanted[2]) grad_bias.value() = for_bias;
            });

  table.add("aclnnLayerNorm",
            [](const Tensor& input, const IntArray& shape, const std::optional<Tensor>& weight,
               const std::optional<Tensor>& bias, double eps, Output out, std::optional<Output> mean,
               std::optional<Output> rstd) {
              const auto [result, average, inverse] =
                  at::native_layer_norm(wide(input), shape, wide(weight), wide(bias), eps);
              out = result;
              if (mean) *mean = average;
              if (rstd) *rstd = inverse;
            });
  table.add("aclnnLayerNormBackward",
            [](const Tensor& grad_output, const Tensor& input, const IntArray& shape, const Tensor& mean,
               const Tensor& rstd, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
               const std::array<bool, 3>& wanted, std::optional<Output> grad_input,
               std::optional<Output> grad_weight, std::optional<Output> grad_bias) {
              const auto [for_input, for_weight, for_bias] = at::native_layer_norm_backward(
                  wide(grad_output), wide(input), shape, wide(mean), wide(rstd), wide(weight), wide(bias), wanted);
              if (wanted[0]) grad_input.value() = for_input;
              if (wanted[1]) grad_weight.value() = for_weight;
              if (wanted[2]) grad_bias.value() = for_bias;
            });

  table.add("aclnnGroupNorm",
            [](const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
               std::int64_t n, std::int64_t c, std::int64_t hw, std::int64_t groups, double eps, Output out,
               Output mean, Output rstd) {
              const auto [result, average, inverse] =
                  at::native_group_norm(wide(input), wide(weight), wide(bias), n, c, hw, groups, eps);
              out = result;
              mean = average;
              rstd = inverse;
            });
  table.add("aclnnGroupNormBackward",
            [](const Tensor& grad_output, const Tensor& input, const Tensor& mean, const Tensor& rstd,
               const std::optional<Tensor>& weight, std::int64_t n, std::int64_t c, std::int64_t hw,
               std::int64_t groups, const std::array<bool, 3>& wanted, std::optional<Output> grad_input,
               std::optional<Output> grad_weight, std::optional<Output> grad_bias) {
              const auto [for_input, for_weight, for_bias] =
                  at::native_group_norm_backward(wide(grad_output), wide(input), wide(mean), wide(rstd),
                                                 wide(weight), n, c, hw, groups, wanted);
              if (wanted[0]) grad_input.value() = for_input;
              if (wanted[1]) grad_weight.value() = for_weight;
              if (wanted[2]) grad_bias.value() = for_bias;
            });
}

}  // namespace simcann
