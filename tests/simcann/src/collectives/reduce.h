// Data types and reductions of HCCL.
#pragma once

#include <hccl/hccl_types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simcann {

// Bytes of an element. Throws for a type that is not known.
std::size_t size_of(HcclDataType type);

// result[i] = sources[0][i] op sources[1][i] op …, in the order of the sources.
void reduce(void* result, const std::vector<const void*>& sources, std::uint64_t count, HcclDataType type,
            HcclReduceOp operation);

}  // namespace simcann
