// The first pass of a hash partition: how many rows of each block's chunk fall into each partition.
#pragma once

#include "arguments.cuh"

namespace overspill {

// The counters live in scratchpad memory: 4 bytes a partition.
__device__ __forceinline__ void count_hash_partitions(const HashPartitionArguments& arguments) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    auto* counters = reinterpret_cast<u32*>(scratchpad);
    for (u32 partition = threadIdx.x; partition < arguments.partitions; partition += blockDim.x) counters[partition] = 0;
    __syncthreads();
    const u64 end = arguments.chunk_end();
    for (u64 first = arguments.chunk_begin() + threadIdx.x; first < end; first += static_cast<u64>(blockDim.x) * kPackedTogether) {
        PackedKeys<kPackedTogether> packed;
        packed.load(arguments.keys, first, blockDim.x, end);
#pragma unroll
        for (u32 at = 0; at < kPackedTogether; ++at) {
            if (first + at * blockDim.x < end) atomicAdd(&counters[arguments.partition(packed, at)], 1u);
        }
    }
    __syncthreads();
    for (u32 partition = threadIdx.x; partition < arguments.partitions; partition += blockDim.x) {
        arguments.offsets[static_cast<u64>(partition) * gridDim.x + blockIdx.x] = counters[partition];
    }
}

}  // namespace overspill
