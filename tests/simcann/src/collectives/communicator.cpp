#include "communicator.h"

#include <algorithm>
#include <cstring>

#include "../runtime/error.h"
#include "reduce.h"

namespace simcann {
namespace {

Request request(const char* name, std::uint64_t count, HcclDataType type, int operation, int root) {
  Request request{};
  std::strncpy(request.name, name, sizeof request.name - 1);
  request.count = count;
  request.data_type = type;
  request.operation = operation;
  request.root = root;
  return request;
}

void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes) std::memmove(to, from, bytes);
}

// One transfer under way.
class Progress {
 public:
  Progress(const Segment& segment, const Transfer& transfer)
      : segment_(segment),
        transfer_(transfer),
        from_(transfer.send ? segment.rank() : transfer.peer),
        to_(transfer.send ? transfer.peer : segment.rank()),
        mailbox_(segment.mailbox(from_, to_)) {}

  bool done() const { return done_; }

  bool same_way(const Progress& other) const {
    return transfer_.send == other.transfer_.send && transfer_.peer == other.transfer_.peer;
  }

  bool possible() const { return !done_ && (mailbox_.written == mailbox_.read) == transfer_.send; }

  // Moves the next part. An empty message has one part too.
  void advance(const char* what) {
    const std::uint64_t part = std::min<std::uint64_t>(transfer_.bytes - moved_, kMailboxBytes);
    std::byte* box = segment_.mailbox_data(from_, to_);
    if (transfer_.send) {
      mailbox_.message_bytes = transfer_.bytes;
      copy_bytes(box, transfer_.data + moved_, part);
      ++mailbox_.written;
    } else {
      if (mailbox_.message_bytes != transfer_.bytes) {
        throw Error(kCollectiveFailed, std::string(what) + ": rank " + std::to_string(from_) + " sends " +
                                           std::to_string(mailbox_.message_bytes) + " bytes to rank " +
                                           std::to_string(to_) + ", which expects " +
                                           std::to_string(transfer_.bytes));
      }
      copy_bytes(transfer_.data + moved_, box, part);
      ++mailbox_.read;
    }
    moved_ += part;
    done_ = moved_ == transfer_.bytes;
    segment_.notify();
  }

 private:
  const Segment& segment_;
  Transfer transfer_;
  std::uint32_t from_;
  std::uint32_t to_;
  Mailbox& mailbox_;
  std::uint64_t moved_ = 0;
  bool done_ = false;
};

}  // namespace

Communicator::Communicator(const Address& address, std::uint32_t ranks, std::uint32_t rank, int device)
    : segment_(address, ranks, rank), device_(device), name_("simcann-" + std::to_string(address.key)) {}

void Communicator::check_agreement(const Request& request) {
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    const Request& other = segment_.state(peer).request;
    if (!(other == request)) {
      throw Error(kCollectiveFailed, "the ranks disagree: rank " + std::to_string(rank()) + " calls " +
                                         request.text() + ", rank " + std::to_string(peer) + " calls " +
                                         other.text());
    }
  }
}

void Communicator::in_chunks(const Request& request, const Chunk& fill, const Chunk& use) {
  const std::lock_guard lock(mutex_);
  segment_.state(rank()).request = request;
  const std::uint64_t most = kSlotBytes / size_of(static_cast<HcclDataType>(request.data_type));
  std::uint64_t first = 0;
  do {
    const std::uint64_t count = std::min(most, request.count - first);
    fill(first, count);
    segment_.meet(request.name);
    if (first == 0) check_agreement(request);
    use(first, count);
    segment_.meet(request.name);
    first += count;
  } while (first < request.count);
}

void Communicator::all_reduce(const std::byte* send, std::byte* receive, std::uint64_t count, HcclDataType type,
                              HcclReduceOp operation) {
  const std::uint64_t size = size_of(type);
  std::vector<const void*> slots;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) slots.push_back(segment_.slot(peer));
  in_chunks(
      request("HcclAllReduce", count, type, operation, -1),
      [&](auto first, auto part) { copy_bytes(segment_.slot(rank()), send + first * size, part * size); },
      [&](auto first, auto part) { reduce(receive + first * size, slots, part, type, operation); });
}

void Communicator::reduce_to(std::uint32_t root, const std::byte* send, std::byte* receive, std::uint64_t count,
                             HcclDataType type, HcclReduceOp operation) {
  const std::uint64_t size = size_of(type);
  std::vector<const void*> slots;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) slots.push_back(segment_.slot(peer));
  in_chunks(
      request("HcclReduce", count, type, operation, static_cast<int>(root)),
      [&](auto first, auto part) { copy_bytes(segment_.slot(rank()), send + first * size, part * size); },
      [&](auto first, auto part) {
        if (rank() == root) reduce(receive + first * size, slots, part, type, operation);
      });
}

void Communicator::reduce_scatter(const std::byte* send, std::byte* receive,
                                  const std::vector<std::uint64_t>& offsets,
                                  const std::vector<std::uint64_t>& counts, HcclDataType type,
                                  HcclReduceOp operation) {
  const std::uint64_t size = size_of(type);
  std::uint64_t total = 0;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) total = std::max(total, offsets[peer] + counts[peer]);
  const std::uint64_t begin = offsets[rank()];
  const std::uint64_t end = begin + counts[rank()];
  in_chunks(
      request("HcclReduceScatter", total, type, operation, -1),
      [&](auto first, auto part) { copy_bytes(segment_.slot(rank()), send + first * size, part * size); },
      [&](auto first, auto part) {
        const std::uint64_t from = std::max(first, begin);
        const std::uint64_t to = std::min(first + part, end);
        if (from >= to) return;
        std::vector<const void*> slots;
        for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
          slots.push_back(segment_.slot(peer) + (from - first) * size);
        }
        reduce(receive + (from - begin) * size, slots, to - from, type, operation);
      });
}

void Communicator::broadcast(std::uint32_t root, std::byte* data, std::uint64_t count, HcclDataType type) {
  const std::uint64_t size = size_of(type);
  in_chunks(
      request("HcclBroadcast", count, type, -1, static_cast<int>(root)),
      [&](auto first, auto part) {
        if (rank() == root) copy_bytes(segment_.slot(root), data + first * size, part * size);
      },
      [&](auto first, auto part) {
        if (rank() != root) copy_bytes(data + first * size, segment_.slot(root), part * size);
      });
}

void Communicator::all_gather(const std::byte* send, std::byte* receive, std::uint64_t count, HcclDataType type) {
  const std::uint64_t size = size_of(type);
  in_chunks(
      request("HcclAllGather", count, type, -1, -1),
      [&](auto first, auto part) { copy_bytes(segment_.slot(rank()), send + first * size, part * size); },
      [&](auto first, auto part) {
        for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
          copy_bytes(receive + (peer * count + first) * size, segment_.slot(peer), part * size);
        }
      });
}

void Communicator::exchange(const char* what, const std::vector<Transfer>& transfers) {
  const std::lock_guard lock(mutex_);
  std::vector<Progress> pending;
  for (const auto& transfer : transfers) {
    if (transfer.peer >= ranks()) throw Error(kCollectiveFailed, std::string(what) + ": there is no such rank");
    pending.emplace_back(segment_, transfer);
  }
  // Messages between the same two ranks keep their order: only the first of them may move.
  const auto blocked = [&](const Progress& transfer) {
    for (const auto& earlier : pending) {
      if (&earlier == &transfer) return false;
      if (!earlier.done() && earlier.same_way(transfer)) return true;
    }
    return false;
  };
  const auto next = [&] {
    return std::find_if(pending.begin(), pending.end(),
                        [&](const Progress& transfer) { return transfer.possible() && !blocked(transfer); });
  };
  while (!std::all_of(pending.begin(), pending.end(), [](const Progress& transfer) { return transfer.done(); })) {
    segment_.wait_until([&] { return next() != pending.end(); }, what);
    next()->advance(what);
  }
}

}  // namespace simcann
