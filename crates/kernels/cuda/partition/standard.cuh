// Standard: every thread writes its tuple to its place (paper 1, section 6.2.5; the textbook algorithm).
#pragma once

#include "arguments.cuh"

namespace overspill {

// Scratchpad: 12 bytes a partition. Counting in 32 bits takes one instruction, in 64 a loop that compares and swaps.
template <typename Key, int Payloads>
__device__ __forceinline__ void partition_standard(const PartitionArguments& arguments) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    const u32 fanout = 1u << arguments.radix_bits;
    auto* starts = reinterpret_cast<u64*>(scratchpad);
    auto* taken = reinterpret_cast<u32*>(starts + fanout);
    for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) {
        taken[partition] = 0;
        starts[partition] = arguments.offsets[static_cast<u64>(partition) * gridDim.x + blockIdx.x];
    }
    __syncthreads();
    const Chunk chunk = chunk_of_block(arguments.tuples, arguments.chunk);
    for (u64 at = chunk.begin + threadIdx.x; at < chunk.end; at += blockDim.x) {
        const auto tuple = Tuple<Key, Payloads>::load(arguments, at);
        const u32 partition = tuple.partition(arguments);
        tuple.write(arguments, starts[partition] + atomicAdd(&taken[partition], 1u));
    }
}

}  // namespace overspill
