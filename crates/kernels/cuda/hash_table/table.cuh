// What hash tables have in common.
#pragma once

#include "../hash.cuh"
#include "../platform.cuh"

namespace overspill {

// No value of a build tuple may be this: it marks an empty slot. Row ids never are.
constexpr u64 kEmpty = ~u64{0};

// Who claims slots of a table at the same time: threads of one device, or those of the CPU as well.
enum class Claimants { kDevice, kSystem };

// Puts a word in an empty slot; false if there is one already.
template <Claimants kWho>
__device__ __forceinline__ bool claim(u64* slot, u64 word) {
    if constexpr (kWho == Claimants::kSystem) {
        return atomicCAS_system(slot, kEmpty, word) == kEmpty;
    } else {
        return atomicCAS(slot, kEmpty, word) == kEmpty;
    }
}

// The slot of a key in a table of 2^bits slots.
__device__ __forceinline__ u64 slot_of(u64 key, u32 hash_function, u32 bits) {
    return bits == 0 ? 0 : hash_key(key, hash_function) >> (64 - bits);
}

}  // namespace overspill
