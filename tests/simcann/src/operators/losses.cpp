#include "precision.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mse_loss_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/smooth_l1_loss.h>

namespace simcann {

void add_losses(Table& table) {
  // Unlike the CPU, the device takes class indices of type int32 too.
  table.add("aclnnNLLLoss",
            [](const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight, std::int64_t reduction,
               std::int64_t ignore_index, Output out, Output total_weight) {
              const auto [loss, total] =
                  at::nll_loss_forward(wide(self), target.to(at::kLong), wide(weight), reduction, ignore_index);
              out = loss;
              total_weight = total;
            });
  table.add("aclnnNLLLossBackward",
            [](const Tensor& grad_output, const Tensor& self, const Tensor& target,
               const std::optional<Tensor>& weight, std::int64_t reduction, std::int64_t ignore_index,
               const Tensor& total_weight, Output grad_input) {
              grad_input = at::nll_loss_backward(wide(grad_output), wide(self), target.to(at::kLong), wide(weight),
                                                 reduction, ignore_index, wide(total_weight));
            });

  table.add("aclnnMseLoss", [](const Tensor& self, const Tensor& target, std::int64_t reduction, Output out) {
    out = at::mse_loss(wide(self), wide(target), reduction);
  });
  table.add("aclnnMseLossBackward", [](const Tensor& grad_output, const Tensor& self, const Tensor& target,
                                       std::int64_t reduction, Output grad_input) {
    grad_input = at::mse_loss_backward(wide(grad_output), wide(self), wide(target), reduction);
  });
  table.add("aclnnSmoothL1Loss",
            [](const Tensor& self, const Tensor& target, std::int64_t reduction, float beta, Output out) {
              out = at::smooth_l1_loss(wide(self), wide(target), reduction, beta);
            });
  table.add("aclnnBinaryCrossEntropyWithLogits",
            [](const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight,
               const std::optional<Tensor>& positive_weight, std::int64_t reduction, Output out) {
              out = at::binary_cross_entropy_with_logits(wide(self), wide(target), weight, positive_weight, reduction);
            });
}

}  // namespace simcann
