// Streams. A stream is a queue with a thread of its own, as on the device: a launch returns at once, the work is done
// in order, and streams overtake each other unless an event holds one back. That is what lets collectives of several
// communicators wait for their peers without holding up each other or the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "error.h"

namespace simcann {

// What stopped a stream. It sticks: later work on the stream is dropped, every later wait for it fails.
struct Failure {
  aclError code;
  std::string message;

  [[noreturn]] void raise() const { throw Error(code, message); }
};

class Stream {
 public:
  // Work that wants to run on a failed stream too is told about the failure.
  using Work = std::function<void(const std::optional<Failure>&)>;

  explicit Stream(int device);

  int id() const { return id_; }
  int device() const { return device_; }

  // Queues work. An exception that it throws fails the stream.
  void launch(std::function<void()> work);
  void launch_even_if_failed(Work work);

  // Until all work so far is done. Throws the stream's failure, or after a timeout (negative: none).
  void synchronize(std::int32_t timeout_ms = -1);

  bool idle() const;

  // Drops queued work. False if the work in progress does not end in time.
  bool abandon(std::int32_t timeout_ms);

 private:
  struct Queue;

  static void serve(Queue& queue);

  const int id_;
  const int device_;
  // Shared with the thread, which may outlive the stream when the process ends.
  const std::shared_ptr<Queue> queue_;
};

// The handle's stream; the current device's own one for a null handle. Throws if the handle is not a stream.
std::shared_ptr<Stream> stream_of(aclrtStream handle);

// Waits for all streams of a device. Throws the first failure.
void synchronize_device(int device, std::int32_t timeout_ms = -1);

}  // namespace simcann
