#include "precision.h"

#include <ATen/ops/all.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/any.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/min.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/std.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/var.h>
#include <ATen/ops/var_mean.h>

namespace simcann {
namespace {

// An empty list of dimensions means all of them.
IntArray dimensions_of(const Tensor& self, const std::optional<IntArray>& dims) {
  if (dims && !dims->empty()) return *dims;
  IntArray all(self.dim());
  for (std::int64_t i = 0; i < self.dim(); ++i) all[i] = i;
  return all;
}

void topk(const Tensor& self, std::int64_t k, std::int64_t dim, bool largest, bool sorted, Output values,
          Output indices) {
  const auto [value, index] = at::topk(self, k, dim, largest, sorted);
  values = value;
  indices = index;
}

template <class F>
void extreme(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& self, std::int64_t dim, bool keepdim, Output values, Output indices) {
    const auto [value, index] = F{}(self, dim, keepdim);
    values = value;
    indices = index;
  });
}

}  // namespace

void add_reductions(Table& table) {
  table.add("aclnnReduceSum", [](const Tensor& self, const IntArray& dims, bool keepdim, at::ScalarType type,
                                 Output out) {
    const auto computed = type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
    out = at::sum(wide(self), dims, keepdim, computed);
  });
  table.add("aclnnMean", [](const Tensor& self, const IntArray& dims, bool keepdim, at::ScalarType, Output out) {
    out = at::mean(wide(self), dims, keepdim, out.type() == at::kDouble ? at::kDouble : at::kFloat);
  });
  table.add("aclnnProd", [](const Tensor& self, at::ScalarType, Output out) { out = at::prod(wide(self)); });
  table.add("aclnnProdDim", [](const Tensor& self, std::int64_t dim, bool keepdim, at::ScalarType, Output out) {
    out = at::prod(wide(self), dim, keepdim);
  });
  table.add("aclnnStd", [](const Tensor& self, const std::optional<IntArray>& dims, std::int64_t correction,
                           bool keepdim, Output out) {
    out = at::std(wide(self), dimensions_of(self, dims), Scalar(correction), keepdim);
  });
  table.add("aclnnVarCorrection", [](const Tensor& self, const std::optional<IntArray>& dims,
                                     std::int64_t correction, bool keepdim, Output out) {
    out = at::var(wide(self), dimensions_of(self, dims), Scalar(correction), keepdim);
  });
  table.add("aclnnVarMean", [](const Tensor& self, const std::optional<IntArray>& dims, std::int64_t correction,
                               bool keepdim, Output var, Output mean) {
    const auto [variance, average] =
        at::var_mean(wide(self), dimensions_of(self, dims), Scalar(correction), keepdim);
    var = variance;
    mean = average;
  });

  table.add("aclnnMax", [](const Tensor& self, Output out) { out = at::max(self); });
  table.add("aclnnMin", [](const Tensor& self, Output out) { out = at::min(self); });
  table.add("aclnnAmax", [](const Tensor& self, const IntArray& dims, bool keepdim, Output out) {
    out = at::amax(self, dims, keepdim);
  });
  table.add("aclnnAmin", [](const Tensor& self, const IntArray& dims, bool keepdim, Output out) {
    out = at::amin(self, dims, keepdim);
  });
  extreme(table, "aclnnMaxDim", [](auto&... x) { return at::max(x...); });
  extreme(table, "aclnnMinDim", [](auto&... x) { return at::min(x...); });
  table.add("aclnnArgMax", [](const Tensor& self, std::int64_t dim, bool keepdim, Output out) {
    out = at::argmax(self, dim, keepdim);
  });
  table.add("aclnnArgMin", [](const Tensor& self, std::int64_t dim, bool keepdim, Output out) {
    out = at::argmin(self, dim, keepdim);
  });
  table.add("aclnnAll", [](const Tensor& self, const IntArray& dims, bool keepdim, Output out) {
    const auto reduced = dimensions_of(self, dims);
    out = at::all(self, at::OptionalIntArrayRef(reduced), keepdim).to(out.type());
  });
  table.add("aclnnAny", [](const Tensor& self, const IntArray& dims, bool keepdim, Output out) {
    const auto reduced = dimensions_of(self, dims);
    out = at::any(self, at::OptionalIntArrayRef(reduced), keepdim).to(out.type());
  });

  table.add("aclnnTopk", [](const Tensor& self, std::int64_t k, std::int64_t dim, bool largest, bool sorted,
                            Output values, Output indices) {
    topk(self, k, dim, largest, sorted, values, indices);
  });
  table.add("aclnnTopkV2", [](const Tensor& self, std::int64_t k, std::int64_t dim, bool largest, bool sorted,
                              std::int64_t /*sort_policy*/, Output values, Output indices) {
    topk(self, k, dim, largest, sorted, values, indices);
  });
  table.add("aclnnSort", [](const Tensor& self, bool stable, std::int64_t dim, bool descending, Output values,
                            Output indices) {
    const auto [value, index] = at::sort(self, stable, dim, descending);
    values = value;
    indices = index;
  });
  table.add("aclnnCumsum", [](const Tensor& self, std::int64_t dim, at::ScalarType type, Output out) {
    out = at::cumsum(self, dim, type);
  });

  table.add("aclnnLinalgVectorNorm", [](const Tensor& self, const Scalar& order, const std::optional<IntArray>& dims,
                                        bool keepdim, at::ScalarType, Output out) {
    const auto reduced = dimensions_of(self, dims);
    out = at::linalg_vector_norm(wide(self), order, at::OptionalIntArrayRef(reduced), keepdim);
  });
  table.add("aclnnNorm", [](const Tensor& self, const std::optional<Scalar>& p, const std::optional<IntArray>& dims,
                            bool keepdim, Output out) {
    out = at::norm(wide(self), p.value_or(2), dimensions_of(self, dims), keepdim);
  });
  table.add("aclnnLogSumExp", [](const Tensor& self, const IntArray& dims, bool keepdim, Output out) {
    out = at::logsumexp(wide(self), dims, keepdim);
  });
}

}  // namespace simcann
