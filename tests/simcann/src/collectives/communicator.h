// The collectives of one communicator. Each call waits for the peers; it runs on a stream's thread.
#pragma once

#include <hccl/hccl_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "segment.h"

namespace simcann {

// A message between this rank and another.
struct Transfer {
  bool send = false;
  std::uint32_t peer = 0;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

class Communicator {
 public:
  Communicator(const Address& address, std::uint32_t ranks, std::uint32_t rank, int device);

  std::uint32_t ranks() const { return segment_.ranks(); }
  std::uint32_t rank() const { return segment_.rank(); }
  int device() const { return device_; }
  const std::string& name() const { return name_; }

  void all_reduce(const std::byte* send, std::byte* receive, std::uint64_t count, HcclDataType type,
                  HcclReduceOp operation);
  void reduce_to(std::uint32_t root, const std::byte* send, std::byte* receive, std::uint64_t count,
                 HcclDataType type, HcclReduceOp operation);
  // Rank r receives the part of the reduced elements from offsets[r] on.
  void reduce_scatter(const std::byte* send, std::byte* receive, const std::vector<std::uint64_t>& offsets,
                      const std::vector<std::uint64_t>& counts, HcclDataType type, HcclReduceOp operation);
  void broadcast(std::uint32_t root, std::byte* data, std::uint64_t count, HcclDataType type);
  void all_gather(const std::byte* send, std::byte* receive, std::uint64_t count, HcclDataType type);

  // All transfers make progress together, in any order, so that no order of sends and receives blocks.
  void exchange(const char* what, const std::vector<Transfer>& transfers);

 private:
  // Gives each chunk of at most a slot's size to all ranks. `fill` writes this rank's part into its slot, `use` reads
  // all slots. Both are told the first element and the number of elements.
  using Chunk = std::function<void(std::uint64_t first, std::uint64_t count)>;
  void in_chunks(const Request& request, const Chunk& fill, const Chunk& use);

  void check_agreement(const Request& request);

  Segment segment_;
  const int device_;
  const std::string name_;
  std::mutex mutex_;  // two streams may use one communicator
};

}  // namespace simcann
