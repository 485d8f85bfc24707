#include "precision.h"

#include <ATen/ops/_adaptive_avg_pool2d.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/adaptive_max_pool2d_backward.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>

namespace simcann {
namespace {

std::optional<std::int64_t> divisor(std::int64_t override_or_zero) {
  return override_or_zero ? std::optional(override_or_zero) : std::nullopt;
}

template <class F>
void upsampling(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& self, const IntArray& size, bool align_corners, double scale_h, double scale_w,
                     Output out) {
    const auto scale = [](double factor) { return factor > 0 ? std::optional(factor) : std::nullopt; };
    out = F{}(wide(self), size, align_corners, scale(scale_h), scale(scale_w));
  });
}

}  // namespace

void add_pooling(Table& table) {
  // The mask is private to this pair of operators and of a size that only the device knows: it stays unused, and the
  // backward pass finds the positions of the maxima again.
  table.add("aclnnMaxPool2dWithMask",
            [](const Tensor& self, const IntArray& kernel, const IntArray& stride, const IntArray& padding,
               const IntArray& dilation, bool ceil_mode, Output out, const Tensor& /*mask*/) {
              out = std::get<0>(
                  at::max_pool2d_with_indices(wide(self), kernel, stride, padding, dilation, ceil_mode));
            });
  table.add("aclnnMaxPool2dWithMaskBackward",
            [](const Tensor& grad_output, const Tensor& self, const Tensor& /*mask*/, const IntArray& kernel,
               const IntArray& stride, const IntArray& padding, const IntArray& dilation, bool ceil_mode,
               Output grad_input) {
              const auto input = wide(self);
              const auto indices = std::get<1>(
                  at::max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil_mode));
              grad_input = at::max_pool2d_with_indices_backward(wide(grad_output), input, kernel, stride, padding,
                                                                dilation, ceil_mode, indices);
            });
  table.add("aclnnMaxPool2dWithIndices",
            [](const Tensor& self, const IntArray& kernel, const IntArray& stride, const IntArray& padding,
               const IntArray& dilation, bool ceil_mode, Output out, Output indices) {
              const auto [value, index] =
                  at::max_pool2d_with_indices(wide(self), kernel, stride, padding, dilation, ceil_mode);
              out = value;
              indices = index;
            });
  table.add("aclnnMaxPool2dWithIndicesBackward",
            [](const Tensor& grad_output, const Tensor& self, const Tensor& indices, const IntArray& kernel,
               const IntArray& stride, const IntArray& padding, const IntArray& dilation, bool ceil_mode,
               Output grad_input) {
              grad_input = at::max_pool2d_with_indices_backward(wide(grad_output), wide(self), kernel, stride,
                                                                padding, dilation, ceil_mode, indices.to(at::kLong));
            });

  table.add("aclnnAvgPool2d",
            [](const Tensor& self, const IntArray& kernel, const IntArray& stride, const IntArray& padding,
               bool ceil_mode, bool count_padding, std::int64_t divisor_override, std::int8_t, Output out) {
              out = at::avg_pool2d(wide(self), kernel, stride, padding, ceil_mode, count_padding,
                                   divisor(divisor_override));
            });
  table.add("aclnnAvgPool2dBackward",
            [](const Tensor& grad_output, const Tensor& self, const IntArray& kernel, const IntArray& stride,
               const IntArray& padding, bool ceil_mode, bool count_padding, std::int64_t divisor_override,
               std::int8_t, Output grad_input) {
              grad_input = at::avg_pool2d_backward(wide(grad_output), wide(self), kernel, stride, padding, ceil_mode,
                                                   count_padding, divisor(divisor_override));
            });

  table.add("aclnnAdaptiveAvgPool2d", [](const Tensor& self, const IntArray& size, Output out) {
    out = at::_adaptive_avg_pool2d(wide(self), size);
  });
  table.add("aclnnAdaptiveAvgPool2dBackward",
            [](const Tensor& grad_output, const Tensor& self, Output grad_input) {
              grad_input = at::_adaptive_avg_pool2d_backward(wide(grad_output), wide(self));
            });
  table.add("aclnnAdaptiveMaxPool2d", [](const Tensor& self, const IntArray& size, Output out, Output indices) {
    const auto [value, index] = at::adaptive_max_pool2d(wide(self), size);
    out = value;
    indices = index;
  });
  table.add("aclnnAdaptiveMaxPool2dBackward",
            [](const Tensor& grad_output, const Tensor& self, const Tensor& indices, Output grad_input) {
              grad_input = at::adaptive_max_pool2d_backward(wide(grad_output), wide(self), indices.to(at::kLong));
            });

  upsampling(table, "aclnnUpsampleBilinear2d", [](auto&&... x) { return at::upsample_bilinear2d(x...); });
  upsampling(table, "aclnnUpsampleBicubic2d", [](auto&&... x) { return at::upsample_bicubic2d(x...); });
  upsampling(table, "aclnnUpsampleBilinear2dAA", [](auto&&... x) { return at::_upsample_bilinear2d_aa(x...); });
  upsampling(table, "aclnnUpsampleBicubic2dAA", [](auto&&... x) { return at::_upsample_bicubic2d_aa(x...); });
  table.add("aclnnUpsampleNearest2d", [](const Tensor& self, const IntArray& size, Output out) {
    out = at::upsample_nearest2d(wide(self), size);
  });
}

}  // namespace simcann
