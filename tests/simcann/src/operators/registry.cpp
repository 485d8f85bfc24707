#include "registry.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <sstream>

#include "../runtime/counters.h"
#include "../runtime/overflow.h"
#include "../runtime/settings.h"
#include "../runtime/stream.h"

namespace simcann {
namespace {

std::string describe(const Tensor& tensor) {
  std::ostringstream text;
  text << toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

Table make_table() {
  Table table;
  for (const auto add : {add_pointwise, add_comparisons, add_activations, add_attention, add_reductions, add_matmul,
                         add_convolution, add_pooling, add_normalization, add_losses, add_indexing, add_shapes,
                         add_random, add_foreach, add_optimizers}) {
    add(table);
  }
  return table;
}

// The end of this thread's stack, where it began.
std::uintptr_t stack_end() {
  static thread_local const std::uintptr_t end = [] {
    pthread_attr_t attributes;
    void* lowest = nullptr;
    std::size_t size = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &lowest, &size);
    pthread_attr_destroy(&attributes);
    return reinterpret_cast<std::uintptr_t>(lowest) + size;
  }();
  return end;
}

bool in_callers_stack(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return number % alignof(void*) == 0 && number > reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) &&
         number < stack_end();
}

// A stream's thread has a plain state, but the caller's may run the operator with autograd or autocast switched on.
class PlainDispatch {
 public:
  PlainDispatch()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                   c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

}  // namespace

void Output::operator=(const Tensor& result) {
  if (result.sizes() != target_.sizes() || !c10::canCast(result.scalar_type(), target_.scalar_type())) {
    throw Error(kOperatorFailed,
                "the result is " + describe(result) + ", but the output is " + describe(target_));
  }
  target_.copy_(result);
  if (settings().saturates() && at::isFloatingType(target_.scalar_type()) && !at::isfinite(target_).all().item<bool>()) {
    raise_overflow_flag();
    at::nan_to_num_(target_);  // infinities become the largest number
  }
}

void DynamicOutput::operator=(const Tensor& result) {
  auto& target = handle_->value;
  if (result.numel() > target.numel() || !c10::canCast(result.scalar_type(), target.scalar_type())) {
    throw Error(kOperatorFailed,
                "the result is " + describe(result) + ", but the output has room for " + describe(target));
  }
  const auto view = at::from_blob(target.data_ptr(), result.sizes(), target.scalar_type());
  view.copy_(result);
  target = view;
}

DynamicOutput Argument<DynamicOutput>::take(Raw raw, int position) {
  // The caller keeps the handle until it has asked for the shape.
  return DynamicOutput(
      std::shared_ptr<aclTensor>(std::shared_ptr<void>(), const_cast<aclTensor*>(check(raw, position))));
}

const void* check_handle(const void* address, Kind kind, int position, bool nullable) {
  if (nullable && !address) return nullptr;
  if (const Kind found = kind_of(address); found != kind) {
    throw Error(kOperatorRefused, "argument " + std::to_string(position) + " should be an " + name_of(kind) +
                                      ", torch_npu passes " + (address ? name_of(found) : "a null pointer"));
  }
  return address;
}

void check_results(const std::uint64_t* workspace_size, aclOpExecutor* const* executor, int position) {
  if (!in_callers_stack(workspace_size) || !in_callers_stack(executor) || *workspace_size != 0 || *executor) {
    throw Error(kOperatorRefused,
                "torch_npu does not pass " + std::to_string(position) + " arguments");
  }
}

void enter(const std::string& name) {
  count("operators", name);
  const auto& failing = settings().failing_operator;
  if (!failing || failing->name != name) return;
  static std::atomic<std::uint64_t> calls{0};
  if (++calls == failing->number) {
    throw Error(kOperatorFailed, "call " + std::to_string(failing->number) + " fails because of SIMCANN_FAIL_OPERATOR");
  }
}

void* resolve(const char* name, void* missing) noexcept {
  static const Table table = make_table();
  void* found = table.find(name);
  return found ? found : missing;
}

int missing_operator(const char* name) noexcept {
  return guarded([&] {
    throw Error(ACL_ERROR_API_NOT_SUPPORT, std::string(name) + " is not among the operators of the simulated CANN");
  });
}

int launch(const aclOpExecutor* handle, aclrtStream stream_handle) noexcept {
  return guarded([&] {
    const auto executor = take_executor(handle);
    const auto stream = stream_of(stream_handle);
    if (settings().log) std::fprintf(stderr, "simcann: stream %d: %s\n", stream->id(), executor->name.c_str());
    stream->launch([executor] {
      try {
        const PlainDispatch plain;
        executor->run();
      } catch (const c10::Error& error) {
        throw Error(kOperatorFailed, executor->name + ": " + error.what_without_backtrace());
      } catch (const std::exception& error) {
        throw Error(kOperatorFailed, executor->name + ": " + error.what());
      }
    });
    if (executor->blocking) {
      count("host_waits", "operator");
      stream->synchronize();
    }
  });
}

}  // namespace simcann
