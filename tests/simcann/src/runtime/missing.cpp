// torch_npu's libraries are linked so that every CANN function they mention has to exist when they load. The build
// lists those names; what no source file here defines becomes an error that says so. The definitions are weak: a real
// one in another file takes precedence. (No header of CANN is included, it would contradict the argument lists.)

namespace simcann {
int missing_function(const char* name) noexcept;
}

#define MISSING_FUNCTION(name) \
  extern "C" __attribute__((weak)) int name() { return simcann::missing_function(#name); }

#include "missing_functions.inc"  // generated: MISSING_FUNCTION(name) for each
