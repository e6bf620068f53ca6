// How many tuples of each block's chunk fall into each partition.
#pragma once

#include "arguments.cuh"

namespace overspill {

// counts[p * blocks + b] is the number of keys of block b in partition p. The counters live in scratchpad memory: 4 bytes
// a partition. With `Copy`, the key and its payloads are also written to the columns' outputs in the same order, so that
// spilled data crosses the link once and later passes find it in GPU memory (paper 1, section 6.2.3).
template <typename Key, int Payloads, bool Copy>
__device__ __forceinline__ void histogram(const PartitionArguments& arguments, u64* counts) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    auto* counters = reinterpret_cast<u32*>(scratchpad);
    const u32 fanout = 1u << arguments.radix_bits;
    for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) counters[partition] = 0;
    __syncthreads();
    const Chunk chunk = chunk_of_block(arguments.tuples, arguments.chunk);
    const auto* keys = static_cast<const Key*>(arguments.keys);
#pragma unroll 4
    for (u64 at = chunk.begin + threadIdx.x; at < chunk.end; at += blockDim.x) {
        const Key key = keys[at];
        if (Copy) {
            static_cast<Key*>(arguments.partitioned_keys)[at] = key;
#pragma unroll
            for (int column = 0; column < Payloads; ++column) {
                const Column& payload = arguments.payloads[column];
                // Row ids are made when tuples are partitioned.
                if (payload.input != nullptr) store_value(payload.output, at, load_value(payload.input, at, payload.width), payload.width);
            }
        }
        atomicAdd(&counters[arguments.partition(key)], 1u);
    }
    __syncthreads();
    for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) {
        counts[static_cast<u64>(partition) * gridDim.x + blockIdx.x] = counters[partition];
    }
}

}  // namespace overspill
