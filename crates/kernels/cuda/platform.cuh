// What differs between the GPU and the host build of the kernels. Nothing else may ask which of the two it is in.
#pragma once

#if defined(OVERSPILL_HOST)

#include "shim.hpp"

// Names the dynamic shared memory of the block.
#define OVERSPILL_DYNAMIC_SHARED(name) unsigned char* name = ::overspill::host::dynamic_shared()

namespace overspill {
// Fixed widths under the names that CUDA's own functions are declared with.
using u32 = unsigned;
using u64 = unsigned long long;
using s64 = long long;

// The host build counts what leaves through the flush helper.
inline void count_flush(const void* destination, u64 bytes) { host::count_flush(destination, bytes); }

// A store where other threads may store the same at the same time: atomic by the word, as C++ knows no other.
template <typename T>
inline void store_among_others(T* to, const T& value) {
    static_assert(sizeof(T) % sizeof(u32) == 0, "a whole number of words");
    for (unsigned word = 0; word < sizeof(T) / sizeof(u32); ++word) {
        __atomic_store_n(reinterpret_cast<u32*>(to) + word, reinterpret_cast<const u32*>(&value)[word], __ATOMIC_RELAXED);
    }
}
}  // namespace overspill

#else

#include <cstdint>
#include <cuda/atomic>

#define OVERSPILL_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

namespace overspill {
using u32 = unsigned;
using u64 = unsigned long long;
using s64 = long long;

__device__ __forceinline__ void count_flush(const void*, u64) {}

template <typename T>
__device__ __forceinline__ void store_among_others(T* to, const T& value) {
    *to = value;
}
}  // namespace overspill

#endif

namespace overspill {

constexpr unsigned kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;
// The unit in which a GPU writes to CPU memory (paper 1, section 3.4.1).
constexpr unsigned kLineBytes = 128;

// Atomic operations among the threads of one block, and among those of one device.
template <typename T>
using BlockAtomic = cuda::atomic_ref<T, cuda::thread_scope_block>;
template <typename T>
using DeviceAtomic = cuda::atomic_ref<T, cuda::thread_scope_device>;

// Two words that a thread loads at once.
struct alignas(16) TwoWords {
    u64 first;
    u64 second;
};

__device__ __forceinline__ unsigned lane_index() { return threadIdx.x % kWarp; }
__device__ __forceinline__ unsigned warp_index() { return threadIdx.x / kWarp; }

template <typename T>
__device__ __forceinline__ T smaller(T a, T b) {
    return b < a ? b : a;
}

}  // namespace overspill
