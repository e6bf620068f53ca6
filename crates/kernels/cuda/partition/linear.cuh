// Linear: a block sorts a batch of tuples by partition in scratchpad memory, with atomic counters as linear allocators, and
// writes it out in that order, so that neighbours leave together (paper 1, sections 2.2 and 4.1).
#pragma once

#include "../scan.cuh"
#include "arguments.cuh"

namespace overspill {

// Scratchpad: 8 + 4 + 4 bytes a partition, then a batch of `buffer_tuples` tuples with 4 bytes each for their partition.
// `buffer_tuples` is a multiple of the block's threads and at most kLinearTuplesPerThread times as many.
constexpr u32 kLinearTuplesPerThread = 16;

template <typename Key, int Payloads>
__device__ __forceinline__ void partition_linear(const PartitionArguments& arguments) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    const u32 fanout = 1u << arguments.radix_bits;
    const u32 batch_tuples = arguments.buffer_tuples;
    auto* next = reinterpret_cast<u64*>(scratchpad);
    auto* counters = reinterpret_cast<u32*>(next + fanout);
    auto* starts = counters + fanout;
    auto* partitions = starts + fanout;
    const ColumnBuffer<Key, Payloads> batch{reinterpret_cast<unsigned char*>(partitions + batch_tuples), batch_tuples};
    for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) {
        next[partition] = arguments.offsets[static_cast<u64>(partition) * gridDim.x + blockIdx.x];
    }
    const Chunk chunk = chunk_of_block(arguments.tuples, arguments.chunk);
    for (u64 first = chunk.begin; first < chunk.end; first += batch_tuples) {
        const u32 count = static_cast<u32>(smaller<u64>(batch_tuples, chunk.end - first));
        for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) counters[partition] = 0;
        __syncthreads();
        // Where a tuple stands among those of its partition and batch.
        u32 ranks[kLinearTuplesPerThread];
#pragma unroll
        for (u32 turn = 0; turn < kLinearTuplesPerThread; ++turn) {
            const u32 at = turn * blockDim.x + threadIdx.x;
            if (at >= count) break;
            ranks[turn] = atomicAdd(&counters[arguments.partition(static_cast<const Key*>(arguments.keys)[first + at])], 1u);
        }
        __syncthreads();
        u32 base = 0;
        for (u32 from = 0; from < fanout; from += blockDim.x) {
            const u32 partition = from + threadIdx.x;
            u32 sum;
            const u32 before = block_exclusive_sum(partition < fanout ? counters[partition] : 0u, sum);
            if (partition < fanout) starts[partition] = base + before;
            base += sum;
        }
        __syncthreads();
#pragma unroll
        for (u32 turn = 0; turn < kLinearTuplesPerThread; ++turn) {
            const u32 at = turn * blockDim.x + threadIdx.x;
            if (at >= count) break;
            const auto tuple = Tuple<Key, Payloads>::load(arguments, first + at);
            const u32 partition = tuple.partition(arguments);
            const u32 slot = starts[partition] + ranks[turn];
            batch.put(arguments, slot, tuple);
            partitions[slot] = partition;
        }
        __syncthreads();
        for (u32 slot = threadIdx.x; slot < count; slot += blockDim.x) {
            const u32 partition = partitions[slot];
            const u64 position = next[partition] + (slot - starts[partition]);
            flush_value(arguments.partitioned_keys, position, static_cast<const Key*>(batch.keys())[slot], sizeof(Key));
#pragma unroll
            for (int column = 0; column < Payloads; ++column) {
                const u64 width = arguments.payloads[column].width;
                flush_value(arguments.payloads[column].output, position, load_value(batch.payload(arguments, column), slot, width), width);
            }
        }
        __syncthreads();
        for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) next[partition] += counters[partition];
        // The counters are added before the next batch clears them: every thread owns the same partitions in both loops.
    }
}

}  // namespace overspill
