#pragma once

#include <cstddef>

namespace simcann {

constexpr int kMostDevices = 16;

// The device that this thread has set. Throws if it has set none.
int current_device();

// Makes later operators and collectives of this thread belong to the device.
void set_device(int device);

}  // namespace simcann
