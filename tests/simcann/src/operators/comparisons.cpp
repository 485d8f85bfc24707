// Comparisons, logic and bits, element by element.
#include "precision.h"

#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/isposinf.h>
#include <ATen/ops/le.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logical_xor.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/signbit.h>

namespace simcann {
namespace {

template <class Other, class F>
void compare(Table& table, const char* name, const char* inplace_name, F) {
  table.add(name, [](const Tensor& self, const Other& other, Output out) {
    // torch allows any type for the result of a comparison.
    out = F{}(self, other).to(out.type());
  });
  table.add(inplace_name, [](const Tensor& self, const Other& other) {
    Output{self} = F{}(self, other).to(self.scalar_type());
  });
}

template <class F>
void test(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& self, Output out) { out = F{}(self).to(out.type()); });
}

}  // namespace

void add_comparisons(Table& table) {
  compare<Tensor>(table, "aclnnEqTensor", "aclnnInplaceEqTensor", [](auto&... x) { return at::eq(x...); });
  compare<Scalar>(table, "aclnnEqScalar", "aclnnInplaceEqScalar", [](auto&... x) { return at::eq(x...); });
  compare<Tensor>(table, "aclnnNeTensor", "aclnnInplaceNeTensor", [](auto&... x) { return at::ne(x...); });
  compare<Scalar>(table, "aclnnNeScalar", "aclnnInplaceNeScalar", [](auto&... x) { return at::ne(x...); });
  compare<Tensor>(table, "aclnnLtTensor", "aclnnInplaceLtTensor", [](auto&... x) { return at::lt(x...); });
  compare<Scalar>(table, "aclnnLtScalar", "aclnnInplaceLtScalar", [](auto&... x) { return at::lt(x...); });
  compare<Scalar>(table, "aclnnLessScalar", "aclnnInplaceLessScalar", [](auto&... x) { return at::lt(x...); });
  compare<Tensor>(table, "aclnnLeTensor", "aclnnInplaceLeTensor", [](auto&... x) { return at::le(x...); });
  compare<Scalar>(table, "aclnnLeScalar", "aclnnInplaceLeScalar", [](auto&... x) { return at::le(x...); });
  compare<Tensor>(table, "aclnnGtTensor", "aclnnInplaceGtTensor", [](auto&... x) { return at::gt(x...); });
  compare<Scalar>(table, "aclnnGtScalar", "aclnnInplaceGtScalar", [](auto&... x) { return at::gt(x...); });
  compare<Tensor>(table, "aclnnGeTensor", "aclnnInplaceGeTensor", [](auto&... x) { return at::ge(x...); });
  compare<Scalar>(table, "aclnnGeScalar", "aclnnInplaceGeScalar", [](auto&... x) { return at::ge(x...); });
  compare<Tensor>(table, "aclnnLogicalAnd", "aclnnInplaceLogicalAnd",
                  [](auto&... x) { return at::logical_and(x...); });
  compare<Tensor>(table, "aclnnLogicalOr", "aclnnInplaceLogicalOr", [](auto&... x) { return at::logical_or(x...); });
  compare<Tensor>(table, "aclnnLogicalXor", "aclnnInplaceLogicalXor",
                  [](auto&... x) { return at::logical_xor(x...); });
  compare<Tensor>(table, "aclnnBitwiseAndTensor", "aclnnInplaceBitwiseAndTensor",
                  [](auto&... x) { return at::bitwise_and(x...); });
  compare<Scalar>(table, "aclnnBitwiseAndScalar", "aclnnInplaceBitwiseAndScalar",
                  [](auto&... x) { return at::bitwise_and(x...); });
  compare<Tensor>(table, "aclnnBitwiseOrTensor", "aclnnInplaceBitwiseOrTensor",
                  [](auto&... x) { return at::bitwise_or(x...); });
  compare<Scalar>(table, "aclnnBitwiseOrScalar", "aclnnInplaceBitwiseOrScalar",
                  [](auto&... x) { return at::bitwise_or(x...); });
  compare<Tensor>(table, "aclnnBitwiseXorTensor", "aclnnInplaceBitwiseXorTensor",
                  [](auto&... x) { return at::bitwise_xor(x...); });
  compare<Scalar>(table, "aclnnBitwiseXorScalar", "aclnnInplaceBitwiseXorScalar",
                  [](auto&... x) { return at::bitwise_xor(x...); });

  test(table, "aclnnLogicalNot", [](auto& x) { return at::logical_not(x); });
  test(table, "aclnnBitwiseNot", [](auto& x) { return at::bitwise_not(x); });
  test(table, "aclnnIsFinite", [](auto& x) { return at::isfinite(x); });
  test(table, "aclnnIsPosInf", [](auto& x) { return at::isposinf(x); });
  test(table, "aclnnIsNegInf", [](auto& x) { return at::isneginf(x); });
  test(table, "aclnnSignbit", [](auto& x) { return at::signbit(x); });
  table.add("aclnnInplaceLogicalNot",
            [](const Tensor& self) { Output{self} = at::logical_not(self).to(self.scalar_type()); });

  table.add("aclnnIsClose", [](const Tensor& self, const Tensor& other, double relative, double absolute,
                               bool equal_nan, Output out) {
    out = at::isclose(self, other, relative, absolute, equal_nan);
  });
  table.add("aclnnEqual", [](const Tensor& self, const Tensor& other, Output out) {
    out = at::scalar_tensor(at::equal(self, other), at::kBool).expand_as(out.tensor());
  });
}

}  // namespace simcann
