#include "segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "../runtime/error.h"
#include "../runtime/settings.h"

namespace simcann {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMagic = 0x314e4e41434d4953;  // "SIMCANN1"

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::string reason() { return std::strerror(errno); }

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int number() const { return number_; }

 private:
  int number_;
};

// Descriptors that this process keeps open until all ranks have mapped the memory.
class OpenDescriptors {
 public:
  void keep(std::uint64_t key, Descriptor descriptor) {
    const std::lock_guard lock(mutex_);
    descriptors_.emplace(key, std::move(descriptor));
  }

  void drop(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    descriptors_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, Descriptor> descriptors_;
};

OpenDescriptors& open_descriptors() {
  static OpenDescriptors instance;
  return instance;
}

std::size_t data_offset() {
  constexpr std::size_t kPage = 4096;
  return (sizeof(Header) + kPage - 1) / kPage * kPage;
}

// When the process started, in clock ticks since boot; nothing if there is no such process or it has ended. (A process
// that has ended and whose parent has not taken notice is still there, in state Z.)
std::optional<std::uint64_t> process_start(std::int32_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The second field is the command in parentheses and may hold anything; the 22nd is the start.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return std::nullopt;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return std::stoull(field);
}

void wait_for_change(const std::atomic<std::uint32_t>& changes, std::uint32_t seen) {
  const timespec patience{0, 20'000'000};  // then look whether the peers live
  syscall(SYS_futex, &changes, FUTEX_WAIT, seen, &patience, nullptr, 0);
}

}  // namespace

bool Request::operator==(const Request& other) const {
  return std::strncmp(name, other.name, sizeof name) == 0 && count == other.count &&
         data_type == other.data_type && operation == other.operation && root == other.root;
}

std::string Request::text() const {
  std::ostringstream text;
  text << name << " of " << count << " elements of type " << data_type;
  if (operation >= 0) text << ", operation " << operation;
  if (root >= 0) text << ", root " << root;
  return text.str();
}

Address Segment::create() {
  Descriptor descriptor(memfd_create("simcann", MFD_CLOEXEC));
  if (descriptor.number() < 0 || ftruncate(descriptor.number(), data_offset()) != 0) {
    throw Error(kCollectiveFailed, "cannot create shared memory: " + reason());
  }
  std::random_device random;
  const std::uint64_t key = (std::uint64_t{random()} << 32) | random();
  if (pwrite(descriptor.number(), &key, sizeof key, offsetof(Header, key)) != sizeof key) {
    throw Error(kCollectiveFailed, "cannot write shared memory: " + reason());
  }
  const Address address{kMagic, key, getpid(), descriptor.number()};
  open_descriptors().keep(key, std::move(descriptor));
  return address;
}

Segment::Segment(const Address& address, std::uint32_t ranks, std::uint32_t rank) : ranks_(ranks), rank_(rank) {
  if (address.magic != kMagic) throw Error(kCollectiveFailed, "the root info is not from the simulated CANN");
  if (ranks == 0 || ranks > kMostRanks || rank >= ranks) {
    throw Error(kCollectiveFailed, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ", at most " +
                                       std::to_string(kMostRanks));
  }
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  const Descriptor descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (descriptor.number() < 0) {
    throw Error(kCollectiveFailed, "cannot join the communicator, all ranks have to be on one machine and rank 0 "
                                   "alive: " + path + ": " + reason());
  }
  size_ = data_offset() + ranks * kSlotBytes + std::size_t{ranks} * ranks * kMailboxBytes;
  void* memory = MAP_FAILED;
  // The size is the same for all ranks; pages that nobody touches take no memory.
  if (ftruncate(descriptor.number(), size_) == 0) {
    memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.number(), 0);
  }
  if (memory == MAP_FAILED) throw Error(kCollectiveFailed, "cannot map shared memory: " + reason());
  madvise(memory, size_, MADV_DONTFORK);
  header_ = static_cast<Header*>(memory);  // all zero is a valid start
  if (header_->key != address.key) {
    munmap(memory, size_);
    throw Error(kCollectiveFailed, "cannot join the communicator, rank 0 has closed it");
  }
  auto& self = state(rank);
  self.process_start = process_start(getpid()).value_or(0);
  self.process = getpid();
  try {
    meet("the creation of a communicator");
  } catch (...) {
    munmap(memory, size_);
    throw;
  }
  open_descriptors().drop(address.key);
}

Segment::~Segment() {
  state(rank_).left = true;
  notify();
  munmap(header_, size_);
}

std::byte* Segment::slot(std::uint32_t rank) const {
  return reinterpret_cast<std::byte*>(header_) + data_offset() + rank * kSlotBytes;
}

std::byte* Segment::mailbox_data(std::uint32_t from, std::uint32_t to) const {
  return slot(ranks_) + (std::size_t{from} * ranks_ + to) * kMailboxBytes;
}

void Segment::notify() const {
  ++header_->changes;
  syscall(SYS_futex, &header_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Segment::wait_until(const std::function<bool()>& condition, const std::string& what) const {
  const auto deadline = Clock::now() + std::chrono::duration<double>(settings().collective_timeout_s);
  auto next_look = Clock::now() + std::chrono::milliseconds(20);
  while (true) {
    const std::uint32_t seen = header_->changes;
    if (condition()) return;
    wait_for_change(header_->changes, seen);
    const auto now = Clock::now();
    if (now < next_look) continue;
    next_look = now + std::chrono::milliseconds(20);
    if (const auto lost = lost_peer(); !lost.empty()) {
      if (condition()) return;  // the peer had done its part
      throw Error(kCollectiveFailed, what + ": rank " + std::to_string(rank_) + " waits in vain, " + lost);
    }
    if (now > deadline) {
      std::ostringstream text;
      text << what << ": rank " << rank_ << " has waited for its peers for " << settings().collective_timeout_s
           << " s (SIMCANN_COLLECTIVE_TIMEOUT); steps reached by the ranks:";
      for (std::uint32_t peer = 0; peer < ranks_; ++peer) text << ' ' << state(peer).progress;
      throw Error(kCollectiveFailed, text.str());
    }
  }
}

void Segment::meet(const std::string& what) const {
  const std::uint64_t step = ++state(rank_).progress;
  notify();
  wait_until(
      [&] {
        for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
          if (state(peer).progress < step) return false;
        }
        return true;
      },
      what);
}

std::string Segment::lost_peer() const {
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    const auto& other = state(peer);
    const std::int32_t process = other.process;
    if (peer == rank_ || process == 0) continue;
    const std::string name = "rank " + std::to_string(peer) + " (process " + std::to_string(process) + ")";
    if (other.left) return name + " has left the communicator";
    if (process_start(process) != other.process_start) return name + " has died";
  }
  return "";
}

}  // namespace simcann
