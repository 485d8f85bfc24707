// The objects that torch_npu passes to operators. CANN's headers name the types and hide what is in them.
//
// Every handle is registered while it lives, together with its kind. An operator looks its arguments up before it
// touches them, so that an argument list that differs from torch_npu's is an error and not a crash.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace simcann {

enum class Kind { kNone, kTensor, kScalar, kIntArray, kFloatArray, kBoolArray, kTensorList, kScalarList, kExecutor };

const char* name_of(Kind kind);

// What lives at the address; kNone for anything that is not a live handle.
Kind kind_of(const void* address);

at::ScalarType scalar_type(int acl_data_type);

}  // namespace simcann

struct aclTensor {
  static constexpr auto kKind = simcann::Kind::kTensor;
  at::Tensor value;
};

struct aclScalar {
  static constexpr auto kKind = simcann::Kind::kScalar;
  c10::Scalar value;
};

struct aclIntArray {
  static constexpr auto kKind = simcann::Kind::kIntArray;
  std::vector<std::int64_t> value;
};

struct aclFloatArray {
  static constexpr auto kKind = simcann::Kind::kFloatArray;
  std::vector<float> value;
};

struct aclBoolArray {
  static constexpr auto kKind = simcann::Kind::kBoolArray;
  std::vector<bool> value;
};

// Lists own the handles that they are made of.
struct aclTensorList {
  static constexpr auto kKind = simcann::Kind::kTensorList;
  std::vector<std::shared_ptr<aclTensor>> value;
};

struct aclScalarList {
  static constexpr auto kKind = simcann::Kind::kScalarList;
  std::vector<std::shared_ptr<aclScalar>> value;
};
