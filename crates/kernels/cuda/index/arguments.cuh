// What lookups in an index are given, and what the indexes share.
#pragma once

#include "../platform.cuh"

namespace overspill {

constexpr u32 kMaxIndexLevels = 16;

// Sorted keys with an index over them (paper 3, section 2.2), as the CPU built it. Which fields mean something depends on its kind.
// Mirrored in Rust.
struct IndexArguments {
    const u64* keys;
    u64 length;
    // Of the keys.
    u64 smallest;
    u64 largest;
    // The number of each key's row. Without them, the rows are in the order of the keys.
    const u32* rows;
    // B+tree and Harmonia: the keys of the inner nodes.
    const u64* nodes;
    // Harmonia: the first child of each node.
    const u32* children;
    // RadixSpline: keys with their places, and for each value of the upper bits of a key's distance from the smallest key the first
    // point with these or larger upper bits.
    const TwoWords* points;
    const u32* table;
    u32 shift;
    // B+tree and Harmonia: the levels of inner nodes.
    u32 levels;
    // B+tree: the keys of a node, and the first node of each level from the root on.
    u32 node_keys;
    u32 padding;
    u64 level_starts[kMaxIndexLevels];

    __device__ __forceinline__ u64 row(u64 place) const { return rows == nullptr ? place : rows[place]; }
};

// How many of `count` sorted keys are smaller than a key.
__device__ __forceinline__ u64 count_smaller(const u64* keys, u64 count, u64 key) {
    u64 first = 0;
    while (count > 1) {
        const u64 half = count / 2;
        // Without a branch, as neighbouring threads look up keys that have nothing to do with each other.
        first += keys[first + half - 1] < key ? half : 0;
        count -= half;
    }
    return first + (count == 1 && keys[first] < key ? 1 : 0);
}

}  // namespace overspill
