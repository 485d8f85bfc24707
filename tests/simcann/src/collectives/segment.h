// The memory that the ranks of a communicator share, and how they wait for each other in it.
//
// The memory has no name. Its first owner creates it with memfd_create and puts its process id and file descriptor
// into the HcclRootInfo; the other ranks open /proc/PID/fd/FD. So nothing is left behind, however the processes end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace simcann {

constexpr std::uint32_t kMostRanks = 64;
constexpr std::size_t kSlotBytes = std::size_t{1} << 20;      // a rank's part of a collective, at a time
constexpr std::size_t kMailboxBytes = std::size_t{1} << 18;   // a message from one rank to another, at a time

// What is in an HcclRootInfo.
struct Address {
  std::uint64_t magic;
  std::uint64_t key;  // also at the start of the memory, against a descriptor that was closed and used again
  std::int32_t process;
  std::int32_t descriptor;
};

// What a rank is about to do. All ranks of a communicator have to do the same.
struct Request {
  char name[32];
  std::uint64_t count;
  std::int32_t data_type;
  std::int32_t operation;
  std::int32_t root;

  bool operator==(const Request& other) const;
  std::string text() const;
};

struct RankState {
  std::atomic<std::int32_t> process;        // 0 until the rank has joined
  std::atomic<std::uint64_t> process_start;  // tells a process from a later one with the same id
  std::atomic<std::uint64_t> progress;      // steps that the rank has reached
  std::atomic<bool> left;
  Request request;
};

struct Mailbox {
  std::atomic<std::uint64_t> written;  // parts of messages
  std::atomic<std::uint64_t> read;
  std::uint64_t message_bytes;
};

struct Header {
  std::uint64_t key;
  std::atomic<std::uint32_t> changes;  // grows at every change that someone may wait for
  RankState ranks[kMostRanks];
  Mailbox mailboxes[kMostRanks][kMostRanks];  // [from][to]
};

class Segment {
 public:
  // Creates the memory and keeps it open for the other ranks.
  static Address create();

  // Maps the memory.
  Segment(const Address& address, std::uint32_t ranks, std::uint32_t rank);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::uint32_t ranks() const { return ranks_; }
  std::uint32_t rank() const { return rank_; }

  RankState& state(std::uint32_t rank) const { return header_->ranks[rank]; }
  std::byte* slot(std::uint32_t rank) const;
  Mailbox& mailbox(std::uint32_t from, std::uint32_t to) const { return header_->mailboxes[from][to]; }
  std::byte* mailbox_data(std::uint32_t from, std::uint32_t to) const;

  // Wakes whoever waits.
  void notify() const;

  // Until the condition holds. Throws Error if a peer has died or left, or after the timeout. `what` is for its text.
  void wait_until(const std::function<bool()>& condition, const std::string& what) const;

  // Until all ranks have come this far.
  void meet(const std::string& what) const;

 private:
  std::string lost_peer() const;

  const std::uint32_t ranks_;
  const std::uint32_t rank_;
  std::size_t size_ = 0;
  Header* header_ = nullptr;
};

}  // namespace simcann
