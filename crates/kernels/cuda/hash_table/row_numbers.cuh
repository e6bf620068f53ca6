// Open addressing over the rows of a table, by keys of any columns (paper 4, section 3.3). An entry is the hash of a row and its number,
// 4 bytes each. Keys are compared in the table's columns: an entry has 8 bytes however long they are, and is claimed at once.
//
//     entry   | hash 63..32 | row number 31..0 |      empty: all bits set, as no row has the largest number
#pragma once

#include "../key_columns.cuh"
#include "table.cuh"

namespace overspill {

// Twice as many slots as rows: half of them are used, as in the paper. A power of two would need up to twice the memory, and a slot is
// as cheap by a multiplication. Duplicate keys are kept, each in a slot of its own.
struct RowNumberTable {
    u64* entries;
    u64 slots;

    // The slots' share of the hash, from the top. The hash has 32 bits, so of more slots some are only reached by probing.
    __device__ __forceinline__ u64 slot_of(u32 hash) const { return __umul64hi(static_cast<u64>(hash) << 32, slots); }

    __device__ __forceinline__ u64 after(u64 slot) const { return slot + 1 == slots ? 0 : slot + 1; }

    // There is room for the row.
    __device__ __forceinline__ void insert(u32 hash, u32 row) const {
        const u64 entry = static_cast<u64>(hash) << 32 | row;
        for (u64 slot = slot_of(hash); !claim<Claimants::kDevice>(&entries[slot], entry); slot = after(slot)) {
        }
    }

    // Calls `found(row)` for each row with this hash, until it returns false.
    template <typename Found>
    __device__ __forceinline__ void find(u32 hash, Found&& found) const {
        u64 slot = slot_of(hash);
        for (u64 entry = entries[slot]; entry != kEmpty; entry = entries[slot]) {
            if (static_cast<u32>(entry >> 32) == hash && !found(static_cast<u32>(entry))) return;
            slot = after(slot);
        }
    }
};

}  // namespace overspill
