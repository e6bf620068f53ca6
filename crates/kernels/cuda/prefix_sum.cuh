// The exclusive prefix sum of an array of any length: sums of tiles, their prefix sum, then the tiles again. No block waits
// for another, so it is right on any number of multiprocessors.
#pragma once

#include "scan.cuh"

namespace overspill {

// Values that a thread takes; a tile is this times the block's threads.
constexpr u32 kScanValuesPerThread = 8;

// tile_sums[t] = the sum of the values of tile t. One block a tile, grid stride.
__device__ __forceinline__ void sum_tiles(const u64* values, u64 length, u64* tile_sums) {
    const u64 tile_values = static_cast<u64>(blockDim.x) * kScanValuesPerThread;
    const u64 tiles = (length + tile_values - 1) / tile_values;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 sum = 0;
        const u64 end = smaller(length, (tile + 1) * tile_values);
        for (u64 at = tile * tile_values + threadIdx.x; at < end; at += blockDim.x) sum += values[at];
        u64 total;
        block_exclusive_sum(sum, total);
        if (threadIdx.x == 0) tile_sums[tile] = total;
    }
}

// Replaces the sums of tiles by the sums of all tiles before, and writes the sum of all to `total`. One block.
__device__ __forceinline__ void scan_tile_sums(u64* tile_sums, u64 tiles, u64* total) {
    u64 base = 0;
    for (u64 first = 0; first < tiles; first += blockDim.x) {
        const u64 tile = first + threadIdx.x;
        u64 sum;
        const u64 before = block_exclusive_sum(tile < tiles ? tile_sums[tile] : u64{0}, sum);
        if (tile < tiles) tile_sums[tile] = base + before;
        base += sum;
    }
    if (threadIdx.x == 0) *total = base;
}

// sums[i] = the sum of the values before i. `sums` may be `values`. One block a tile, grid stride.
__device__ __forceinline__ void scan_tiles(const u64* values, u64 length, const u64* tile_sums, u64* sums) {
    const u64 tile_values = static_cast<u64>(blockDim.x) * kScanValuesPerThread;
    const u64 tiles = (length + tile_values - 1) / tile_values;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 base = tile_sums[tile];
        const u64 end = smaller(length, (tile + 1) * tile_values);
        // Rounds of one value a thread, so that neighbouring threads read neighbouring values.
        for (u64 first = tile * tile_values; first < end; first += blockDim.x) {
            const u64 at = first + threadIdx.x;
            u64 sum;
            const u64 before = block_exclusive_sum(at < end ? values[at] : u64{0}, sum);
            if (at < end) sums[at] = base + before;
            base += sum;
        }
    }
}

}  // namespace overspill
