// One call for a list of tensors.
#include "precision.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>

namespace simcann {
namespace {

template <class F>
void each(Table& table, const char* name, F) {
  table.add(name, [](const TensorList& self, OutputList out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = F{}(self.at(i));
  });
}

template <class F>
void each_with_scalar(Table& table, const char* name, F) {
  table.add(name, [](const TensorList& self, const Scalar& scalar, OutputList out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = F{}(self.at(i), scalar);
  });
}

template <class F>
void each_with_scalars(Table& table, const char* name, F) {
  table.add(name, [](const TensorList& self, const std::vector<Scalar>& scalars, OutputList out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = F{}(self.at(i), scalars.at(i));
  });
}

template <class F>
void each_pair(Table& table, const char* name, F) {
  table.add(name, [](const TensorList& self, const TensorList& other, OutputList out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = F{}(self.at(i), other.at(i));
  });
}

template <class F>
void each_pair_with_scalar(Table& table, const char* name, F) {
  table.add(name, [](const TensorList& self, const TensorList& other, const Scalar& scalar, OutputList out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = F{}(self.at(i), other.at(i), scalar);
  });
}

template <class F>
void each_triple_with_scalar(Table& table, const char* name, F) {
  table.add(name, [](const TensorList& self, const TensorList& first, const TensorList& second, const Scalar& scalar,
                     OutputList out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = F{}(self.at(i), first.at(i), second.at(i), scalar);
  });
}

}  // namespace

void add_foreach(Table& table) {
  each(table, "aclnnForeachAbs", [](auto& x) { return at::abs(x); });
  each(table, "aclnnForeachNeg", [](auto& x) { return at::neg(x); });
  each(table, "aclnnForeachSqrt", [](auto& x) { return at::sqrt(x); });
  each(table, "aclnnForeachExp", [](auto& x) { return at::exp(x); });
  each(table, "aclnnForeachReciprocal", [](auto& x) { return at::reciprocal(x); });
  each(table, "aclnnForeachSign", [](auto& x) { return at::sign(x); });
  table.add("aclnnForeachCopy", [](const TensorList& source, const TensorList& target) {
    for (std::size_t i = 0; i < target.size(); ++i) target[i].copy_(source.at(i));
  });
  table.add("aclnnForeachZeroInplace", [](const TensorList& self) {
    for (const auto& tensor : self) tensor.zero_();
  });

  each_with_scalar(table, "aclnnForeachAddScalarV2", [](auto&... x) { return at::add(x...); });
  each_with_scalar(table, "aclnnForeachSubScalarV2", [](auto&... x) { return at::sub(x...); });
  each_with_scalar(table, "aclnnForeachMulScalarV2", [](auto&... x) { return at::mul(x...); });
  each_with_scalar(table, "aclnnForeachDivScalarV2", [](auto&... x) { return at::div(x...); });
  each_with_scalar(table, "aclnnForeachPowScalarV2", [](auto&... x) { return at::pow(x...); });
  each_with_scalar(table, "aclnnForeachMaximumScalarV2", [](auto&... x) { return at::clamp_min(x...); });
  each_with_scalar(table, "aclnnForeachMinimumScalarV2", [](auto&... x) { return at::clamp_max(x...); });
  each_with_scalar(table, "aclnnForeachNorm", [](auto& x, auto& order) {
    return at::linalg_vector_norm(wide(x), order);
  });
  each_with_scalars(table, "aclnnForeachAddScalarList", [](auto&... x) { return at::add(x...); });
  each_with_scalars(table, "aclnnForeachSubScalarList", [](auto&... x) { return at::sub(x...); });
  each_with_scalars(table, "aclnnForeachMulScalarList", [](auto&... x) { return at::mul(x...); });
  each_with_scalars(table, "aclnnForeachDivScalarList", [](auto&... x) { return at::div(x...); });

  each_pair(table, "aclnnForeachMulList", [](auto&... x) { return at::mul(x...); });
  each_pair(table, "aclnnForeachDivList", [](auto&... x) { return at::div(x...); });
  each_pair(table, "aclnnForeachMaximumList", [](auto&... x) { return at::maximum(x...); });
  each_pair(table, "aclnnForeachMinimumList", [](auto&... x) { return at::minimum(x...); });
  each_pair_with_scalar(table, "aclnnForeachAddListV2", [](auto&... x) { return at::add(x...); });
  each_pair_with_scalar(table, "aclnnForeachSubListV2", [](auto&... x) { return at::sub(x...); });
  each_pair_with_scalar(table, "aclnnForeachLerpScalar", [](auto&... x) { return at::lerp(x...); });
  table.add("aclnnForeachLerpList", [](const TensorList& self, const TensorList& end, const TensorList& weight,
                                       OutputList out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = at::lerp(self.at(i), end.at(i), weight.at(i));
  });
  each_triple_with_scalar(table, "aclnnForeachAddcmulScalarV2", [](auto&... x) { return at::addcmul(x...); });
  each_triple_with_scalar(table, "aclnnForeachAddcdivScalarV2", [](auto&... x) { return at::addcdiv(x...); });
}

}  // namespace simcann
