// Inside the simulator a failure is an exception; at the C boundary it becomes a status code, and its text is kept
// for aclGetRecentErrMsg, which torch_npu calls on the same thread to build the Python exception.
#pragma once

#include <acl/acl.h>

#include <stdexcept>
#include <string>

namespace simcann {

// Codes that the headers of the wheel do not name, as CANN returns them.
constexpr aclError kInvalidDevice = 107001;
constexpr aclError kNoContext = 107002;
constexpr aclError kStreamTimeout = 107020;
constexpr aclError kOutOfMemory = 207001;
constexpr aclError kCollectiveFailed = 507011;
constexpr aclError kOperatorFailed = 507015;
constexpr aclError kOperatorRefused = 561103;

class Error : public std::runtime_error {
 public:
  Error(aclError code, const std::string& message) : std::runtime_error(message), code_(code) {}
  aclError code() const noexcept { return code_; }

 private:
  aclError code_;
};

// Remembers the text for aclGetRecentErrMsg on this thread.
void remember_message(const std::string& message) noexcept;

// Runs the body of a C function; no exception leaves it.
template <class Body>
aclError guarded(Body&& body) noexcept {
  try {
    body();
    return ACL_ERROR_NONE;
  } catch (const Error& error) {
    remember_message(error.what());
    return error.code();
  } catch (const std::exception& error) {
    remember_message(error.what());
    return ACL_ERROR_INTERNAL_ERROR;
  } catch (...) {
    remember_message("an exception of an unknown kind");
    return ACL_ERROR_INTERNAL_ERROR;
  }
}

// For symbols that torch_npu links to and the simulator does not have: an error that names the function.
int missing_function(const char* name) noexcept;

}  // namespace simcann
