// The one way in which kernels write to CPU memory.
#pragma once

#include "platform.cuh"

namespace overspill {

// Copies `bytes` from `source` to `destination` by the lanes of one warp, which all call it with the same arguments.
// Both must be aligned to `width` (4 or 8), and `bytes` a multiple of it. Lanes write next to each other, so that what
// is aligned to a line leaves as whole lines.
__device__ __forceinline__ void copy_by_warp(void* destination, const void* source, u64 bytes, u64 width) {
    const auto alignment = reinterpret_cast<std::uintptr_t>(destination) | reinterpret_cast<std::uintptr_t>(source) | bytes;
    if (alignment % sizeof(uint4) == 0) {
        auto* to = static_cast<uint4*>(destination);
        const auto* from = static_cast<const uint4*>(source);
        for (u64 at = lane_index(); at < bytes / sizeof(uint4); at += kWarp) to[at] = from[at];
    } else if (width == 8) {
        auto* to = static_cast<u64*>(destination);
        const auto* from = static_cast<const u64*>(source);
        for (u64 at = lane_index(); at < bytes / 8; at += kWarp) to[at] = from[at];
    } else {
        auto* to = static_cast<u32*>(destination);
        const auto* from = static_cast<const u32*>(source);
        for (u64 at = lane_index(); at < bytes / 4; at += kWarp) to[at] = from[at];
    }
}

// As `copy_by_warp`, to a place that may lie in CPU memory.
__device__ __forceinline__ void flush(void* destination, const void* source, u64 bytes, u64 width) {
    if (lane_index() == 0) count_flush(destination, bytes);
    copy_by_warp(destination, source, bytes, width);
}

// Writes the value of one lane alone. `value` is `width` bytes wide.
__device__ __forceinline__ void flush_value(void* column, u64 position, u64 value, u64 width) {
    if (width == 8) {
        auto* to = static_cast<u64*>(column) + position;
        count_flush(to, 8);
        *to = value;
    } else {
        auto* to = static_cast<u32*>(column) + position;
        count_flush(to, 4);
        *to = static_cast<u32>(value);
    }
}

// As above, for a value of any type.
template <typename T>
__device__ __forceinline__ void flush_one(T* to, const T& value) {
    count_flush(to, sizeof(T));
    *to = value;
}

}  // namespace overspill
