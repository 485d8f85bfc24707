#pragma once

#include "registry.h"

namespace simcann {

// Half precision is computed in single precision and rounded once, at the output. The device accumulates in single
// precision too, and ATen's half precision kernels for the CPU are slow or missing.
inline Tensor wide(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

inline std::optional<Tensor> wide(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional<Tensor>(wide(*tensor)) : std::nullopt;
}

}  // namespace simcann
