// The two C functions of every operator that torch_npu knows. The build lists the names, as they stand in
// libtorch_npu.so; the code of the implemented ones is a template that the registry finds by name.
//
// aclnnXGetWorkspaceSize is an indirect function: when torch_npu looks it up with dlsym, the dynamic linker calls
// resolve_aclnnX and hands out the address that it returns. That is how a C name comes to stand for a C++ template
// without its argument list being written down once more. For an operator that is not implemented the address is
// that of a function that only knows the name. (Were the symbol missing, torch_npu would fall back to operators of
// an older kind, and its error would name something else.)
#include "registry.h"

#define OPERATOR(name)                                                                             \
  extern "C" {                                                                                     \
  static int missing_##name() { return simcann::missing_operator(#name); }                         \
  static void* resolve_##name() {                                                                  \
    return simcann::resolve(#name, reinterpret_cast<void*>(&missing_##name));                      \
  }                                                                                                \
  int name##GetWorkspaceSize() __attribute__((ifunc("resolve_" #name)));                           \
  int name(void*, std::uint64_t, aclOpExecutor* executor, aclrtStream stream) {                    \
    return simcann::launch(executor, stream);                                                      \
  }                                                                                                \
  }

#include "operator_names.inc"  // generated: OPERATOR(name) for each
