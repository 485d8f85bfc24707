// Scaled dot product attention in one operator, for torch.nn.functional.scaled_dot_product_attention.
#include <limits>

#include "dropout.h"
#include "precision.h"

#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/div.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/triu.h>

namespace simcann {
namespace {

constexpr std::int64_t kCausal = 2;  // sparse mode: the mask is a compressed triangle that all shapes share

struct Attention {
  Tensor query, key, value;
  Tensor weights;  // after the softmax, before dropout
  Tensor kept;     // factor of each weight for dropout, undefined without
};

// Key and value may have fewer heads; each then serves several heads of the query.
Tensor for_each_head(const Tensor& tensor, std::int64_t heads) {
  return at::repeat_interleave(tensor, heads / tensor.size(1), 1);
}

Tensor summed_over_shared_heads(const Tensor& gradient, const Tensor& tensor) {
  const auto heads = tensor.size(1);
  return at::sum(gradient.unflatten(1, {heads, gradient.size(1) / heads}), {2});
}

Attention attend(const Tensor& query, const Tensor& key, const Tensor& value,
                 const std::optional<Tensor>& drop_mask, const std::optional<Tensor>& attention_mask, double scale,
                 double keep_probability, const std::string& layout, std::int64_t sparse_mode) {
  if (layout != "BNSD" || (sparse_mode != 0 && sparse_mode != kCausal)) {
    throw Error(ACL_ERROR_API_NOT_SUPPORT, "layout " + layout + ", sparse mode " + std::to_string(sparse_mode));
  }
  Attention attention;
  attention.query = wide(query);
  attention.key = for_each_head(wide(key), query.size(1));
  attention.value = for_each_head(wide(value), query.size(1));
  auto scores = at::mul(at::matmul(attention.query, attention.key.transpose(2, 3)), scale);
  const auto rows = scores.size(2);
  const auto columns = scores.size(3);
  std::optional<Tensor> masked;
  if (sparse_mode == kCausal) {
    masked = at::triu(at::ones({rows, columns}, at::kBool), 1);
  } else if (attention_mask) {
    masked = attention_mask->to(at::kBool);
  }
  if (masked) scores = at::masked_fill(scores, *masked, -std::numeric_limits<double>::infinity());
  attention.weights = at::softmax(scores, -1);
  if (drop_mask && keep_probability < 1) {
    attention.kept = at::div(unpacked_mask(*drop_mask, scores.sizes()), keep_probability);
  }
  return attention;
}

Tensor dropped_out(const Attention& attention, const Tensor& weights) {
  return attention.kept.defined() ? at::mul(weights, attention.kept) : weights;
}

}  // namespace

void add_attention(Table& table) {
  // The three softmax tensors are private to this pair of operators: they stay unused, and the backward pass computes
  // the weights again.
  table.add("aclnnFlashAttentionScore",
            [](const Tensor& query, const Tensor& key, const Tensor& value,
               const std::optional<Tensor>& /*position_shift*/, const std::optional<Tensor>& drop_mask,
               const std::optional<Tensor>& /*padding_mask*/, const std::optional<Tensor>& attention_mask,
               const std::optional<IntArray>& /*prefix*/, double scale, double keep_probability,
               std::int64_t /*tokens_before*/, std::int64_t /*tokens_after*/, std::int64_t /*heads*/,
               const std::string& layout, std::int64_t /*inner_precise*/, std::int64_t sparse_mode,
               const std::optional<Tensor>& /*softmax_max*/, const std::optional<Tensor>& /*softmax_sum*/,
               const std::optional<Tensor>& /*softmax*/, Output out) {
              const auto attention = attend(query, key, value, drop_mask, attention_mask, scale, keep_probability,
                                            layout, sparse_mode);
              out = at::matmul(dropped_out(attention, attention.weights), attention.value);
            });

  table.add("aclnnFlashAttentionScoreGrad",
            [](const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad_output,
               const std::optional<Tensor>& /*position_shift*/, const std::optional<Tensor>& drop_mask,
               const std::optional<Tensor>& /*padding_mask*/, const std::optional<Tensor>& attention_mask,
               const std::optional<Tensor>& /*softmax_max*/, const std::optional<Tensor>& /*softmax_sum*/,
               const std::optional<Tensor>& /*softmax*/, const std::optional<Tensor>& /*output*/,
               const std::optional<IntArray>& /*prefix*/, double scale, double keep_probability,
               std::int64_t /*tokens_before*/, std::int64_t /*tokens_after*/, std::int64_t /*heads*/,
               const std::string& layout, std::int64_t /*inner_precise*/, std::int64_t sparse_mode,
               Output grad_query, Output grad_key, Output grad_value,
               const std::optional<Tensor>& /*grad_position_shift*/) {
              const auto attention = attend(query, key, value, drop_mask, attention_mask, scale, keep_probability,
                                            layout, sparse_mode);
              const auto gradient = wide(grad_output);
              const auto for_weights =
                  dropped_out(attention, at::matmul(gradient, attention.value.transpose(2, 3)));
              const auto for_scores =
                  at::mul(at::_softmax_backward_data(for_weights, attention.weights, -1, at::kFloat), scale);
              const auto used_weights = dropped_out(attention, attention.weights);
              grad_query = at::matmul(for_scores, attention.key);
              grad_key = summed_over_shared_heads(at::matmul(for_scores.transpose(2, 3), attention.query), key);
              grad_value = summed_over_shared_heads(at::matmul(used_weights.transpose(2, 3), gradient), value);
            });
}

}  // namespace simcann
