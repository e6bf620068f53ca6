// What the kernels of a hash partition are given, and what they share.
#pragma once

#include "../key_columns.cuh"

namespace overspill {

// Mirrors `HashPartitionArguments` of the Rust launcher.
struct HashPartitionArguments {
    KeyColumns keys;
    u64 rows;
    // Block b takes rows [b * chunk, (b + 1) * chunk). A chunk has fewer than 2^32 rows.
    u64 chunk;
    // How many rows of block b are in partition p, and later where they start: offsets[p * blocks + b].
    u64* offsets;
    // Where each partition starts, and behind that the number of rows.
    u64* starts;
    const MovedColumn* columns;
    u64 column_count;
    u32 partitions;
    u32 seed;
    // The partition of rows with a null in their key.
    u32 home;
    // Rows of a batch that each thread takes.
    u32 turns;

    // The upper bits of the product: no division, and any number of partitions.
    template <u32 Rows>
    __device__ __forceinline__ u32 partition(const PackedKeys<Rows>& packed, u32 at) const {
        if (packed.nulls >> at & 1) return home;
        return static_cast<u32>(static_cast<u64>(packed.hash(keys, at, seed)) * partitions >> 32);
    }

    __device__ __forceinline__ u64 chunk_begin() const { return smaller(rows, blockIdx.x * chunk); }
    __device__ __forceinline__ u64 chunk_end() const { return smaller(rows, chunk_begin() + chunk); }
};

// Rows whose keys a thread packs at once.
constexpr u32 kPackedTogether = 4;

}  // namespace overspill
