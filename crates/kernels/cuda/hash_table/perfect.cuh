// Perfect hashing: the key, less the smallest, is the slot (papers 1 and 2, the array join).
#pragma once

#include "table.cuh"

namespace overspill {

// A table of `slots` values of 8 bytes, filled with kEmpty before the build. Keys are unique.
template <typename Key>
struct PerfectTable {
    u64* values;
    u64 slots;
    u64 smallest_key;

    // Returns false if the key is out of range or already there: the caller must choose another table.
    template <Claimants kWho = Claimants::kDevice>
    __device__ __forceinline__ bool insert(Key key, u64 value) const {
        const u64 slot = static_cast<u64>(key) - smallest_key;
        return slot < slots && claim<kWho>(&values[slot], value);
    }

    // Calls `found(value)` for each match of the key.
    template <typename Found>
    __device__ __forceinline__ void find(Key key, Found&& found) const {
        const u64 slot = static_cast<u64>(key) - smallest_key;
        if (slot >= slots) return;
        const u64 value = values[slot];
        if (value != kEmpty) found(value);
    }
};

}  // namespace overspill
