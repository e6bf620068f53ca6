// What build and probe kernels are given.
#pragma once

#include "../hash.cuh"
#include "../platform.cuh"

namespace overspill {

// One side of a join: keys, and a value each. Without a value column a tuple's value is its row id. Mirrored in Rust.
struct JoinInput {
    const void* keys;
    const void* values;
    u64 value_width;
    u64 tuples;
    u64 first_row_id;

    template <typename Key>
    __device__ __forceinline__ Key key(u64 at) const {
        return static_cast<const Key*>(keys)[at];
    }

    __device__ __forceinline__ u64 value(u64 at) const {
        if (values == nullptr) return first_row_id + at;
        return value_width == 8 ? static_cast<const u64*>(values)[at] : static_cast<const u32*>(values)[at];
    }
};

// The table that the build and the probe share; which fields mean something depends on its kind. Mirrored in Rust.
struct HashTableArguments {
    u64* slots;
    u64* claims;
    void* slot_keys;
    u64* starts;
    u32* filled;
    u64* values;
    u64 slot_count;
    u64 smallest_key;
    u32 bits;
    u32 hash_function;
};

constexpr u32 kMaxJoinAggregates = 4;

// An aggregate over the values that matches have of one side: of `64 - right` bits of each, `left` bits from the top. Those that are
// `is_signed` have their sign extended. Sums wrap. The largest value is of those whose bits `flip` has turned: that of the sign,
// so that they compare as unsigned numbers, and all for the smallest value. Mirrored in Rust.
struct JoinAggregate {
    u64 flip;
    u32 of_build;
    u32 left;
    u32 right;
    u32 is_signed;
    u32 is_sum;
    u32 padding;

    __device__ __forceinline__ u64 value(u64 build_value, u64 probe_value) const {
        const u64 top = (of_build != 0 ? build_value : probe_value) << left;
        const u64 value = is_signed != 0 ? static_cast<u64>(static_cast<s64>(top) >> right) : top >> right;
        return value ^ flip;
    }

    __device__ __forceinline__ u64 combine(u64 one, u64 other) const {
        if (is_sum != 0) return one + other;
        return one < other ? other : one;
    }
};

// Where matches go. Mirrored in Rust.
struct JoinOutput {
    // Aggregation: the number of matches, and then each aggregate. Launches add to what is there, which is zero at first.
    u64* totals;
    // Linear allocator: how many pairs there are; more than the capacity means that the rest was not written.
    u64* cursor;
    u64 capacity;
    u64* build_values;
    u64* probe_values;
    JoinAggregate aggregate[kMaxJoinAggregates];
    u64 aggregates;
};

}  // namespace overspill
