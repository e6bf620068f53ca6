// From the counts of blocks to the places of their tuples: an exclusive prefix sum over partitions, and within each
// partition over blocks. Partitions may start at a multiple of `alignment` tuples, so that each starts on a line.
#pragma once

#include "../scan.cuh"

namespace overspill {

// totals[p] = the sum of the counts of partition p. One block of the grid a partition, grid stride.
__device__ __forceinline__ void partition_totals(const u64* counts, u64 blocks, u32 fanout, u64* totals) {
    for (u32 partition = blockIdx.x; partition < fanout; partition += gridDim.x) {
        u64 sum = 0;
        for (u64 block = threadIdx.x; block < blocks; block += blockDim.x) sum += counts[partition * blocks + block];
        u64 total;
        block_exclusive_sum(sum, total);
        if (threadIdx.x == 0) totals[partition] = total;
    }
}

// starts[p] = where partition p starts, starts[fanout] = the end of the last. One block.
__device__ __forceinline__ void partition_starts(const u64* totals, u32 fanout, u64 alignment, u64* starts) {
    u64 base = 0;
    for (u32 first = 0; first < fanout; first += blockDim.x) {
        const u32 partition = first + threadIdx.x;
        const u64 total = partition < fanout ? totals[partition] : 0;
        const u64 room = (total + alignment - 1) / alignment * alignment;
        u64 sum;
        const u64 before = block_exclusive_sum(room, sum);
        if (partition < fanout) starts[partition] = base + before;
        base += sum;
    }
    if (threadIdx.x == 0) starts[fanout] = base;
}

// offsets[p * blocks + b] = where block b starts in partition p. One block of the grid a partition, grid stride.
// `offsets` may be `counts`.
__device__ __forceinline__ void block_offsets(const u64* counts, const u64* starts, u64 blocks, u32 fanout, u64* offsets) {
    for (u32 partition = blockIdx.x; partition < fanout; partition += gridDim.x) {
        u64 base = starts[partition];
        for (u64 first = 0; first < blocks; first += blockDim.x) {
            const u64 block = first + threadIdx.x;
            const u64 count = block < blocks ? counts[partition * blocks + block] : 0;
            u64 sum;
            const u64 before = block_exclusive_sum(count, sum);
            if (block < blocks) offsets[partition * blocks + block] = base + before;
            base += sum;
        }
    }
}

}  // namespace overspill
