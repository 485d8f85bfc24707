// With SIMCANN_COUNTERS=DIR the counters are also kept in DIR/PID.json. A process that leaves through os._exit or
// SIGKILL runs no more code, so nothing is written "at exit": the file is memory-mapped, every number in it is a
// field of fixed width, and counting rewrites the digits in place. Only a new name changes the layout; then a new
// file replaces the old one.
#include "counters.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "settings.h"

namespace simcann {
namespace {

constexpr std::size_t kWidth = 20;  // digits of the largest 64-bit number

struct Counter {
  std::uint64_t value = 0;
  std::size_t offset = 0;  // of its field in the JSON text
};

class Counters {
 public:
  void count(const char* group, const std::string& name) {
    const std::lock_guard lock(mutex_);
    auto& names = groups_[group];
    const auto [entry, is_new] = names.try_emplace(name);
    ++entry->second.value;
    if (is_new) {
      if (!settings().counters_folder.empty()) replace_file();
    } else if (file_) {
      write_number(file_ + entry->second.offset, entry->second.value);
    }
  }

  std::string json() {
    const std::lock_guard lock(mutex_);
    return text();
  }

  // A forked child (a DataLoader worker) starts from nothing and must not write to its parent's file.
  void forget() {
    file_ = nullptr;
    groups_.clear();
    new (&mutex_) std::mutex;
  }

 private:
  static void write_number(char* field, std::uint64_t value) {
    std::array<char, kWidth> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + kWidth, value).ptr;
    const std::size_t length = end - digits.data();
    std::memset(field, ' ', kWidth - length);
    std::memcpy(field + kWidth - length, digits.data(), length);
  }

  std::string text() {
    std::string text = "{";
    const char* group_separator = "\n";
    for (auto& [group, names] : groups_) {
      text += group_separator + ("  \"" + group + "\": {");
      group_separator = ",\n";
      const char* separator = "\n";
      for (auto& [name, counter] : names) {
        text += separator + ("    \"" + name + "\": ");
        separator = ",\n";
        counter.offset = text.size();
        text.append(kWidth, ' ');
        write_number(text.data() + counter.offset, counter.value);
      }
      text += "\n  }";
    }
    return text + "\n}\n";
  }

  void replace_file() {
    const std::string whole = text();
    const std::string path = settings().counters_folder + "/" + std::to_string(getpid()) + ".json";
    const std::string next = path + ".new";
    if (file_) munmap(file_, size_);
    file_ = nullptr;
    std::error_code ignored;  // opening the file tells
    std::filesystem::create_directories(settings().counters_folder, ignored);
    const int descriptor = open(next.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0) return complain(next);
    const bool written = write(descriptor, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size());
    void* mapped = written ? mmap(nullptr, whole.size(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
                           : MAP_FAILED;
    close(descriptor);
    if (mapped == MAP_FAILED || std::rename(next.c_str(), path.c_str()) != 0) return complain(path);
    file_ = static_cast<char*>(mapped);
    size_ = whole.size();
  }

  void complain(const std::string& path) {
    if (!complained_) std::fprintf(stderr, "simcann: SIMCANN_COUNTERS: cannot write %s\n", path.c_str());
    complained_ = true;
  }

  std::mutex mutex_;
  std::map<std::string, std::map<std::string, Counter>> groups_{
      {"host_waits", {}}, {"copies", {}}, {"operators", {}}, {"collectives", {}}};
  char* file_ = nullptr;
  std::size_t size_ = 0;
  bool complained_ = false;
};

// Never destroyed: streams may still count while the process ends.
Counters& counters() {
  static Counters& instance = [&]() -> Counters& {
    pthread_atfork(nullptr, nullptr, [] { counters().forget(); });
    return *std::make_unique<Counters>().release();
  }();
  return instance;
}

}  // namespace

void count(const char* group, const std::string& name) { counters().count(group, name); }

std::string counters_json() { return counters().json(); }

}  // namespace simcann

extern "C" const char* simcann_counters_json() {
  static thread_local std::string text;
  text = simcann::counters_json();
  return text.c_str();
}
