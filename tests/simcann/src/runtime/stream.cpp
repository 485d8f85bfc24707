#include "stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "counters.h"
#include "device.h"

namespace simcann {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> next_id{1};

template <class Condition>
bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, std::int32_t timeout_ms,
          Condition condition) {
  if (timeout_ms < 0) {
    changed.wait(lock, condition);
    return true;
  }
  return changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), condition);
}

// All live streams by handle.
class Streams {
 public:
  std::shared_ptr<Stream> create(int device) {
    auto stream = std::make_shared<Stream>(device);
    const std::lock_guard lock(mutex_);
    return streams_[stream.get()] = stream;
  }

  std::shared_ptr<Stream> find(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(handle);
    if (found == streams_.end()) throw Error(ACL_ERROR_INVALID_RESOURCE_HANDLE, "not a stream");
    return found->second;
  }

  void destroy(const void* handle) {
    const std::lock_guard lock(mutex_);
    streams_.erase(handle);
  }

  std::shared_ptr<Stream> default_of(int device) {
    const std::lock_guard lock(mutex_);
    auto& stream = defaults_.at(device);
    if (!stream) {
      stream = std::make_shared<Stream>(device);
      streams_[stream.get()] = stream;
    }
    return stream;
  }

  std::vector<std::shared_ptr<Stream>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Stream>> all;
    for (const auto& [handle, stream] : streams_) all.push_back(stream);
    return all;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::shared_ptr<Stream>> streams_;
  std::array<std::shared_ptr<Stream>, kMostDevices> defaults_;
};

// Never destroyed, because threads of the process may launch and wait to the very end.
Streams& streams() {
  static Streams& instance = *std::make_unique<Streams>().release();
  return instance;
}

// Work in progress must not outlive the libraries that it calls. This library is loaded after torch's, so its static
// objects are destroyed before theirs.
struct StopStreamsAtExit {
  ~StopStreamsAtExit() {
    constexpr std::int32_t kPatienceMs = 2000;  // a collective may hang for ever
    for (const auto& stream : streams().all()) stream->abandon(kPatienceMs);
  }
} stop_streams_at_exit;

}  // namespace

struct Stream::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> work;
  bool busy = false;
  bool closed = false;
  bool served = false;
  std::optional<Failure> failure;
  std::string name;
};

Stream::Stream(int device) : id_(next_id++), device_(device), queue_(std::make_shared<Queue>()) {
  queue_->name = "stream " + std::to_string(id_) + " of device " + std::to_string(device_);
}

void Stream::serve(Queue& queue) {
  std::unique_lock lock(queue.mutex);
  while (true) {
    queue.changed.wait(lock, [&] { return queue.closed || !queue.work.empty(); });
    if (queue.closed) return;
    const Work work = std::move(queue.work.front());
    queue.work.pop_front();
    queue.busy = true;
    auto failure = queue.failure;
    lock.unlock();
    try {
      work(failure);
    } catch (const Error& error) {
      failure = Failure{error.code(), error.what()};
    } catch (const std::exception& error) {
      failure = Failure{kOperatorFailed, error.what()};
    }
    lock.lock();
    if (failure && !queue.failure) {
      queue.failure = failure;
      std::fprintf(stderr, "simcann: %s failed: %s\n", queue.name.c_str(), failure->message.c_str());
    }
    queue.busy = false;
    queue.changed.notify_all();
  }
}

void Stream::launch(std::function<void()> work) {
  launch_even_if_failed([work = std::move(work)](const std::optional<Failure>& failure) {
    if (!failure) work();
  });
}

void Stream::launch_even_if_failed(Work work) {
  const std::lock_guard lock(queue_->mutex);
  if (queue_->closed) return;
  if (!queue_->served) {  // torch_npu makes pools of streams of which most are never used
    std::thread([queue = queue_] { serve(*queue); }).detach();
    queue_->served = true;
  }
  queue_->work.push_back(std::move(work));
  queue_->changed.notify_all();
}

void Stream::synchronize(std::int32_t timeout_ms) {
  std::unique_lock lock(queue_->mutex);
  const bool done =
      wait(queue_->changed, lock, timeout_ms, [&] { return queue_->work.empty() && !queue_->busy; });
  if (!done) throw Error(kStreamTimeout, queue_->name + " is not done after " + std::to_string(timeout_ms) + " ms");
  if (queue_->failure) queue_->failure->raise();
}

bool Stream::idle() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->work.empty() && !queue_->busy;
}

bool Stream::abandon(std::int32_t timeout_ms) {
  std::unique_lock lock(queue_->mutex);
  queue_->work.clear();
  queue_->closed = true;
  queue_->changed.notify_all();
  return wait(queue_->changed, lock, timeout_ms, [&] { return !queue_->busy; });
}

std::shared_ptr<Stream> stream_of(aclrtStream handle) {
  return handle ? streams().find(handle) : streams().default_of(current_device());
}

void synchronize_device(int device, std::int32_t timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (const auto& stream : streams().all()) {
    if (stream->device() != device) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    stream->synchronize(timeout_ms < 0 ? -1 : std::max<std::int32_t>(left, 0));
  }
}

namespace {

aclError create(aclrtStream* handle) {
  return guarded([&] { *handle = streams().create(current_device()).get(); });
}

aclError destroy(aclrtStream handle, bool wait_for_work) {
  return guarded([&] {
    const auto stream = streams().find(handle);
    if (wait_for_work) {
      // A failure has been reported to whoever waited for the work.
      guarded([&] { stream->synchronize(); });
    }
    stream->abandon(0);
    streams().destroy(handle);
  });
}

aclError synchronize(aclrtStream handle, std::int32_t timeout_ms) {
  return guarded([&] {
    count("host_waits", "stream");
    stream_of(handle)->synchronize(timeout_ms);
  });
}

}  // namespace
}  // namespace simcann

using namespace simcann;

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream) { return create(stream); }
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return create(stream); }
aclError aclrtDestroyStream(aclrtStream stream) { return destroy(stream, true); }
aclError aclrtDestroyStreamForce(aclrtStream stream) { return destroy(stream, false); }
aclError aclrtSynchronizeStream(aclrtStream stream) { return synchronize(stream, -1); }
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return synchronize(stream, timeout);
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return guarded([&] {
    *status = stream_of(stream)->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  });
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  return guarded([&] { *id = stream_of(stream)->id(); });
}

aclError aclrtSynchronizeDevice() {
  return guarded([] {
    count("host_waits", "device");
    synchronize_device(current_device());
  });
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  return guarded([&] {
    count("host_waits", "device");
    synchronize_device(current_device(), timeout);
  });
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* argument) {
  return guarded([&] { stream_of(stream)->launch([=] { function(argument); }); });
}

}  // extern "C"
