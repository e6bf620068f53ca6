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

// Atomic operations among the threads of one block, on a word of scratchpad memory.
using ScratchpadAtomic = cuda::atomic_ref<u32, cuda::thread_scope_block>;
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

// Atomic operations among the threads of one block, on a word of scratchpad memory. Those of cuda::atomic_ref take any address,
// which costs a generic atomic where scratchpad memory has its own. It knows the orders that kernels ask for: acquire to load,
// relaxed and release to store, acquire and release to add.
class ScratchpadAtomic {
  public:
    __device__ __forceinline__ explicit ScratchpadAtomic(u32& word) : address_(static_cast<u32>(__cvta_generic_to_shared(&word))) {}

    __device__ __forceinline__ u32 load(cuda::memory_order) const {
        u32 value;
        asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(address_) : "memory");
        return value;
    }

    __device__ __forceinline__ void store(u32 value, cuda::memory_order order) const {
        if (order == cuda::memory_order_relaxed) {
            asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(address_), "r"(value) : "memory");
        } else {
            asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(address_), "r"(value) : "memory");
        }
    }

    __device__ __forceinline__ u32 fetch_add(u32 value, cuda::memory_order order) const {
        u32 before;
        if (order == cuda::memory_order_acquire) {
            asm volatile("atom.acquire.cta.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address_), "r"(value) : "memory");
        } else {
            asm volatile("atom.release.cta.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address_), "r"(value) : "memory");
        }
        return before;
    }

  private:
    u32 address_;
};
}  // namespace overspill

#endif

namespace overspill {

using u8 = unsigned char;
using u16 = unsigned short;

constexpr unsigned kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;
// The unit in which a GPU writes to CPU memory (paper 1, section 3.4.1).
constexpr unsigned kLineBytes = 128;

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
