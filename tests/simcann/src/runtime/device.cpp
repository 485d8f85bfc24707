#include "device.h"

#include <acl/acl.h>

#include <array>
#include <cstring>

#include "error.h"
#include "settings.h"
#include "stream.h"

namespace simcann {
namespace {

constexpr char kVersion[] = "8.5.0";  // new enough for torch_npu to take the aclnn operators

thread_local int device_of_thread = -1;

// A context stands for a device. Only its address matters.
std::array<char, kMostDevices> contexts;

void check(int device) {
  if (device < 0 || device >= settings().devices) {
    throw Error(kInvalidDevice, "device " + std::to_string(device) + " does not exist, the machine has " +
                                    std::to_string(settings().devices) + " (SIMCANN_DEVICES)");
  }
}

}  // namespace

int current_device() {
  if (device_of_thread < 0) throw Error(kNoContext, "this thread has set no device");
  return device_of_thread;
}

void set_device(int device) {
  check(device);
  device_of_thread = device;
}

}  // namespace simcann

using namespace simcann;

extern "C" {

aclError aclInit(const char*) {
  return guarded([] { settings(); });
}

aclError aclFinalize() { return ACL_ERROR_NONE; }

aclError aclrtGetDeviceCount(uint32_t* count) {
  return guarded([&] { *count = settings().devices; });
}

// torch_npu relies on the error before a device was set.
aclError aclrtGetDevice(int32_t* device) {
  if (device_of_thread < 0) return kNoContext;
  *device = device_of_thread;
  return ACL_ERROR_NONE;
}

aclError aclrtSetDevice(int32_t device) {
  return guarded([&] { set_device(device); });
}

aclError aclrtResetDevice(int32_t device) {
  return guarded([&] {
    check(device);
    synchronize_device(device);
  });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return guarded([&] { *context = &contexts.at(current_device()); });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return guarded([&] { set_device(static_cast<int>(static_cast<char*>(context) - contexts.data())); });
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  return guarded([&] {
    check(device);
    *flags = 0;
    *active = device_of_thread == device;
  });
}

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_ERROR_NONE;
}

aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_ERROR_NONE; }

const char* aclrtGetSocName() {
  static std::string chip;
  return guarded([] { chip = settings().chip; }) == ACL_ERROR_NONE ? chip.c_str() : nullptr;
}

aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
  return guarded([&] { *value = attribute == ACL_CANN_ATTR_INF_NAN && !settings().saturates(); });
}

// Cores of the chip, the only thing asked for.
aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* value) {
  *value = 24;
  return ACL_ERROR_NONE;
}

aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* info) {
  info->cubeUtilization = info->vectorUtilization = info->aicpuUtilization = info->memoryUtilization = 0;
  return ACL_ERROR_NONE;
}

aclError aclsysGetVersionStr(char*, char* version) {
  std::memcpy(version, kVersion, sizeof kVersion);
  return ACL_ERROR_NONE;
}

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  *version = {};
  std::memcpy(version->version, kVersion, sizeof kVersion);
  return ACL_ERROR_NONE;
}

}  // extern "C"
