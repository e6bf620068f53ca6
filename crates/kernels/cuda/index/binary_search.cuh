// Binary search over the sorted keys, a thread a key.
#pragma once

#include "arguments.cuh"

namespace overspill {

struct BinarySearchIndex {
    const IndexArguments& index;

    __device__ __forceinline__ u64 lower_bound(u64 key, u32) const { return count_smaller(index.keys, index.length, key); }
};

}  // namespace overspill
