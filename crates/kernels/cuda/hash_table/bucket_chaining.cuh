// Bucket chaining in scratchpad memory, with 2048 buckets (paper 1, section 6.1): for build sides that a radix partitioner
// has made small.
#pragma once

#include "table.cuh"

namespace overspill {

constexpr u32 kBuckets = 2048;
constexpr u32 kBucketBits = 11;
constexpr u32 kEndOfChain = ~0u;

// Scratchpad: 4 bytes a bucket, then for each of `capacity` tuples a value (8), a key, and the next of its chain (4).
template <typename Key>
struct BucketChainingTable {
    u32* heads;
    u64* values;
    Key* keys;
    u32* next;
    u32 capacity;
    u32 hash_function;
    // Bits of the hash that all keys of the partition share.
    u32 shared_bits;

    __device__ __forceinline__ static BucketChainingTable in(unsigned char* scratchpad, u32 capacity, u32 hash_function, u32 shared_bits) {
        auto* heads = reinterpret_cast<u32*>(scratchpad);
        auto* values = reinterpret_cast<u64*>(heads + kBuckets);
        auto* keys = reinterpret_cast<Key*>(values + capacity);
        return BucketChainingTable{heads, values, keys, reinterpret_cast<u32*>(keys + capacity), capacity, hash_function, shared_bits};
    }

    // All threads of the block call it, and wait for each other before they insert.
    __device__ __forceinline__ void clear() const {
        for (u32 bucket = threadIdx.x; bucket < kBuckets; bucket += blockDim.x) heads[bucket] = kEndOfChain;
    }

    __device__ __forceinline__ u32 bucket_of(Key key) const { return radix(hash_key(key, hash_function), shared_bits, kBucketBits); }

    // `slot` is the caller's own, below the capacity.
    __device__ __forceinline__ void insert(u32 slot, Key key, u64 value) const {
        keys[slot] = key;
        values[slot] = value;
        next[slot] = atomicExch(&heads[bucket_of(key)], slot);
    }

    template <typename Found>
    __device__ __forceinline__ void find(Key key, Found&& found) const {
        for (u32 slot = heads[bucket_of(key)]; slot != kEndOfChain; slot = next[slot]) {
            if (keys[slot] == key) found(values[slot]);
        }
    }
};

}  // namespace overspill
