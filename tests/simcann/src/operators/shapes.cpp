// Copies, fills, and operators that move elements without changing them.
#include "precision.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/channel_shuffle.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/range.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>

namespace simcann {

void add_shapes(Table& table) {
  // Also casts, and gathers and scatters elements of tensors with any strides.
  table.add("aclnnInplaceCopy", [](const Tensor& self, const Tensor& source) { self.copy_(source); });
  table.add("aclnnCast",
            [](const Tensor& self, at::ScalarType, Output out) { out = self.to(out.type()); });
  table.add("aclnnInplaceZero", [](const Tensor& self) { self.zero_(); });
  table.add("aclnnInplaceOne", [](const Tensor& self) { self.fill_(1); });
  table.add("aclnnInplaceFillScalar", [](const Tensor& self, const Scalar& value) { self.fill_(value); });
  table.add("aclnnInplaceFillTensor", [](const Tensor& self, const Tensor& value) { self.fill_(value.reshape({})); });

  table.add("aclnnArange", [](const Scalar& start, const Scalar& end, const Scalar& step, Output out) {
    out = at::arange(start, end, step, out.type());
  });
  table.add("aclnnRange", [](const Scalar& start, const Scalar& end, const Scalar& step, Output out) {
    out = at::range(start, end, step, out.type());
  });
  table.add("aclnnLinspace", [](const Scalar& start, const Scalar& end, std::int64_t steps, Output out) {
    out = at::linspace(start, end, steps, out.type());
  });
  table.add("aclnnEye", [](std::int64_t rows, std::int64_t columns, Output out) {
    out = at::eye(rows, columns, out.type());
  });

  table.add("aclnnCat", [](const TensorList& tensors, std::int64_t dim, Output out) { out = at::cat(tensors, dim); });
  table.add("aclnnStack",
            [](const TensorList& tensors, std::int64_t dim, Output out) { out = at::stack(tensors, dim); });
  table.add("aclnnSplitWithSize",
            [](const Tensor& self, const IntArray& sizes, std::int64_t dim, OutputList out) {
              const auto parts = at::split_with_sizes(self, sizes, dim);
              for (std::size_t i = 0; i < out.size(); ++i) out[i] = parts.at(i);
            });
  table.add("aclnnConstantPadNd", [](const Tensor& self, const IntArray& padding, const Scalar& value, Output out) {
    out = at::constant_pad_nd(self, padding, value);
  });
  table.add("aclnnReflectionPad2d", [](const Tensor& self, const IntArray& padding, Output out) {
    out = at::reflection_pad2d(wide(self), padding);
  });
  table.add("aclnnFlip", [](const Tensor& self, const IntArray& dims, Output out) { out = at::flip(self, dims); });
  table.add("aclnnRoll", [](const Tensor& self, const IntArray& shifts, const IntArray& dims, Output out) {
    out = at::roll(self, shifts, dims);
  });
  table.add("aclnnRepeat", [](const Tensor& self, const IntArray& repeats, Output out) { out = self.repeat(repeats); });
  table.add("aclnnRepeatInterleaveIntWithDim",
            [](const Tensor& self, std::int64_t repeats, std::int64_t dim, std::int64_t /*size*/, Output out) {
              out = at::repeat_interleave(self, repeats, dim);
            });
  table.add("aclnnTril", [](const Tensor& self, std::int64_t diagonal, Output out) { out = at::tril(self, diagonal); });
  table.add("aclnnTriu", [](const Tensor& self, std::int64_t diagonal, Output out) { out = at::triu(self, diagonal); });
  table.add("aclnnChannelShuffle", [](const Tensor& self, std::int64_t groups, Output out) {
    out = at::channel_shuffle(self, groups);
  });
}

}  // namespace simcann
