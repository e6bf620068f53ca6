// Standard: every thread writes its tuple to its place (paper 1, section 6.2.5; the textbook algorithm).
#pragma once

#include "arguments.cuh"

namespace overspill {

// Scratchpad: 8 bytes a partition.
template <typename Key, int Payloads>
__device__ __forceinline__ void partition_standard(const PartitionArguments& arguments) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    auto* next = reinterpret_cast<u64*>(scratchpad);
    const u32 fanout = 1u << arguments.radix_bits;
    for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) {
        next[partition] = arguments.offsets[static_cast<u64>(partition) * gridDim.x + blockIdx.x];
    }
    __syncthreads();
    const Chunk chunk = chunk_of_block(arguments.tuples, arguments.chunk);
    for (u64 at = chunk.begin + threadIdx.x; at < chunk.end; at += blockDim.x) {
        const auto tuple = Tuple<Key, Payloads>::load(arguments, at);
        tuple.write(arguments, atomicAdd(&next[tuple.partition(arguments)], u64{1}));
    }
}

}  // namespace overspill
