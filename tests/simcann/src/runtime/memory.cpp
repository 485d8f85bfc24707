// Device memory is host memory with a limit per device.
#include <acl/acl.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "counters.h"
#include "device.h"
#include "settings.h"
#include "stream.h"

namespace simcann {
namespace {

// What the device has given away. It says no where CANN would.
class Budget {
 public:
  void take(int device, std::size_t size) {
    const std::lock_guard lock(mutex_);
    auto& used = used_.at(device);
    if (size > settings().memory_bytes - used) {
      throw Error(kOutOfMemory, "device " + std::to_string(device) + " has no " + std::to_string(size) +
                                    " bytes left of " + std::to_string(settings().memory_bytes) +
                                    " (SIMCANN_MEMORY_MB)");
    }
    used += size;
  }

  void give_back(int device, std::size_t size) {
    const std::lock_guard lock(mutex_);
    used_.at(device) -= size;
  }

  std::size_t left(int device) {
    const std::lock_guard lock(mutex_);
    return settings().memory_bytes - used_.at(device);
  }

 private:
  std::mutex mutex_;
  std::array<std::size_t, kMostDevices> used_{};
};

Budget& budget() {
  static Budget instance;
  return instance;
}

class Blocks {
 public:
  void* allocate(std::size_t size) {
    constexpr std::size_t kAlignment = 512;  // as on the device
    const std::size_t rounded = (std::max<std::size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
    const int device = current_device();
    budget().take(device, rounded);
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (!memory) {
      budget().give_back(device, rounded);
      throw Error(kOutOfMemory, "the host has no " + std::to_string(size) + " bytes left");
    }
    const std::lock_guard lock(mutex_);
    blocks_[memory] = {device, rounded};
    return memory;
  }

  void free(void* memory) {
    Block block;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(memory);
      if (found == blocks_.end()) throw Error(ACL_ERROR_INVALID_PARAM, "not device memory from aclrtMalloc");
      block = found->second;
      blocks_.erase(found);
    }
    // Work that still uses it may be queued. A failed stream drops its work and has been reported.
    guarded([&] { synchronize_device(block.device); });
    std::free(memory);
    budget().give_back(block.device, block.size);
  }

 private:
  struct Block {
    int device = 0;
    std::size_t size = 0;
  };

  std::mutex mutex_;
  std::map<void*, Block> blocks_;
};

Blocks& blocks() {
  static Blocks& instance = *std::make_unique<Blocks>().release();  // torch_npu frees to the very end
  return instance;
}

const char* name_of(aclrtMemcpyKind kind) {
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_HOST: return "host_to_host";
    case ACL_MEMCPY_HOST_TO_DEVICE: return "host_to_device";
    case ACL_MEMCPY_DEVICE_TO_HOST: return "device_to_host";
    case ACL_MEMCPY_DEVICE_TO_DEVICE: return "device_to_device";
    default: return "other";
  }
}

void check_size(std::size_t room, std::size_t size) {
  if (size > room) throw Error(ACL_ERROR_INVALID_PARAM, "a copy is larger than its destination");
}

aclError copy_async(void* to, std::size_t room, const void* from, std::size_t size, aclrtMemcpyKind kind,
                    aclrtStream stream) {
  return guarded([&] {
    check_size(room, size);
    count("copies", std::string(name_of(kind)) + "_async");
    stream_of(stream)->launch([=] { std::memmove(to, from, size); });
  });
}

aclError allocate_host(void** memory, std::size_t size) {
  return guarded([&] {
    constexpr std::size_t kPage = 4096;
    *memory = std::aligned_alloc(kPage, (std::max<std::size_t>(size, 1) + kPage - 1) / kPage * kPage);
    if (!*memory) throw Error(kOutOfMemory, "the host has no " + std::to_string(size) + " bytes left");
  });
}

// Expandable segments: addresses are reserved first and backed with "physical" memory later.
struct PhysicalMemory {
  int device;
  std::size_t size;
};

class Reservations {
 public:
  void* reserve(std::size_t size) {
    void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw Error(kOutOfMemory, "no room in the address space");
    const std::lock_guard lock(mutex_);
    reserved_[memory] = size;
    return memory;
  }

  void release(void* memory) {
    const std::lock_guard lock(mutex_);
    munmap(memory, take(reserved_, memory));
  }

  void map(void* memory, std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (mprotect(memory, size, PROT_READ | PROT_WRITE) != 0) throw Error(kOutOfMemory, "cannot map memory");
    mapped_[memory] = size;
  }

  void unmap(void* memory) {
    const std::lock_guard lock(mutex_);
    mmap(memory, take(mapped_, memory), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }

 private:
  static std::size_t take(std::map<void*, std::size_t>& sizes, void* memory) {
    const auto found = sizes.find(memory);
    if (found == sizes.end()) throw Error(ACL_ERROR_INVALID_PARAM, "not an address from aclrtReserveMemAddress");
    const std::size_t size = found->second;
    sizes.erase(found);
    return size;
  }

  std::mutex mutex_;
  std::map<void*, std::size_t> reserved_;
  std::map<void*, std::size_t> mapped_;
};

Reservations& reservations() {
  static Reservations& instance = *std::make_unique<Reservations>().release();
  return instance;
}

}  // namespace
}  // namespace simcann

using namespace simcann;

extern "C" {

aclError aclrtMalloc(void** memory, size_t size, aclrtMemMallocPolicy) {
  return guarded([&] { *memory = blocks().allocate(size); });
}

aclError aclrtMallocAlign32(void** memory, size_t size, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(memory, size, policy);
}

aclError aclrtFree(void* memory) {
  return guarded([&] { blocks().free(memory); });
}

aclError aclrtMallocHost(void** memory, size_t size) { return allocate_host(memory, size); }

aclError aclrtMallocHostWithCfg(void** memory, uint64_t size, aclrtMallocConfig*) {
  return allocate_host(memory, size);
}

aclError aclrtFreeHost(void* memory) {
  std::free(memory);
  return ACL_ERROR_NONE;
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  return guarded([&] {
    *total = settings().memory_bytes;
    *free = budget().left(current_device());
  });
}

// As on the device, a synchronous copy does not wait for streams: torch_npu does that first.
aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind) {
  return guarded([&] {
    check_size(room, size);
    count("copies", name_of(kind));
    std::memmove(to, from, size);
  });
}

aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return copy_async(to, room, from, size, kind, stream);
}

aclError aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind,
                                       aclrtStream stream) {
  return copy_async(to, room, from, size, kind, stream);
}

aclError aclrtMemset(void* memory, size_t room, int32_t value, size_t size) {
  return guarded([&] {
    check_size(room, size);
    std::memset(memory, value, size);
  });
}

aclError aclrtMemsetAsync(void* memory, size_t room, int32_t value, size_t size, aclrtStream stream) {
  return guarded([&] {
    check_size(room, size);
    stream_of(stream)->launch([=] { std::memset(memory, value, size); });
  });
}

aclError aclrtReserveMemAddress(void** address, size_t size, size_t, void*, uint64_t) {
  return guarded([&] { *address = reservations().reserve(size); });
}

aclError aclrtReleaseMemAddress(void* address) {
  return guarded([&] { reservations().release(address); });
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp*, uint64_t) {
  return guarded([&] {
    const int device = current_device();
    budget().take(device, size);
    *handle = reinterpret_cast<aclrtDrvMemHandle>(
        std::make_unique<PhysicalMemory>(PhysicalMemory{device, size}).release());
  });
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  return guarded([&] {
    const std::unique_ptr<PhysicalMemory> memory(reinterpret_cast<PhysicalMemory*>(handle));
    budget().give_back(memory->device, memory->size);
  });
}

aclError aclrtMapMem(void* address, size_t size, size_t, aclrtDrvMemHandle, uint64_t) {
  return guarded([&] { reservations().map(address, size); });
}

aclError aclrtUnmapMem(void* address) {
  return guarded([&] {
    guarded([] { synchronize_device(current_device()); });
    reservations().unmap(address);
  });
}

}  // extern "C"
