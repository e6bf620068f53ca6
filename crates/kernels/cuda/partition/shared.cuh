// Shared: full buffers go from scratchpad memory straight to the output (paper 1, section 4.2).
#pragma once

#include "write_combining.cuh"

namespace overspill {

template <typename Key, int Payloads>
struct ScratchpadLevel {
    const PartitionArguments& arguments;
    const WriteCombiningBuffers<Key, Payloads>& buffers;

    __device__ __forceinline__ void take(u32 partition, u64 position, u32 slot, u32 count) const {
        buffers.buffer(arguments, partition).flush_to_output(arguments, slot, position, count);
    }

    __device__ __forceinline__ void after_release() const {}

    __device__ __forceinline__ void finish(u32 partition, u64 position, u32 slot, u32 count) const { take(partition, position, slot, count); }
};

// Scratchpad: 12 bytes a partition and one buffer of `buffer_tuples` tuples each.
template <typename Key, int Payloads>
__device__ __forceinline__ void partition_shared(const PartitionArguments& arguments) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    const auto buffers = WriteCombiningBuffers<Key, Payloads>::in(scratchpad, 1u << arguments.radix_bits);
    buffers.initialise(arguments);
    ScratchpadLevel<Key, Payloads> level{arguments, buffers};
    fill_and_flush<Key, Payloads>(arguments, buffers, level);
}

}  // namespace overspill
