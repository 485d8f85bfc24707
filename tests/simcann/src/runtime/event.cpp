// An event is a mark that a stream passes. Each record replaces the mark that the event stands for, so whoever waited
// for an earlier one is not affected: waits hold the mark, not the event.
#include <acl/acl.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "counters.h"
#include "stream.h"

namespace simcann {
namespace {

using Clock = std::chrono::steady_clock;

class Mark {
 public:
  void pass(const std::optional<Failure>& failure) {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    time_ = Clock::now();
    passed_ = true;
    changed_.notify_all();
  }

  // A failure travels along: whatever waits for a failed stream fails too, instead of for ever.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_; });
    if (failure_) failure_->raise();
  }

  bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }

  Clock::time_point time() {
    wait();
    return time_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
  Clock::time_point time_;
  std::optional<Failure> failure_;
};

class Events {
 public:
  aclrtEvent create() {
    const std::lock_guard lock(mutex_);
    const auto handle = reinterpret_cast<aclrtEvent>(++last_handle_);
    marks_[handle] = nullptr;
    return handle;
  }

  void destroy(aclrtEvent handle) {
    const std::lock_guard lock(mutex_);
    marks_.erase(entry(handle));
  }

  std::shared_ptr<Mark> renew(aclrtEvent handle) {
    const std::lock_guard lock(mutex_);
    return entry(handle)->second = std::make_shared<Mark>();
  }

  // Null if never recorded.
  std::shared_ptr<Mark> mark(aclrtEvent handle) {
    const std::lock_guard lock(mutex_);
    return entry(handle)->second;
  }

 private:
  std::map<aclrtEvent, std::shared_ptr<Mark>>::iterator entry(aclrtEvent handle) {
    const auto found = marks_.find(handle);
    if (found == marks_.end()) throw Error(ACL_ERROR_INVALID_RESOURCE_HANDLE, "not an event");
    return found;
  }

  std::mutex mutex_;
  std::map<aclrtEvent, std::shared_ptr<Mark>> marks_;
  std::uintptr_t last_handle_ = 0;
};

Events& events() {
  static Events& instance = *std::make_unique<Events>().release();  // streams use it to the very end
  return instance;
}

aclError create(aclrtEvent* event) {
  return guarded([&] { *event = events().create(); });
}

}  // namespace
}  // namespace simcann

using namespace simcann;

extern "C" {

aclError aclrtCreateEvent(aclrtEvent* event) { return create(event); }
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return create(event); }
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) { return create(event); }

aclError aclrtDestroyEvent(aclrtEvent event) {
  return guarded([&] { events().destroy(event); });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return guarded([&] {
    stream_of(stream)->launch_even_if_failed(
        [mark = events().renew(event)](const std::optional<Failure>& failure) { mark->pass(failure); });
  });
}

// CANN wants an event reset before it is recorded again; here a record does that.
aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_ERROR_NONE; }

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return guarded([&] {
    if (const auto mark = events().mark(event)) stream_of(stream)->launch([mark] { mark->wait(); });
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return guarded([&] {
    count("host_waits", "event");
    if (const auto mark = events().mark(event)) mark->wait();
  });
}

// Mind the numbers: "complete" is 1 for an event, 0 for a stream.
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  return guarded([&] {
    const auto mark = events().mark(event);
    *status = !mark || mark->passed() ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  return guarded([&] {
    const auto mark = events().mark(event);
    *status = !mark || mark->passed() ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  });
}

aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  return guarded([&] {
    const auto first = events().mark(start);
    const auto last = events().mark(end);
    if (!first || !last) throw Error(ACL_ERROR_INVALID_PARAM, "the event was never recorded");
    *milliseconds = std::chrono::duration<float, std::milli>(last->time() - first->time()).count();
  });
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  return guarded([&] {
    const auto mark = events().mark(event);
    if (!mark) throw Error(ACL_ERROR_INVALID_PARAM, "the event was never recorded");
    *microseconds =
        std::chrono::duration_cast<std::chrono::microseconds>(mark->time().time_since_epoch()).count();
  });
}

}  // extern "C"
