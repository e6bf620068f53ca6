// Exclusive prefix sums of a warp and of a block, and other combinations of a block's values, by shuffles (no library: these
// also run in the host build).
#pragma once

#include "platform.cuh"

namespace overspill {

// The sum of the values of the lanes up to and with the caller's. All 32 lanes call it.
template <typename T>
__device__ __forceinline__ T warp_inclusive_sum(T value) {
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
        const T before = __shfl_up_sync(kFullMask, value, distance);
        if (lane_index() >= distance) value += before;
    }
    return value;
}

// The sum of the values of the threads before the caller's; `total` is the sum of all. All threads of the block call it,
// and may call it again at once. The block is a multiple of 32 threads, at most 1024, along x.
template <typename T>
__device__ __forceinline__ T block_exclusive_sum(T value, T& total) {
    __shared__ T warp_sums[kWarp];
    const T inclusive = warp_inclusive_sum(value);
    if (lane_index() == kWarp - 1) warp_sums[warp_index()] = inclusive;
    __syncthreads();
    if (warp_index() == 0) {
        const unsigned warps = blockDim.x / kWarp;
        const T sum = lane_index() < warps ? warp_sums[lane_index()] : T{0};
        const T before = warp_inclusive_sum(sum);
        if (lane_index() < warps) warp_sums[lane_index()] = before;
    }
    __syncthreads();
    const T base = warp_index() == 0 ? T{0} : warp_sums[warp_index() - 1];
    total = warp_sums[blockDim.x / kWarp - 1];
    // The sums are read before the next call writes them.
    __syncthreads();
    return base + inclusive - value;
}

// The values of all threads of the block combined, in any order, in its first thread. The same is asked of the block and its threads.
template <typename T, typename Combine>
__device__ __forceinline__ T block_combine(T value, Combine&& combine) {
    __shared__ T warp_values[kWarp];
    for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
        const T other = __shfl_down_sync(kFullMask, value, distance);
        if (lane_index() + distance < kWarp) value = combine(value, other);
    }
    if (lane_index() == 0) warp_values[warp_index()] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) value = combine(value, warp_values[warp]);
    }
    // They are read before the next call writes them.
    __syncthreads();
    return value;
}

}  // namespace overspill
