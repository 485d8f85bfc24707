// What the process asked of the device: host waits, copies, operators and collectives, by name.
#pragma once

#include <string>

namespace simcann {

void count(const char* group, const std::string& name);

// The counters so far, as JSON.
std::string counters_json();

}  // namespace simcann

// For ctypes: valid until the next call on the same thread.
extern "C" const char* simcann_counters_json();
