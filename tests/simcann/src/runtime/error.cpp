#include "error.h"

namespace simcann {
namespace {

thread_local std::string recent_message;

}  // namespace

void remember_message(const std::string& message) noexcept {
  try {
    recent_message = "simcann: " + message;
  } catch (...) {
    recent_message.clear();
  }
}

int missing_function(const char* name) noexcept {
  return guarded([&] {
    throw Error(ACL_ERROR_API_NOT_SUPPORT, std::string(name) + " is not part of the simulated CANN");
  });
}

}  // namespace simcann

extern "C" const char* aclGetRecentErrMsg() {
  // The text is handed over: a second call has nothing to say. It stays valid until the next call on this thread.
  static thread_local std::string handed_over;
  handed_over.swap(simcann::recent_message);
  simcann::recent_message.clear();
  return handed_over.c_str();
}

// torch_npu asks these after an error whether a better code than the returned one is known. None is.
extern "C" aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_ERROR_NONE; }
extern "C" aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_ERROR_NONE; }
