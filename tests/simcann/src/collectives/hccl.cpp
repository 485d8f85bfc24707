// HCCL's C functions. A collective is launched on a stream and returns at once. What goes wrong later fails the
// stream, and the host learns of it when it waits for the stream, as with HCCL.
#include <acl/acl.h>
#include <hccl/hccl_types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "../runtime/counters.h"
#include "../runtime/device.h"
#include "../runtime/error.h"
#include "../runtime/settings.h"
#include "../runtime/stream.h"
#include "communicator.h"
#include "reduce.h"

namespace simcann {
namespace {

template <class Body>
HcclResult hccl_guarded(Body&& body) noexcept {
  return guarded(body) == ACL_ERROR_NONE ? HCCL_SUCCESS : HCCL_E_INTERNAL;
}

class Communicators {
 public:
  HcclComm add(std::shared_ptr<Communicator> communicator) {
    const std::lock_guard lock(mutex_);
    const HcclComm handle = communicator.get();
    communicators_[handle] = std::move(communicator);
    return handle;
  }

  std::shared_ptr<Communicator> find(HcclComm handle) {
    const std::lock_guard lock(mutex_);
    const auto found = communicators_.find(handle);
    if (found == communicators_.end()) throw Error(kCollectiveFailed, "not a communicator");
    return found->second;
  }

  // Work in flight keeps the communicator alive.
  void remove(HcclComm handle) {
    const auto communicator = find(handle);
    const std::lock_guard lock(mutex_);
    communicators_.erase(handle);
  }

 private:
  std::mutex mutex_;
  std::map<HcclComm, std::shared_ptr<Communicator>> communicators_;
};

Communicators& communicators() {
  static Communicators& instance = *std::make_unique<Communicators>().release();  // streams use it to the very end
  return instance;
}

bool chosen(const std::optional<NthOnDevice>& choice, int device, std::uint64_t number) {
  return choice && choice->device == device && choice->number == number;
}

// The chosen ways to fail.
void misbehave(int device, const char* name) {
  static std::array<std::atomic<std::uint64_t>, kMostDevices> collectives{};
  const std::uint64_t number = ++collectives.at(device);
  if (chosen(settings().die_in_collective, device, number)) {
    std::fprintf(stderr, "simcann: device %d dies in its collective %llu, %s (SIMCANN_DIE_IN_COLLECTIVE)\n", device,
                 static_cast<unsigned long long>(number), name);
    std::raise(SIGKILL);
  }
  if (chosen(settings().hang_in_collective, device, number)) {
    std::fprintf(stderr, "simcann: device %d hangs in its collective %llu, %s (SIMCANN_HANG_IN_COLLECTIVE)\n",
                 device, static_cast<unsigned long long>(number), name);
    while (true) pause();
  }
}

using Work = std::function<void(Communicator&)>;

// Queues the work on the stream.
void submit(const char* name, HcclComm handle, aclrtStream stream, Work work) {
  auto communicator = communicators().find(handle);
  count("collectives", name);
  if (settings().log) std::fprintf(stderr, "simcann: rank %u: %s\n", communicator->rank(), name);
  stream_of(stream)->launch([=, work = std::move(work)] {
    misbehave(communicator->device(), name);
    work(*communicator);
  });
}

HcclResult launch(const char* name, HcclComm handle, aclrtStream stream, Work work) {
  return hccl_guarded([&] { submit(name, handle, stream, std::move(work)); });
}

std::byte* bytes(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

std::vector<std::uint64_t> numbers(const void* array, std::uint32_t size) {
  const auto* first = static_cast<const std::uint64_t*>(array);
  return {first, first + size};
}

// Counts and offsets of one part for each rank, one behind the other.
struct Parts {
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> offsets;
};

Parts equal_parts(std::uint32_t ranks, std::uint64_t count) {
  Parts parts{std::vector<std::uint64_t>(ranks, count), {}};
  for (std::uint32_t peer = 0; peer < ranks; ++peer) parts.offsets.push_back(peer * count);
  return parts;
}

Parts given_parts(HcclComm handle, const void* counts, const void* offsets) {
  const auto ranks = communicators().find(handle)->ranks();
  return {numbers(counts, ranks), numbers(offsets, ranks)};
}

// A part for each peer and one from each peer.
void all_to_all(Communicator& communicator, const char* name, const void* send, const Parts& sent,
                HcclDataType send_type, void* receive, const Parts& received, HcclDataType receive_type) {
  std::vector<Transfer> transfers;
  const std::uint64_t send_size = size_of(send_type);
  const std::uint64_t receive_size = size_of(receive_type);
  for (std::uint32_t peer = 0; peer < communicator.ranks(); ++peer) {
    transfers.push_back(
        {true, peer, bytes(send) + sent.offsets[peer] * send_size, sent.counts[peer] * send_size});
    transfers.push_back(
        {false, peer, bytes(receive) + received.offsets[peer] * receive_size, received.counts[peer] * receive_size});
  }
  communicator.exchange(name, transfers);
}

}  // namespace
}  // namespace simcann

using namespace simcann;

extern "C" {

HcclResult HcclGetRootInfo(HcclRootInfo* info) {
  return hccl_guarded([&] {
    const Address address = Segment::create();
    static_assert(sizeof address <= sizeof info->internal);
    std::memset(info, 0, sizeof *info);
    std::memcpy(info->internal, &address, sizeof address);
  });
}

HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo* info, uint32_t rank, HcclComm* communicator) {
  return hccl_guarded([&] {
    Address address;
    std::memcpy(&address, info->internal, sizeof address);
    *communicator = communicators().add(std::make_shared<Communicator>(address, ranks, rank, current_device()));
  });
}

HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo* info, uint32_t rank,
                                      const HcclCommConfig*, HcclComm* communicator) {
  return HcclCommInitRootInfo(ranks, info, rank, communicator);
}

// No optional feature: torch_npu then uses none.
uint32_t HcclGetCommConfigCapability() { return 0; }

HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }

HcclResult HcclCommDestroy(HcclComm communicator) {
  return hccl_guarded([&] { communicators().remove(communicator); });
}

HcclResult HcclGetCommName(HcclComm communicator, char* name) {
  return hccl_guarded([&] {
    std::strncpy(name, communicators().find(communicator)->name().c_str(), COMM_NAME_MAX_LENGTH - 1);
  });
}

HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}

HcclResult HcclAllReduce(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp operation,
                         HcclComm communicator, aclrtStream stream) {
  return launch("HcclAllReduce", communicator, stream, [=](Communicator& group) {
    group.all_reduce(bytes(send), bytes(receive), count, type, operation);
  });
}

HcclResult HcclReduce(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp operation,
                      uint32_t root, HcclComm communicator, aclrtStream stream) {
  return launch("HcclReduce", communicator, stream, [=](Communicator& group) {
    group.reduce_to(root, bytes(send), bytes(receive), count, type, operation);
  });
}

HcclResult HcclBroadcast(void* data, uint64_t count, HcclDataType type, uint32_t root, HcclComm communicator,
                         aclrtStream stream) {
  return launch("HcclBroadcast", communicator, stream,
                [=](Communicator& group) { group.broadcast(root, bytes(data), count, type); });
}

HcclResult HcclAllGather(void* send, void* receive, uint64_t count, HcclDataType type, HcclComm communicator,
                         aclrtStream stream) {
  return launch("HcclAllGather", communicator, stream,
                [=](Communicator& group) { group.all_gather(bytes(send), bytes(receive), count, type); });
}

HcclResult HcclReduceScatter(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp operation,
                             HcclComm communicator, aclrtStream stream) {
  return launch("HcclReduceScatter", communicator, stream, [=](Communicator& group) {
    const Parts parts = equal_parts(group.ranks(), count);
    group.reduce_scatter(bytes(send), bytes(receive), parts.offsets, parts.counts, type, operation);
  });
}

HcclResult HcclReduceScatterV(const void* send, const void* counts, const void* offsets, void* receive, uint64_t,
                              HcclDataType type, HcclReduceOp operation, HcclComm communicator,
                              aclrtStream stream) {
  return hccl_guarded([&] {
    const Parts parts = given_parts(communicator, counts, offsets);
    submit("HcclReduceScatterV", communicator, stream, [=](Communicator& group) {
      group.reduce_scatter(bytes(send), bytes(receive), parts.offsets, parts.counts, type, operation);
    });
  });
}

HcclResult HcclAllGatherV(const void* send, uint64_t count, void* receive, const void* counts, const void* offsets,
                          HcclDataType type, HcclComm communicator, aclrtStream stream) {
  return hccl_guarded([&] {
    const Parts received = given_parts(communicator, counts, offsets);
    submit("HcclAllGatherV", communicator, stream, [=](Communicator& group) {
      Parts sent = equal_parts(group.ranks(), count);
      sent.offsets.assign(group.ranks(), 0);  // the same part for everyone
      all_to_all(group, "HcclAllGatherV", send, sent, type, receive, received, type);
    });
  });
}

HcclResult HcclScatter(void* send, void* receive, uint64_t count, HcclDataType type, uint32_t root,
                       HcclComm communicator, aclrtStream stream) {
  return launch("HcclScatter", communicator, stream, [=](Communicator& group) {
    const std::uint64_t part = count * size_of(type);
    std::vector<Transfer> transfers{{false, root, bytes(receive), part}};
    for (std::uint32_t peer = 0; group.rank() == root && peer < group.ranks(); ++peer) {
      transfers.push_back({true, peer, bytes(send) + peer * part, part});
    }
    group.exchange("HcclScatter", transfers);
  });
}

HcclResult HcclAlltoAll(const void* send, uint64_t send_count, HcclDataType send_type, const void* receive,
                        uint64_t receive_count, HcclDataType receive_type, HcclComm communicator,
                        aclrtStream stream) {
  return launch("HcclAlltoAll", communicator, stream, [=](Communicator& group) {
    all_to_all(group, "HcclAlltoAll", send, equal_parts(group.ranks(), send_count), send_type,
               const_cast<void*>(receive), equal_parts(group.ranks(), receive_count), receive_type);
  });
}

HcclResult HcclAlltoAllV(const void* send, const void* send_counts, const void* send_offsets, HcclDataType send_type,
                         const void* receive, const void* receive_counts, const void* receive_offsets,
                         HcclDataType receive_type, HcclComm communicator, aclrtStream stream) {
  return hccl_guarded([&] {
    const Parts sent = given_parts(communicator, send_counts, send_offsets);
    const Parts received = given_parts(communicator, receive_counts, receive_offsets);
    submit("HcclAlltoAllV", communicator, stream, [=](Communicator& group) {
      all_to_all(group, "HcclAlltoAllV", send, sent, send_type, const_cast<void*>(receive), received, receive_type);
    });
  });
}

HcclResult HcclSend(void* data, uint64_t count, HcclDataType type, uint32_t peer, HcclComm communicator,
                    aclrtStream stream) {
  return launch("HcclSend", communicator, stream, [=](Communicator& group) {
    group.exchange("HcclSend", {{true, peer, bytes(data), count * size_of(type)}});
  });
}

HcclResult HcclRecv(void* data, uint64_t count, HcclDataType type, uint32_t peer, HcclComm communicator,
                    aclrtStream stream) {
  return launch("HcclRecv", communicator, stream, [=](Communicator& group) {
    group.exchange("HcclRecv", {{false, peer, bytes(data), count * size_of(type)}});
  });
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t size, HcclComm communicator, aclrtStream stream) {
  return hccl_guarded([&] {
    std::vector<Transfer> transfers;
    for (const HcclSendRecvItem* item = items; item != items + size; ++item) {
      transfers.push_back({item->sendRecvType == HCCL_SEND, item->remoteRank, bytes(item->buf),
                           item->count * size_of(item->dataType)});
    }
    submit("HcclBatchSendRecv", communicator, stream,
           [=](Communicator& group) { group.exchange("HcclBatchSendRecv", transfers); });
  });
}

}  // extern "C"
