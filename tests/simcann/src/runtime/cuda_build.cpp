// A torch that was built for CUDA registers the options of its CUDA allocator while it loads, with a GPU or without.
// torch_npu registers options of the same names, which torch refuses as duplicates: the process aborts on import.
// An Ascend host has a CPU build of torch and no such clash. libtorch_npu.so needs this library, so this runs
// after torch has loaded and before torch_npu registers anything, and it makes room.
#include <c10/core/AllocatorConfig.h>

namespace {

const bool made_room = [] {
  auto& options = c10::CachingAllocator::AcceleratorAllocatorConfig::getMutableKeys();
  for (const char* option :
       {"base_addr_aligned_kb", "multi_stream_lazy_reclaim", "page_size", "per_process_memory_fraction",
        "pinned_mem_register", "pinned_reserve_segment_size_mb", "segment_size_mb", "throw_on_cudamalloc_oom",
        "throw_on_npumalloc_oom"}) {
    options.erase(option);
  }
  return true;
}();

}  // namespace
