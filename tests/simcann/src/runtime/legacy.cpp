// Operators of the time before aclnn. torch_npu turns to them for what it does not find as aclnn, and it always does for
// the overflow flag (see overflow.h). Those three are here; any other is an error with its name.
#include <acl/acl_op_compiler.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "error.h"
#include "overflow.h"
#include "stream.h"

struct aclDataBuffer {
  void* data;
  std::size_t size;
};

struct aclTensorDesc {
  aclDataType type;
  aclFormat format;
  std::vector<std::int64_t> shape;
};

// Nothing here has attributes.
struct aclopAttr {};

namespace simcann {
namespace {

constexpr std::size_t kStatusBytes = 8 * sizeof(float);  // only the first number means anything

std::atomic<bool> overflow_flag{false};

float* status(const aclDataBuffer* const* buffers, int count) {
  if (count != 1 || buffers[0]->size < kStatusBytes) throw Error(kOperatorRefused, "not a status of 8 numbers");
  return static_cast<float*>(buffers[0]->data);
}

template <class Buffer>
aclError run(std::string_view name, int inputs, const aclDataBuffer* const* input, int outputs, Buffer* const* output,
             aclrtStream stream) {
  return guarded([&] {
    if (name == "NPUAllocFloatStatus") {
      float* allocated = status(output, outputs);
      stream_of(stream)->launch([=] { std::memset(allocated, 0, kStatusBytes); });
    } else if (name == "NPUGetFloatStatus") {
      float* read = status(input, inputs);  // returned in the input
      stream_of(stream)->launch([=] { *read = overflow_flag ? 1 : 0; });
    } else if (name == "NPUClearFloatStatus") {
      stream_of(stream)->launch([] { overflow_flag = false; });
    } else {
      throw Error(ACL_ERROR_API_NOT_SUPPORT, std::string(name) + " is an operator of the old kind (aclop), and not "
                                                                 "among those of the simulated CANN");
    }
  });
}

}  // namespace

void raise_overflow_flag() { overflow_flag = true; }

}  // namespace simcann

using namespace simcann;

extern "C" {

aclError aclopCompileAndExecute(const char* name, int inputs, const aclTensorDesc* const*,
                                const aclDataBuffer* const* input, int outputs, const aclTensorDesc* const*,
                                aclDataBuffer* const* output, const aclopAttr*, aclopEngineType, aclopCompileType,
                                const char*, aclrtStream stream) {
  return run(name, inputs, input, outputs, output, stream);
}

aclError aclopCompileAndExecuteV2(const char* name, int inputs, aclTensorDesc**, aclDataBuffer** input, int outputs,
                                  aclTensorDesc**, aclDataBuffer** output, aclopAttr*, aclopEngineType,
                                  aclopCompileType, const char*, aclrtStream stream) {
  return run(name, inputs, input, outputs, output, stream);
}

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) {
  return std::make_unique<aclDataBuffer>(aclDataBuffer{data, size}).release();
}

aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  const std::unique_ptr<const aclDataBuffer> owner(buffer);
  return ACL_ERROR_NONE;
}

aclTensorDesc* aclCreateTensorDesc(aclDataType type, int dimensions, const int64_t* sizes, aclFormat format) {
  return std::make_unique<aclTensorDesc>(aclTensorDesc{type, format, {sizes, sizes + dimensions}}).release();
}

void aclDestroyTensorDesc(const aclTensorDesc* description) {
  const std::unique_ptr<const aclTensorDesc> owner(description);
}

aclDataType aclGetTensorDescType(const aclTensorDesc* description) { return description->type; }
aclFormat aclGetTensorDescFormat(const aclTensorDesc* description) { return description->format; }
size_t aclGetTensorDescNumDims(const aclTensorDesc* description) { return description->shape.size(); }

aclError aclGetTensorDescDimV2(const aclTensorDesc* description, size_t dimension, int64_t* size) {
  return guarded([&] { *size = description->shape.at(dimension); });
}

// Formats and shapes of storage, names and places change nothing for the operators above.
void aclSetTensorDescName(aclTensorDesc*, const char*) {}
aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { return ACL_ERROR_NONE; }
aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_ERROR_NONE; }
aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_ERROR_NONE; }

aclopAttr* aclopCreateAttr() { return std::make_unique<aclopAttr>().release(); }

void aclopDestroyAttr(const aclopAttr* attributes) { const std::unique_ptr<const aclopAttr> owner(attributes); }

aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { return ACL_ERROR_NONE; }
aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { return ACL_ERROR_NONE; }
aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { return ACL_ERROR_NONE; }
aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { return ACL_ERROR_NONE; }
aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { return ACL_ERROR_NONE; }
aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { return ACL_ERROR_NONE; }
aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { return ACL_ERROR_NONE; }
aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { return ACL_ERROR_NONE; }
aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const*) {
  return ACL_ERROR_NONE;
}

}  // extern "C"
