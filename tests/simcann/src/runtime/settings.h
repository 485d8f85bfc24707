// What the user can choose, read once from the environment. README.md documents each variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace simcann {

// "NAME:N" in a variable: the Nth event of that name, counted from 1.
struct Nth {
  std::string name;
  std::uint64_t number = 1;
};

// "DEVICE:N" in a variable: the Nth collective on that device, counted from 1.
struct NthOnDevice {
  int device = 0;
  std::uint64_t number = 1;
};

struct Settings {
  int devices = 8;                                         // SIMCANN_DEVICES
  std::string chip = "Ascend910B2";                        // SIMCANN_CHIP
  std::size_t memory_bytes = std::size_t{64} << 30;        // SIMCANN_MEMORY_MB
  double collective_timeout_s = 120;                       // SIMCANN_COLLECTIVE_TIMEOUT
  std::string counters_folder;                             // SIMCANN_COUNTERS
  std::optional<Nth> failing_operator;                     // SIMCANN_FAIL_OPERATOR
  std::optional<NthOnDevice> die_in_collective;            // SIMCANN_DIE_IN_COLLECTIVE
  std::optional<NthOnDevice> hang_in_collective;           // SIMCANN_HANG_IN_COLLECTIVE
  bool log = false;                                        // SIMCANN_LOG

  // Chips before the 910B clip to the largest finite number where an operator overflows, and raise a status flag.
  bool saturates() const;
};

// Throws Error when a variable is not understood, at every call.
const Settings& settings();

}  // namespace simcann
