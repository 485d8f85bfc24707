// Random numbers. They depend on the seed and offset that torch_npu passes, as on the device, but are others.
#include <ATen/CPUGeneratorImpl.h>

#include "dropout.h"
#include "precision.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/sum.h>

namespace simcann {
namespace {

at::Generator generator(std::uint64_t seed, std::uint64_t offset) {
  // Spreads neighbouring seeds and offsets (the finalizer of splitmix64).
  std::uint64_t mixed = seed + 0x9e3779b97f4a7c15 * (offset + 1);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return at::detail::createCPUGenerator(mixed ^ (mixed >> 31));
}

constexpr std::int64_t kBits = 8;

Tensor dropped_out(const Tensor& self, const Tensor& mask, double probability) {
  const double scale = probability < 1 ? 1 / (1 - probability) : 0;
  return at::mul(at::mul(wide(self), unpacked_mask(mask, self.sizes())), scale);
}

Tensor kept(const IntArray& shape, double probability, std::int64_t seed, std::int64_t offset) {
  return at::empty(shape, at::kFloat).bernoulli_(1 - probability, generator(seed, offset));
}

}  // namespace

Tensor packed_mask(const Tensor& kept, std::int64_t bytes) {
  const auto bits = at::constant_pad_nd(kept.flatten(), {0, bytes * kBits - kept.numel()}).view({bytes, kBits});
  const auto values = at::bitwise_left_shift(at::ones({kBits}, at::kLong), at::arange(kBits));
  return at::sum(at::mul(bits.to(at::kLong), values), {1}).to(at::kByte);
}

Tensor unpacked_mask(const Tensor& mask, at::IntArrayRef shape) {
  const auto bytes = mask.flatten().to(at::kLong).unsqueeze(1);
  const auto bits = at::bitwise_and(at::bitwise_right_shift(bytes, at::arange(kBits)), 1).flatten();
  return bits.slice(0, 0, c10::multiply_integers(shape)).view(shape);
}

void add_random(Table& table) {
  table.add("aclnnInplaceNormal", [](const Tensor& self, float mean, float std, std::int64_t seed,
                                     std::int64_t offset) { self.normal_(mean, std, generator(seed, offset)); });
  table.add("aclnnNormalFloatFloat", [](float mean, float std, std::int64_t seed, std::int64_t offset, Output out) {
    out = at::normal(mean, std, out.tensor().sizes(), generator(seed, offset), out.tensor().options());
  });
  table.add("aclnnInplaceUniform", [](const Tensor& self, double from, double to, std::uint64_t seed,
                                      std::uint64_t offset) { self.uniform_(from, to, generator(seed, offset)); });
  table.add("aclnnInplaceBernoulli", [](const Tensor& self, const Scalar& probability, std::int64_t seed,
                                        std::int64_t offset) {
    self.bernoulli_(probability.toDouble(), generator(seed, offset));
  });
  table.add("aclnnInplaceBernoulliTensor", [](const Tensor& self, const Tensor& probability, std::int64_t seed,
                                              std::int64_t offset) {
    self.bernoulli_(wide(probability), generator(seed, offset));
  });
  table.add("aclnnInplaceRandom", [](const Tensor& self, std::int64_t from, std::int64_t to, std::int64_t seed,
                                     std::int64_t offset) { self.random_(from, to, generator(seed, offset)); });
  table.add("aclnnInplaceRandomWithoutFromTo", [](const Tensor& self, std::int64_t seed, std::int64_t offset) {
    self.random_(generator(seed, offset));
  });
  table.add("aclnnRandperm", [](std::int64_t n, std::int64_t seed, std::int64_t offset, Output out) {
    out = at::randperm(n, generator(seed, offset), out.type());
  });
  table.add("aclnnMultinomial", [](const Tensor& self, std::int64_t samples, bool replacement, std::int64_t seed,
                                   std::int64_t offset, Output out) {
    out = at::multinomial(wide(self), samples, replacement, generator(seed, offset));
  });

  table.add("aclnnDropoutGenMask", [](const IntArray& shape, double probability, std::int64_t seed,
                                      std::int64_t offset, Output mask) {
    mask = packed_mask(kept(shape, probability, seed, offset), mask.tensor().numel());
  });
  table.add("aclnnDropoutGenMaskV2", [](const IntArray& shape, double probability, std::int64_t seed,
                                        std::int64_t offset, at::ScalarType, Output mask) {
    mask = packed_mask(kept(shape, probability, seed, offset), mask.tensor().numel());
  });
  table.add("aclnnDropoutDoMask", [](const Tensor& self, const Tensor& mask, double probability, Output out) {
    out = dropped_out(self, mask, probability);
  });
  table.add("aclnnDropoutV3", [](const Tensor& self, const std::optional<Tensor>& /*noise_shape*/, double probability,
                                 std::int64_t seed, std::int64_t offset, Output out, Output mask) {
    const auto bits = packed_mask(kept(self.sizes().vec(), probability, seed, offset), mask.tensor().numel());
    out = dropped_out(self, bits, probability);
    mask = bits;
  });
}

}  // namespace simcann
