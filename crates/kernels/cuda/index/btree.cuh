// A B+tree without pointers, whose leaves are the sorted keys (paper 3, section 3.2: nodes of 4 KiB), a thread a key.
#pragma once

#include "arguments.cuh"

namespace overspill {

// Node k of a level has the children k * (node_keys + 1) and on of the level below. Key j of a node is the smallest key below its
// child j + 1. Places of keys that are not there hold the largest number, which no key is greater than.
struct BTreeIndex {
    const IndexArguments& index;

    __device__ __forceinline__ u64 lower_bound(u64 key, u32) const {
        const u64 node_keys = index.node_keys;
        u64 node = 0;
        for (u32 level = 0; level < index.levels; ++level) {
            const u64* keys = index.nodes + (index.level_starts[level] + node) * node_keys;
            node = node * (node_keys + 1) + count_smaller(keys, node_keys, key);
        }
        const u64 start = node * node_keys;
        return start + count_smaller(index.keys + start, smaller(node_keys, index.length - start), key);
    }
};

}  // namespace overspill
