// A table for keys that repeat: each key once, and its values side by side. A lookup costs one search however often the key
// repeats, where linear probing walks over all of them.
#pragma once

#include "table.cuh"

namespace overspill {

// 2^bits slots, at most half of them used. It is built in three launches: `count` every tuple, an exclusive prefix sum of
// `starts` in place, `fill` with every tuple.
template <typename Key>
struct MultiValueTable {
    // The tuple that claimed the slot, or kEmpty. Its key stands for the slot's while counting, so that any key is allowed.
    u64* claims;
    Key* slot_keys;
    // First how many values a slot has, then where they start; one more than there are slots.
    u64* starts;
    // Values that have been filled in, per slot; zero before the build.
    u32* filled;
    u64* values;
    u32 bits;
    u32 hash_function;

    __device__ __forceinline__ u64 mask() const { return (u64{1} << bits) - 1; }

    // Returns false if every slot is taken.
    __device__ __forceinline__ bool count(const Key* keys, u64 row) const {
        const Key key = keys[row];
        u64 slot = slot_of(key, hash_function, bits);
        for (u64 step = 0; step <= mask(); ++step, slot = (slot + 1) & mask()) {
            const u64 claim = atomicCAS(&claims[slot], kEmpty, row);
            if (claim != kEmpty && keys[claim] != key) continue;
            if (claim == kEmpty) slot_keys[slot] = key;
            atomicAdd(&starts[slot], u64{1});
            return true;
        }
        return false;
    }

    __device__ __forceinline__ void fill(Key key, u64 value) const {
        u64 slot = slot_of(key, hash_function, bits);
        while (slot_keys[slot] != key || claims[slot] == kEmpty) slot = (slot + 1) & mask();
        values[starts[slot] + atomicAdd(&filled[slot], 1u)] = value;
    }

    template <typename Found>
    __device__ __forceinline__ void find(Key key, Found&& found) const {
        u64 slot = slot_of(key, hash_function, bits);
        for (u64 step = 0; step <= mask() && claims[slot] != kEmpty; ++step, slot = (slot + 1) & mask()) {
            if (slot_keys[slot] != key) continue;
            for (u64 at = starts[slot]; at < starts[slot + 1]; ++at) found(values[at]);
            return;
        }
    }
};

}  // namespace overspill
