// Calls that torch_npu makes and whose effect a training run does not see. They succeed and do nothing.
// (A function that is in no source file here is an error that names it; see generate_stubs in run.py.)
#include <acl/acl.h>
#include <acl/acl_op_compiler.h>
#include <acl/acl_mdl.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "error.h"

namespace simcann {
namespace {

class SystemParameters {
 public:
  void set(aclSysParamOpt option, std::int64_t value) {
    const std::lock_guard lock(mutex_);
    values_[option] = value;
  }

  std::int64_t get(aclSysParamOpt option) {
    const std::lock_guard lock(mutex_);
    return values_[option];  // 0 unless set
  }

 private:
  std::mutex mutex_;
  std::map<aclSysParamOpt, std::int64_t> values_;
};

SystemParameters& system_parameters() {
  static SystemParameters instance;
  return instance;
}

}  // namespace
}  // namespace simcann

using namespace simcann;

extern "C" {

// Numbers are what the CPU makes of them: no saturation, no timeouts, no failure modes.
aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_ERROR_NONE; }
aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_ERROR_NONE; }
aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_ERROR_NONE; }
aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_ERROR_NONE; }
aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_ERROR_NONE; }

// Determinism and the like. torch_npu reads back what it has set.
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_ERROR_NONE; }

aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  return guarded([&] { system_parameters().set(option, value); });
}

aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  return guarded([&] { *value = system_parameters().get(option); });
}

// Options of the operator compiler, of which there is none. torch_npu reads the jit_compile option back.
aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_ERROR_NONE; }

size_t aclGetCompileoptSize(aclCompileOpt) { return sizeof "disable"; }

aclError aclGetCompileopt(aclCompileOpt, char* value, size_t length) {
  std::strncpy(value, "disable", length);
  return ACL_ERROR_NONE;
}

// Dumps, logs and profiling.
aclError aclmdlInitDump() { return ACL_ERROR_NONE; }
aclError aclmdlSetDump(const char*) { return ACL_ERROR_NONE; }
aclError aclmdlFinalizeDump() { return ACL_ERROR_NONE; }
void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}
uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
uint64_t MsprofSysCycleTime() { return 0; }
int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }

}  // extern "C"
