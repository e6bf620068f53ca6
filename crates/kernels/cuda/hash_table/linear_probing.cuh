// Open addressing with linear probing, at a load of at most one half (paper 1, section 6.1). Duplicate keys are kept: each
// takes a slot of its own, and a lookup goes on to the first empty one.
#pragma once

#include "table.cuh"

namespace overspill {

// At half load the longest walk of n unlike keys is about ln(n) / 0.19, that is 110 for a billion. One that is longer than this
// is of a key with many duplicates, each of which would walk over all before it: such keys belong in a multi-value table.
constexpr u64 kLongestWalk = 256;

// 2^bits slots. A slot of an 8-byte key is the key and a value of 8 bytes; the value is claimed by compare-and-swap, and
// the key written after it, which is enough because lookups come in a later launch.
template <typename Key>
struct LinearProbingTable {
    u64* slots;
    u32 bits;
    u32 hash_function;

    // Returns false if every slot of the walk is taken.
    template <Claimants kWho = Claimants::kDevice>
    __device__ __forceinline__ bool insert(Key key, u64 value) const {
        const u64 mask = (u64{1} << bits) - 1;
        u64 slot = slot_of(key, hash_function, bits);
        for (u64 step = 0; step <= smaller(mask, kLongestWalk); ++step, slot = (slot + 1) & mask) {
            if (claim<kWho>(&slots[2 * slot + 1], value)) {
                slots[2 * slot] = key;
                return true;
            }
        }
        return false;
    }

    template <typename Found>
    __device__ __forceinline__ void find(Key key, Found&& found) const {
        const u64 mask = (u64{1} << bits) - 1;
        u64 slot = slot_of(key, hash_function, bits);
        for (u64 step = 0; step <= mask; ++step, slot = (slot + 1) & mask) {
            // One load: over a link a second would wait as long as the first. The table is aligned to 256 bytes, a slot to 16.
            const TwoWords entry = reinterpret_cast<const TwoWords*>(slots)[slot];
            if (entry.second == kEmpty) return;
            if (entry.first == key) found(entry.second);
        }
    }
};

// For 4-byte keys a slot is 8 bytes: the key above a value of 4 bytes, claimed at once.
template <>
struct LinearProbingTable<u32> {
    u64* slots;
    u32 bits;
    u32 hash_function;

    template <Claimants kWho = Claimants::kDevice>
    __device__ __forceinline__ bool insert(u32 key, u64 value) const {
        const u64 mask = (u64{1} << bits) - 1;
        const u64 entry = static_cast<u64>(key) << 32 | static_cast<u32>(value);
        u64 slot = slot_of(key, hash_function, bits);
        for (u64 step = 0; step <= smaller(mask, kLongestWalk); ++step, slot = (slot + 1) & mask) {
            if (claim<kWho>(&slots[slot], entry)) return true;
        }
        return false;
    }

    template <typename Found>
    __device__ __forceinline__ void find(u32 key, Found&& found) const {
        const u64 mask = (u64{1} << bits) - 1;
        u64 slot = slot_of(key, hash_function, bits);
        for (u64 step = 0; step <= mask; ++step, slot = (slot + 1) & mask) {
            const u64 entry = slots[slot];
            if (entry == kEmpty) return;
            if (static_cast<u32>(entry >> 32) == key) found(static_cast<u64>(static_cast<u32>(entry)));
        }
    }
};

}  // namespace overspill
