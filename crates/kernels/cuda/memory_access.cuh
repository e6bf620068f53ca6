// Kernels that measure memory: sequential and random access, copies, and the reach of address translation.
#pragma once

#include "platform.cuh"

namespace overspill {

// Reads `length` values of 8 bytes in order and adds their sum to `result`, which keeps the reads from being left out.
__device__ __forceinline__ void read_sequentially(const u64* values, u64 length, u64* result) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 sum = 0;
#pragma unroll 4
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < length; at += stride) sum += values[at];
    if (sum != 0) atomicAdd(result, sum);
}

// Copies `length` values of 16 bytes in order: the bound of partitioning at fanout 1.
__device__ __forceinline__ void copy_sequentially(uint4* to, const uint4* from, u64 length) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < length; at += stride) to[at] = from[at];
}

// The next state of a linear congruential generator modulo 2^64; its high bits are the random ones.
__device__ __forceinline__ u64 next_random(u64 state) { return state * 6364136223846793005ull + 1442695040888963407ull; }

// Access at a granularity (paper 1, section 3.4.1, fig. 6): groups of `threads` lanes, a power of two up to 32, read or write
// `threads` neighbouring units together, at a random multiple of their size plus `misalignment` bytes, `accesses` times a group.
// `units` is how many groups of units the array holds.
template <typename Unit, bool Write>
__device__ __forceinline__ void access_randomly(unsigned char* array, u64 units, u32 threads, u64 misalignment, u64 accesses, u64* result) {
    const u64 group = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) / threads;
    const u32 member = threadIdx.x % threads;
    auto* aligned = reinterpret_cast<Unit*>(array + misalignment);
    u64 state = group * 0x9E3779B97F4A7C15ull + 1;
    u32 sum = 0;
    for (u64 access = 0; access < accesses; ++access) {
        state = next_random(state);
        const u64 at = ((state >> 32) * units >> 32) * threads + member;
        if (Write) {
            store_among_others(&aligned[at], Unit{});
        } else {
            sum += *reinterpret_cast<const u32*>(&aligned[at]);
        }
    }
    if (!Write && sum != 0) atomicAdd(result, static_cast<u64>(sum));
}

// Pointer chasing by one thread (paper 1, section 3.4.2, fig. 7): element i holds the index of the next. Writes where it ended
// and how many clock ticks it took. Reads go past the L1 cache.
__device__ __forceinline__ void chase_pointers(const u64* next, u64 start, u64 steps, u64* result) {
    u64 at = start;
#if !defined(OVERSPILL_HOST)
    const long long begin = clock64();
#endif
    for (u64 step = 0; step < steps; ++step) at = __ldcg(&next[at]);
    result[0] = at;
#if !defined(OVERSPILL_HOST)
    result[1] = static_cast<u64>(clock64() - begin);
#else
    result[1] = steps;
#endif
}

}  // namespace overspill
