// Loss scaling and fused optimizer steps.
#include "precision.h"

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/isfinite.h>

namespace simcann {

void add_optimizers(Table& table) {
  table.add("aclnnForeachNonFiniteCheckAndUnscale",
            [](const TensorList& gradients, const Tensor& found_inf, const Tensor& inverse_scale) {
              for (const auto& gradient : gradients) {
                if (!at::isfinite(gradient).all().item<bool>()) found_inf.fill_(1);
                gradient.mul_(inverse_scale.to(gradient.scalar_type()));
              }
            });

  // The scale and the growth tracker are passed twice, as inputs and as outputs.
  table.add("aclnnAmpUpdateScale",
            [](const Tensor& /*scale*/, const Tensor& /*tracker*/, const Tensor& found_inf, double growth_factor,
               double backoff_factor, std::int64_t growth_interval, const Tensor& scale, const Tensor& tracker) {
              Tensor new_scale = scale;
              Tensor new_tracker = tracker;
              at::_amp_update_scale_(new_scale, new_tracker, found_inf, growth_factor, backoff_factor,
                                     growth_interval);
            });

  table.add("aclnnFusedSgd",
            [](const TensorList& parameters, const TensorList& gradients, const TensorList& momentum_buffers,
               const std::optional<Tensor>& gradient_scale, float weight_decay, float momentum, float rate,
               float dampening, bool nesterov, bool maximize, bool is_first_step) {
              at::_fused_sgd_(parameters, gradients, momentum_buffers, weight_decay, momentum, rate, dampening,
                              nesterov, maximize, is_first_step, gradient_scale);
            });
}

}  // namespace simcann
