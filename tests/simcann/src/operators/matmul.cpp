// Products of matrices. The last argument chooses a precision for the matrix unit, which a CPU has not.
#include "precision.h"

#include <ATen/ops/addbmm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>

namespace simcann {
namespace {

template <class F>
void product(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& self, const Tensor& other, Output out, std::int8_t) {
    out = F{}(wide(self), wide(other));
  });
}

template <class F>
void product_sum(Table& table, const char* name, F) {
  table.add(name, [](const Tensor& self, const Tensor& first, const Tensor& second, const Scalar& beta,
                     const Scalar& alpha, Output out, std::int8_t) {
    out = F{}(wide(self), wide(first), wide(second), beta, alpha);
  });
}

}  // namespace

void add_matmul(Table& table) {
  product(table, "aclnnMm", [](auto&&... x) { return at::mm(x...); });
  product(table, "aclnnMv", [](auto&&... x) { return at::mv(x...); });
  product(table, "aclnnMatmul", [](auto&&... x) { return at::matmul(x...); });
  product(table, "aclnnBatchMatMul", [](auto&&... x) { return at::bmm(x...); });
  product_sum(table, "aclnnAddmm", [](auto&&... x) { return at::addmm(x...); });
  product_sum(table, "aclnnAddbmm", [](auto&&... x) { return at::addbmm(x...); });
  product_sum(table, "aclnnBaddbmm", [](auto&&... x) { return at::baddbmm(x...); });

  table.add("aclnnInplaceAddmm", [](const Tensor& self, const Tensor& first, const Tensor& second,
                                    const Scalar& beta, const Scalar& alpha, std::int8_t) {
    Output{self} = at::addmm(wide(self), wide(first), wide(second), beta, alpha);
  });
  // Unlike the others, alpha first.
  table.add("aclnnAddmv", [](const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& alpha,
                             const Scalar& beta, Output out, std::int8_t) {
    out = at::addmv(wide(self), wide(matrix), wide(vector), beta, alpha);
  });
  table.add("aclnnDot", [](const Tensor& self, const Tensor& other, Output out) {
    out = at::dot(wide(self), wide(other));
  });
}

}  // namespace simcann
