// Arithmetic, element by element.
#include "precision.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/div.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/fmod.h>
#include <ATen/ops/frac.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/trunc.h>

namespace simcann {
namespace {

// aclnnX and aclnnInplaceX of a function of one tensor.
template <class F>
void unary(Table& table, const char* name, const char* inplace_name, F) {
  table.add(name, [](const Tensor& self, Output out) { out = F{}(self); });
  table.add(inplace_name, [](const Tensor& self) { Output{self} = F{}(self); });
}

// The same of a function of a tensor and a tensor or scalar.
template <class Other, class F>
void binary(Table& table, const char* name, const char* inplace_name, F) {
  table.add(name, [](const Tensor& self, const Other& other, Output out) { out = F{}(self, other); });
  table.add(inplace_name, [](const Tensor& self, const Other& other) { Output{self} = F{}(self, other); });
}

// The same with a factor for the second operand.
template <class Other, class F>
void scaled(Table& table, const char* name, const char* inplace_name, F) {
  table.add(name, [](const Tensor& self, const Other& other, const Scalar& alpha, Output out) {
    out = F{}(self, other, alpha);
  });
  table.add(inplace_name, [](const Tensor& self, const Other& other, const Scalar& alpha) {
    Output{self} = F{}(self, other, alpha);
  });
}

// aclnnDivMod's third argument.
Tensor divide(const Tensor& self, const Tensor& other, std::int64_t mode) {
  switch (mode) {
    case 1: return at::div(self, other, "trunc");
    case 2: return at::div(self, other, "floor");
    default: return at::div(self, other);
  }
}

Tensor divide(const Tensor& self, const Scalar& other, std::int64_t mode) {
  switch (mode) {
    case 1: return at::div(self, other, "trunc");
    case 2: return at::div(self, other, "floor");
    default: return at::div(self, other);
  }
}

}  // namespace

void add_pointwise(Table& table) {
  scaled<Tensor>(table, "aclnnAdd", "aclnnInplaceAdd", [](auto&... x) { return at::add(x...); });
  scaled<Scalar>(table, "aclnnAdds", "aclnnInplaceAdds", [](auto&... x) { return at::add(x...); });
  scaled<Tensor>(table, "aclnnSub", "aclnnInplaceSub", [](auto&... x) { return at::sub(x...); });
  scaled<Scalar>(table, "aclnnSubs", "aclnnInplaceSubs", [](auto&... x) { return at::sub(x...); });
  scaled<Tensor>(table, "aclnnRsub", "aclnnInplaceRsub", [](auto&... x) { return at::rsub(x...); });
  scaled<Scalar>(table, "aclnnRsubs", "aclnnInplaceRsubs", [](auto&... x) { return at::rsub(x...); });

  binary<Tensor>(table, "aclnnMul", "aclnnInplaceMul", [](auto&... x) { return at::mul(x...); });
  binary<Scalar>(table, "aclnnMuls", "aclnnInplaceMuls", [](auto&... x) { return at::mul(x...); });
  binary<Tensor>(table, "aclnnDiv", "aclnnInplaceDiv", [](auto&... x) { return at::div(x...); });
  binary<Scalar>(table, "aclnnDivs", "aclnnInplaceDivs", [](auto&... x) { return at::div(x...); });
  binary<Tensor>(table, "aclnnFloorDivide", "aclnnInplaceFloorDivide",
                 [](auto&... x) { return at::floor_divide(x...); });
  binary<Scalar>(table, "aclnnFloorDivides", "aclnnInplaceFloorDivides",
                 [](auto&... x) { return at::floor_divide(x...); });
  binary<Tensor>(table, "aclnnRemainderTensorTensor", "aclnnInplaceRemainderTensorTensor",
                 [](auto&... x) { return at::remainder(x...); });
  binary<Scalar>(table, "aclnnRemainderTensorScalar", "aclnnInplaceRemainderTensorScalar",
                 [](auto&... x) { return at::remainder(x...); });
  binary<Tensor>(table, "aclnnFmodTensor", "aclnnInplaceFmodTensor", [](auto&... x) { return at::fmod(x...); });
  binary<Scalar>(table, "aclnnFmodScalar", "aclnnInplaceFmodScalar", [](auto&... x) { return at::fmod(x...); });
  binary<Tensor>(table, "aclnnPowTensorTensor", "aclnnInplacePowTensorTensor",
                 [](auto&... x) { return at::pow(x...); });
  binary<Scalar>(table, "aclnnPowTensorScalar", "aclnnInplacePowTensorScalar",
                 [](auto&... x) { return at::pow(x...); });
  binary<Tensor>(table, "aclnnMaximum", "aclnnInplaceMaximum", [](auto&... x) { return at::maximum(x...); });
  binary<Tensor>(table, "aclnnMinimum", "aclnnInplaceMinimum", [](auto&... x) { return at::minimum(x...); });
  binary<Scalar>(table, "aclnnClampMin", "aclnnInplaceClampMin", [](auto&... x) { return at::clamp_min(x...); });
  binary<Scalar>(table, "aclnnClampMax", "aclnnInplaceClampMax", [](auto&... x) { return at::clamp_max(x...); });
  binary<Tensor>(table, "aclnnClampMinTensor", "aclnnInplaceClampMinTensor",
                 [](auto&... x) { return at::clamp_min(x...); });
  binary<Tensor>(table, "aclnnClampMaxTensor", "aclnnInplaceClampMaxTensor",
                 [](auto&... x) { return at::clamp_max(x...); });
  binary<Tensor>(table, "aclnnAtan2", "aclnnInplaceAtan2", [](auto&... x) { return at::atan2(x...); });

  table.add("aclnnPowScalarTensor",
            [](const Scalar& self, const Tensor& exponent, Output out) { out = at::pow(self, exponent); });
  table.add("aclnnRemainderScalarTensor",
            [](const Scalar& self, const Tensor& other, Output out) { out = at::remainder(self, other); });
  table.add("aclnnDivMod", [](const Tensor& self, const Tensor& other, std::int64_t mode, Output out) {
    out = divide(self, other, mode);
  });
  table.add("aclnnDivMods", [](const Tensor& self, const Scalar& other, std::int64_t mode, Output out) {
    out = divide(self, other, mode);
  });
  table.add("aclnnInplaceDivMod", [](const Tensor& self, const Tensor& other, std::int64_t mode) {
    Output{self} = divide(self, other, mode);
  });
  table.add("aclnnInplaceDivMods", [](const Tensor& self, const Scalar& other, std::int64_t mode) {
    Output{self} = divide(self, other, mode);
  });

  unary(table, "aclnnAbs", "aclnnInplaceAbs", [](auto& x) { return at::abs(x); });
  unary(table, "aclnnNeg", "aclnnInplaceNeg", [](auto& x) { return at::neg(x); });
  unary(table, "aclnnSign", "aclnnInplaceSign", [](auto& x) { return at::sign(x); });
  unary(table, "aclnnCeil", "aclnnInplaceCeil", [](auto& x) { return at::ceil(x); });
  unary(table, "aclnnFloor", "aclnnInplaceFloor", [](auto& x) { return at::floor(x); });
  unary(table, "aclnnRound", "aclnnInplaceRound", [](auto& x) { return at::round(x); });
  unary(table, "aclnnTrunc", "aclnnInplaceTrunc", [](auto& x) { return at::trunc(x); });
  unary(table, "aclnnFrac", "aclnnInplaceFrac", [](auto& x) { return at::frac(x); });
  unary(table, "aclnnReciprocal", "aclnnInplaceReciprocal", [](auto& x) { return at::reciprocal(x); });
  unary(table, "aclnnSqrt", "aclnnInplaceSqrt", [](auto& x) { return at::sqrt(x); });
  unary(table, "aclnnRsqrt", "aclnnInplaceRsqrt", [](auto& x) { return at::rsqrt(x); });
  unary(table, "aclnnExp", "aclnnInplaceExp", [](auto& x) { return at::exp(x); });
  unary(table, "aclnnExp2", "aclnnInplaceExp2", [](auto& x) { return at::exp2(x); });
  unary(table, "aclnnExpm1", "aclnnInplaceExpm1", [](auto& x) { return at::expm1(x); });
  unary(table, "aclnnLog", "aclnnInplaceLog", [](auto& x) { return at::log(x); });
  unary(table, "aclnnLog2", "aclnnInplaceLog2", [](auto& x) { return at::log2(x); });
  unary(table, "aclnnLog10", "aclnnInplaceLog10", [](auto& x) { return at::log10(x); });
  unary(table, "aclnnLog1p", "aclnnInplaceLog1p", [](auto& x) { return at::log1p(x); });
  unary(table, "aclnnSin", "aclnnInplaceSin", [](auto& x) { return at::sin(x); });
  unary(table, "aclnnCos", "aclnnInplaceCos", [](auto& x) { return at::cos(x); });
  unary(table, "aclnnTan", "aclnnInplaceTan", [](auto& x) { return at::tan(x); });
  unary(table, "aclnnErf", "aclnnInplaceErf", [](auto& x) { return at::erf(x); });
  unary(table, "aclnnErfinv", "aclnnInplaceErfinv", [](auto& x) { return at::erfinv(x); });

  table.add("aclnnClamp", [](const Tensor& self, const std::optional<Scalar>& lowest,
                             const std::optional<Scalar>& highest, Output out) {
    out = at::clamp(self, lowest, highest);
  });
  table.add("aclnnClampTensor", [](const Tensor& self, const std::optional<Tensor>& lowest,
                                   const std::optional<Tensor>& highest, Output out) {
    out = at::clamp(self, lowest, highest);
  });
  table.add("aclnnNanToNum", [](const Tensor& self, float nan, float infinity, float minus_infinity, Output out) {
    out = at::nan_to_num(self, nan, infinity, minus_infinity);
  });

  table.add("aclnnAddcmul", [](const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value,
                               Output out) { out = at::addcmul(self, tensor1, tensor2, value); });
  table.add("aclnnInplaceAddcmul",
            [](const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
              Output{self} = at::addcmul(self, tensor1, tensor2, value);
            });
  table.add("aclnnAddcdiv", [](const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value,
                               Output out) { out = at::addcdiv(self, tensor1, tensor2, value); });
  table.add("aclnnInplaceAddcdiv",
            [](const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
              Output{self} = at::addcdiv(self, tensor1, tensor2, value);
            });
  table.add("aclnnLerp", [](const Tensor& self, const Tensor& end, const Tensor& weight, Output out) {
    out = at::lerp(self, end, weight);
  });
  table.add("aclnnInplaceLerp", [](const Tensor& self, const Tensor& end, const Tensor& weight) {
    Output{self} = at::lerp(self, end, weight);
  });
  table.add("aclnnLerps", [](const Tensor& self, const Tensor& end, const Scalar& weight, Output out) {
    out = at::lerp(self, end, weight);
  });
  table.add("aclnnInplaceLerps", [](const Tensor& self, const Tensor& end, const Scalar& weight) {
    Output{self} = at::lerp(self, end, weight);
  });
}

}  // namespace simcann
