// Dropout masks have one bit for each element, 1 where it is kept, lowest bit first.
#pragma once

#include "registry.h"

namespace simcann {

// The bits of a tensor of zeros and ones, in that many bytes.
Tensor packed_mask(const Tensor& kept, std::int64_t bytes);

// Zeros and ones of the shape, from the first bits of a mask.
Tensor unpacked_mask(const Tensor& mask, at::IntArrayRef shape);

}  // namespace simcann
