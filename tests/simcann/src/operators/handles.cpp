#include "handles.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <mutex>
#include <unordered_map>

#include "../runtime/error.h"
#include "registry.h"

namespace simcann {
namespace {

class Registry {
 public:
  template <class Handle>
  Handle* add(std::shared_ptr<Handle> handle) {
    const std::lock_guard lock(mutex_);
    handles_[handle.get()] = {Handle::kKind, handle};
    return handle.get();
  }

  // Ends the life of a handle, and hands over what it held.
  template <class Handle>
  std::shared_ptr<Handle> remove(const Handle* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = handles_.find(handle);
    if (found == handles_.end() || found->second.kind != Handle::kKind) {
      throw Error(ACL_ERROR_INVALID_PARAM, std::string("not a live ") + name_of(Handle::kKind));
    }
    auto content = std::static_pointer_cast<Handle>(found->second.content);
    handles_.erase(found);
    return content;
  }

  Kind kind_of(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = handles_.find(address);
    return found == handles_.end() ? Kind::kNone : found->second.kind;
  }

 private:
  struct Entry {
    Kind kind = Kind::kNone;
    std::shared_ptr<void> content;
  };

  std::mutex mutex_;
  std::unordered_map<const void*, Entry> handles_;
};

Registry& registry() {
  static Registry& instance = *std::make_unique<Registry>().release();  // torch_npu uses it to the very end
  return instance;
}

template <class Handle, class Make>
Handle* create(Make make) noexcept {
  Handle* handle = nullptr;
  guarded([&] { handle = registry().add(std::make_shared<Handle>(Handle{make()})); });
  return handle;
}

template <class Handle>
aclError destroy(const Handle* handle) noexcept {
  return guarded([&] {
    if (handle) registry().remove(handle);
  });
}

// A list takes over the handles it is made of, which are no handles of their own from then on.
template <class Handle>
std::vector<std::shared_ptr<Handle>> take(const Handle* const* handles, std::uint64_t count) {
  std::vector<std::shared_ptr<Handle>> taken;
  for (std::uint64_t i = 0; i < count; ++i) taken.push_back(handles[i] ? registry().remove(handles[i]) : nullptr);
  return taken;
}

c10::Scalar scalar(const void* value, at::ScalarType type) {
  switch (type) {
    case at::kFloat: return *static_cast<const float*>(value);
    case at::kDouble: return *static_cast<const double*>(value);
    case at::kHalf: return static_cast<float>(*static_cast<const at::Half*>(value));
    case at::kBFloat16: return static_cast<float>(*static_cast<const at::BFloat16*>(value));
    case at::kLong: return *static_cast<const std::int64_t*>(value);
    case at::kInt: return static_cast<std::int64_t>(*static_cast<const std::int32_t*>(value));
    case at::kBool: return *static_cast<const bool*>(value);
    case at::kComplexFloat: return c10::complex<double>(*static_cast<const c10::complex<float>*>(value));
    case at::kComplexDouble: return *static_cast<const c10::complex<double>*>(value);
    default: throw Error(ACL_ERROR_API_NOT_SUPPORT, std::string("scalars of type ") + toString(type));
  }
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kTensor: return "aclTensor";
    case Kind::kScalar: return "aclScalar";
    case Kind::kIntArray: return "aclIntArray";
    case Kind::kFloatArray: return "aclFloatArray";
    case Kind::kBoolArray: return "aclBoolArray";
    case Kind::kTensorList: return "aclTensorList";
    case Kind::kScalarList: return "aclScalarList";
    case Kind::kExecutor: return "aclOpExecutor";
    case Kind::kNone: break;
  }
  return "something that is no handle";
}

Kind kind_of(const void* address) { return registry().kind_of(address); }

at::ScalarType scalar_type(int acl_data_type) {
  switch (acl_data_type) {
    case ACL_FLOAT: return at::kFloat;
    case ACL_FLOAT16: return at::kHalf;
    case ACL_BF16: return at::kBFloat16;
    case ACL_DOUBLE: return at::kDouble;
    case ACL_INT8: return at::kChar;
    case ACL_INT16: return at::kShort;
    case ACL_INT32: return at::kInt;
    case ACL_INT64: return at::kLong;
    case ACL_UINT8: return at::kByte;
    case ACL_UINT16: return at::kUInt16;
    case ACL_UINT32: return at::kUInt32;
    case ACL_UINT64: return at::kUInt64;
    case ACL_BOOL: return at::kBool;
    case ACL_COMPLEX64: return at::kComplexFloat;
    case ACL_COMPLEX128: return at::kComplexDouble;
    default: throw Error(ACL_ERROR_API_NOT_SUPPORT, "the aclDataType " + std::to_string(acl_data_type));
  }
}

aclOpExecutor* add_executor(const std::string& name, std::function<void()> run, bool blocking) {
  return registry().add(std::make_shared<aclOpExecutor>(aclOpExecutor{name, std::move(run), blocking}));
}

std::shared_ptr<aclOpExecutor> take_executor(const aclOpExecutor* executor) { return registry().remove(executor); }

}  // namespace simcann

using namespace simcann;

extern "C" {

aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dimensions, aclDataType data_type, const int64_t* strides,
                           int64_t offset, aclFormat, const int64_t*, uint64_t, void* data) {
  return create<aclTensor>([&] {
    const auto type = scalar_type(data_type);
    const at::IntArrayRef shape(sizes, dimensions);
    if (!data) return at::empty(shape, type);  // a tensor without elements
    auto* start = static_cast<char*>(data) + offset * static_cast<std::int64_t>(c10::elementSize(type));
    return at::from_blob(start, shape, at::IntArrayRef(strides, dimensions), type);
  });
}

aclScalar* aclCreateScalar(void* value, aclDataType data_type) {
  return create<aclScalar>([&] { return scalar(value, scalar_type(data_type)); });
}

aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t size) {
  return create<aclIntArray>([&] { return std::vector<std::int64_t>(values, values + size); });
}

aclFloatArray* aclCreateFloatArray(const float* values, uint64_t size) {
  return create<aclFloatArray>([&] { return std::vector<float>(values, values + size); });
}

aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t size) {
  return create<aclBoolArray>([&] { return std::vector<bool>(values, values + size); });
}

aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t size) {
  return create<aclTensorList>([&] { return take(tensors, size); });
}

aclScalarList* aclCreateScalarList(const aclScalar* const* scalars, uint64_t size) {
  return create<aclScalarList>([&] { return take(scalars, size); });
}

aclError aclDestroyTensor(const aclTensor* handle) { return destroy(handle); }
aclError aclDestroyScalar(const aclScalar* handle) { return destroy(handle); }
aclError aclDestroyIntArray(const aclIntArray* handle) { return destroy(handle); }
aclError aclDestroyFloatArray(const aclFloatArray* handle) { return destroy(handle); }
aclError aclDestroyBoolArray(const aclBoolArray* handle) { return destroy(handle); }
aclError aclDestroyTensorList(const aclTensorList* handle) { return destroy(handle); }
aclError aclDestroyScalarList(const aclScalarList* handle) { return destroy(handle); }
aclError aclDestroyAclOpExecutor(aclOpExecutor* handle) { return destroy(handle); }

// For operators whose result has a shape that depends on the data. The caller frees the array with delete[].
aclError aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* dimensions) {
  return guarded([&] {
    if (kind_of(tensor) != Kind::kTensor) throw Error(ACL_ERROR_INVALID_PARAM, "aclGetViewShape: not a tensor");
    const auto shape = tensor->value.sizes();
    auto copy = std::make_unique<int64_t[]>(shape.size() + 1);
    std::copy(shape.begin(), shape.end(), copy.get());
    *sizes = copy.release();
    *dimensions = shape.size();
  });
}

}  // extern "C"
