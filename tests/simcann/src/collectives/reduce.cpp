#include "reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "../runtime/error.h"

namespace simcann {
namespace {

template <class Sum>
Sum combine(Sum left, Sum right, HcclReduceOp operation) {
  switch (operation) {
    case HCCL_REDUCE_SUM: return left + right;
    case HCCL_REDUCE_PROD: return left * right;
    // Written so that a NaN stays.
    case HCCL_REDUCE_MAX: return left > right || left != left ? left : right;
    case HCCL_REDUCE_MIN: return left < right || left != left ? left : right;
    default: throw Error(kCollectiveFailed, "the reduction " + std::to_string(operation));
  }
}

template <class Element>
void reduce_as(void* result, const std::vector<const void*>& sources, std::uint64_t count,
               HcclReduceOp operation) {
  // Half precision is summed in single precision and rounded once.
  constexpr bool kIsHalf = std::is_same_v<Element, c10::Half> || std::is_same_v<Element, c10::BFloat16>;
  using Sum = std::conditional_t<kIsHalf, float, Element>;
  for (std::uint64_t i = 0; i < count; ++i) {
    Sum sum = static_cast<const Element*>(sources.front())[i];
    for (std::size_t source = 1; source < sources.size(); ++source) {
      sum = combine<Sum>(sum, static_cast<const Element*>(sources[source])[i], operation);
    }
    static_cast<Element*>(result)[i] = static_cast<Element>(sum);
  }
}

// Calls the body with a value of the C++ type.
template <class Body>
auto with_type(HcclDataType type, Body body) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8: return body(std::int8_t{});
    case HCCL_DATA_TYPE_INT16: return body(std::int16_t{});
    case HCCL_DATA_TYPE_INT32: return body(std::int32_t{});
    case HCCL_DATA_TYPE_INT64: return body(std::int64_t{});
    case HCCL_DATA_TYPE_UINT8: return body(std::uint8_t{});
    case HCCL_DATA_TYPE_UINT16: return body(std::uint16_t{});
    case HCCL_DATA_TYPE_UINT32: return body(std::uint32_t{});
    case HCCL_DATA_TYPE_UINT64: return body(std::uint64_t{});
    case HCCL_DATA_TYPE_FP16: return body(c10::Half{});
    case HCCL_DATA_TYPE_BFP16: return body(c10::BFloat16{});
    case HCCL_DATA_TYPE_FP32: return body(float{});
    case HCCL_DATA_TYPE_FP64: return body(double{});
    default: throw Error(kCollectiveFailed, "the HcclDataType " + std::to_string(type));
  }
}

}  // namespace

std::size_t size_of(HcclDataType type) {
  return with_type(type, [](auto element) { return sizeof element; });
}

void reduce(void* result, const std::vector<const void*>& sources, std::uint64_t count, HcclDataType type,
            HcclReduceOp operation) {
  with_type(type, [&](auto element) { reduce_as<decltype(element)>(result, sources, count, operation); });
}

}  // namespace simcann
