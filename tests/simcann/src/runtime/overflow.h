// Chips before the 910B do not know infinity: what overflows becomes the largest number, and raises a flag. torch_npu's
// loss scaling reads the flag there instead of looking for infinities. The flag is one for the process.
#pragma once

namespace simcann {

void raise_overflow_flag();

}  // namespace simcann
