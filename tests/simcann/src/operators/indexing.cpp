#include "precision.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/masked_scatter.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/where.h>

namespace simcann {
namespace {

// Dimensions that are not indexed come as empty tensors.
c10::List<std::optional<Tensor>> indices_of(const TensorList& tensors, bool result_is_empty) {
  c10::List<std::optional<Tensor>> indices;
  for (const auto& tensor : tensors) {
    const bool whole_dimension = !tensor.defined() || (tensor.numel() == 0 && tensor.dim() == 1 && !result_is_empty);
    indices.push_back(whole_dimension ? std::nullopt : std::optional<Tensor>(tensor));
  }
  return indices;
}

Tensor scatter(const Tensor& self, std::int64_t dim, const Tensor& index, const Tensor& source,
               std::int64_t reduction) {
  const auto positions = index.to(at::kLong);
  if (reduction == 0) return at::scatter(self, dim, positions, source);
  return at::scatter(self, dim, positions, source, reduction == 1 ? "add" : "multiply");
}

Tensor scatter(const Tensor& self, std::int64_t dim, const Tensor& index, const Scalar& value,
               std::int64_t reduction) {
  const auto positions = index.to(at::kLong);
  if (reduction == 0) return at::scatter(self, dim, positions, value);
  return at::scatter(self, dim, positions, value, reduction == 1 ? "add" : "multiply");
}

}  // namespace

void add_indexing(Table& table) {
  table.add("aclnnIndex", [](const Tensor& self, const TensorList& indices, Output out) {
    out = at::index(self, indices_of(indices, out.tensor().numel() == 0));
  });
  table.add("aclnnIndexPutImpl", [](const Tensor& self, const TensorList& indices, const Tensor& values,
                                    bool accumulate, bool /*unsafe*/) {
    Output{self} = at::index_put(self, indices_of(indices, values.numel() == 0), values, accumulate);
  });
  table.add("aclnnIndexSelect", [](const Tensor& self, std::int64_t dim, const Tensor& index, Output out) {
    out = at::index_select(self, dim, index);
  });
  table.add("aclnnIndexAdd", [](const Tensor& self, std::int64_t dim, const Tensor& index, const Tensor& source,
                                const Scalar& alpha, Output out) {
    out = at::index_add(self, dim, index, source, alpha);
  });
  table.add("aclnnGather", [](const Tensor& self, std::int64_t dim, const Tensor& index, Output out) {
    out = at::gather(self, dim, index.to(at::kLong));
  });
  table.add("aclnnScatter", [](const Tensor& self, std::int64_t dim, const Tensor& index, const Tensor& source,
                               std::int64_t reduction, Output out) {
    out = scatter(self, dim, index, source, reduction);
  });
  table.add("aclnnScatterValue", [](const Tensor& self, std::int64_t dim, const Tensor& index, const Scalar& value,
                                    std::int64_t reduction, Output out) {
    out = scatter(self, dim, index, value, reduction);
  });
  table.add("aclnnInplaceScatter", [](const Tensor& self, std::int64_t dim, const Tensor& index,
                                      const Tensor& source, std::int64_t reduction) {
    Output{self} = scatter(self, dim, index, source, reduction);
  });
  table.add("aclnnInplaceScatterValue", [](const Tensor& self, std::int64_t dim, const Tensor& index,
                                           const Scalar& value, std::int64_t reduction) {
    Output{self} = scatter(self, dim, index, value, reduction);
  });
  table.add("aclnnScatterAdd", [](const Tensor& self, std::int64_t dim, const Tensor& index, const Tensor& source,
                                  Output out) {
    out = at::scatter_add(self, dim, index.to(at::kLong), source);
  });
  table.add("aclnnEmbedding", [](const Tensor& weight, const Tensor& indices, Output out) {
    out = at::embedding(weight, indices);
  });
  table.add("aclnnEmbeddingDenseBackward",
            [](const Tensor& grad_output, const Tensor& indices, std::uint64_t count, std::uint64_t padding,
               bool scale_by_frequency, Output out) {
              out = at::embedding_dense_backward(wide(grad_output), indices, static_cast<std::int64_t>(count),
                                                 static_cast<std::int64_t>(padding), scale_by_frequency);
            });
  table.add("aclnnOneHot", [](const Tensor& self, std::int64_t depth, const Tensor& on, const Tensor& off,
                              std::int64_t /*axis*/, Output out) {
    out = at::where(at::one_hot(self.to(at::kLong), depth).to(at::kBool), on, off);
  });

  table.add("aclnnSWhere", [](const Tensor& condition, const Tensor& self, const Tensor& other, Output out) {
    out = at::where(condition, self, other);
  });
  table.add("aclnnInplaceMaskedFillScalar", [](const Tensor& self, const Tensor& mask, const Scalar& value) {
    Output{self} = at::masked_fill(self, mask, value);
  });
  table.add("aclnnInplaceMaskedFillTensor", [](const Tensor& self, const Tensor& mask, const Tensor& value) {
    Output{self} = at::masked_fill(self, mask, value.reshape({}));
  });
  table.add("aclnnInplaceMaskedScatter", [](const Tensor& self, const Tensor& mask, const Tensor& source) {
    Output{self} = at::masked_scatter(self, mask.to(at::kBool), source);
  });
  table.add("aclnnMaskedSelect", [](const Tensor& self, const Tensor& mask, DynamicOutput out) {
    out = at::masked_select(self, mask.to(at::kBool));
  });
  table.add("aclnnNonzero", [](const Tensor& self, DynamicOutput out) { out = at::nonzero(self); });
  table.add("aclnnNonzeroV2", [](const Tensor& self, DynamicOutput out) { out = at::nonzero(self).t(); });
}

}  // namespace simcann
