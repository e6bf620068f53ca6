// Takes the place of CUDA's own headers when the kernels are compiled for the CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __constant__ static const
// A block never leaves its worker thread.
#define __shared__ static thread_local

#define threadIdx (::overspill::host::identity().thread)
#define blockIdx (::overspill::host::identity().block)
#define blockDim (::overspill::host::identity().block_shape)
#define gridDim (::overspill::host::identity().grid_shape)
constexpr int warpSize = 32;

#define __syncthreads() ::overspill::host::block_barrier(__FILE__, __LINE__)
#define __syncthreads_or(predicate) (::overspill::host::block_barrier_count((predicate), __FILE__, __LINE__) != 0)
#define __syncthreads_count(predicate) ::overspill::host::block_barrier_count((predicate), __FILE__, __LINE__)

#define OVERSPILL_WARP(operation, mask, value, source)                                                                        \
    ::overspill::host::warp_operation(::overspill::host::WarpOperation::operation, (mask), (value), (source), __FILE__, __LINE__)
#define __syncwarp(mask) ((void)OVERSPILL_WARP(synchronise, (mask), 0, 0))
#define __ballot_sync(mask, predicate) ((unsigned)OVERSPILL_WARP(ballot, (mask), (predicate) ? 1 : 0, 0))
#define __any_sync(mask, predicate) (__ballot_sync((mask), (predicate)) != 0)
#define __all_sync(mask, predicate) (__ballot_sync((mask), !(predicate)) == 0)
#define __match_any_sync(mask, value) \
    ((unsigned)OVERSPILL_WARP(match_any, (mask), ::overspill::host::to_bits(value), 0))
#define __shfl_sync(mask, value, source) \
    (::overspill::host::from_bits<decltype(value)>(OVERSPILL_WARP(shuffle, (mask), ::overspill::host::to_bits(value), (source) & 31u)))
#define __shfl_up_sync(mask, value, delta)                                                                                    \
    (::overspill::host::from_bits<decltype(value)>(OVERSPILL_WARP(shuffle, (mask), ::overspill::host::to_bits(value),         \
                                                                  ::overspill::host::lane_before(delta))))
#define __shfl_down_sync(mask, value, delta)                                                                                  \
    (::overspill::host::from_bits<decltype(value)>(OVERSPILL_WARP(shuffle, (mask), ::overspill::host::to_bits(value),         \
                                                                  ::overspill::host::lane_after(delta))))
#define __shfl_xor_sync(mask, value, bits)                                                                                    \
    (::overspill::host::from_bits<decltype(value)>(OVERSPILL_WARP(shuffle, (mask), ::overspill::host::to_bits(value),         \
                                                                  ::overspill::host::lane() ^ (unsigned)(bits))))

namespace overspill::host {

template <typename T>
inline std::uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "warp operations move at most 8 bytes");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <typename T>
inline typename std::decay<T>::type from_bits(std::uint64_t bits) {
    typename std::decay<T>::type value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// A lane without a neighbour keeps its own value, as on a GPU.
inline unsigned lane_before(unsigned delta) { return lane() < delta ? lane() : lane() - delta; }
inline unsigned lane_after(unsigned delta) { return lane() + delta > 31 ? lane() : lane() + delta; }

}  // namespace overspill::host

// Any set of lanes that holds the caller is a true answer, and the smallest finds code that hopes for more.
inline unsigned __activemask() { return 1u << overspill::host::lane(); }

inline void __nanosleep(unsigned) { overspill::host::step_aside(); }
#define __trap() ::overspill::host::trap("the kernel trapped", __FILE__, __LINE__)

template <typename T>
inline T atomicAdd(T* address, T value) {
    overspill::host::maybe_step_aside();
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicAdd_block(T* address, T value) {
    return atomicAdd(address, value);
}
template <typename T>
inline T atomicOr(T* address, T value) {
    overspill::host::maybe_step_aside();
    return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicExch(T* address, T value) {
    overspill::host::maybe_step_aside();
    return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicCAS(T* address, T expected, T desired) {
    overspill::host::maybe_step_aside();
    __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
// Atomic operations of the host are so for all of its threads.
template <typename T>
inline T atomicCAS_system(T* address, T expected, T desired) {
    return atomicCAS(address, expected, desired);
}
template <typename T>
inline T atomicMax(T* address, T value) {
    overspill::host::maybe_step_aside();
    T seen = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(address, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

template <typename T>
inline T __ldg(const T* address) {
    return *address;
}
template <typename T>
inline T __ldcs(const T* address) {
    return *address;
}
template <typename T>
inline T __ldcg(const T* address) {
    return *address;
}
template <typename T>
inline void __stcs(T* address, T value) {
    *address = value;
}

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
inline int __clzll(long long value) { return value == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(value)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

template <typename T>
inline T min(T a, T b) {
    return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
    return a < b ? b : a;
}

// The part of libcu++ that kernels use: what is published with release is seen after acquire.
namespace cuda {
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
constexpr int memory_order_relaxed = __ATOMIC_RELAXED;
constexpr int memory_order_acquire = __ATOMIC_ACQUIRE;
constexpr int memory_order_release = __ATOMIC_RELEASE;
constexpr int memory_order_acq_rel = __ATOMIC_ACQ_REL;

template <typename T, thread_scope Scope>
class atomic_ref {
  public:
    explicit atomic_ref(T& object) : object_(&object) {}
    T load(int order) const {
        overspill::host::maybe_step_aside();
        return __atomic_load_n(object_, order);
    }
    void store(T value, int order) const {
        overspill::host::maybe_step_aside();
        __atomic_store_n(object_, value, order);
    }
    T fetch_add(T value, int order) const {
        overspill::host::maybe_step_aside();
        return __atomic_fetch_add(object_, value, order);
    }
    T exchange(T value, int order) const {
        overspill::host::maybe_step_aside();
        return __atomic_exchange_n(object_, value, order);
    }
    bool compare_exchange_strong(T& expected, T desired, int success, int failure) const {
        overspill::host::maybe_step_aside();
        return __atomic_compare_exchange_n(object_, &expected, desired, false, success, failure);
    }

  private:
    T* object_;
};
}  // namespace cuda
