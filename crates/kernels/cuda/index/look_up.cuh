// The index-nested loop join (paper 3, section 3.3.1): every thread looks up a key of one side in an index over the other.
#pragma once

#include "../join/sinks.cuh"
#include "binary_search.cuh"
#include "btree.cuh"
#include "harmonia.cuh"
#include "radix_spline.cuh"

namespace overspill {

// Whole warps take keys together, as the lanes of Harmonia need each other. 64-bit, as a side may have 2^32 tuples and more.
template <typename Sink, typename Index>
__device__ __forceinline__ void look_up(const JoinInput& input, const IndexArguments& arguments, const JoinOutput& output) {
    Sink sink(output);
    const Index index{arguments};
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    const u64 first_of_warp = static_cast<u64>(blockIdx.x) * blockDim.x + warp_index() * kWarp;
    for (u64 first = first_of_warp; first < input.tuples; first += stride) {
        const u32 lanes = static_cast<u32>(smaller<u64>(kWarp, input.tuples - first));
        const bool has_key = lane_index() < lanes;
        const u64 at = first + lane_index();
        const u64 key = has_key ? input.key<u64>(at) : u64{0};
        u64 place = index.lower_bound(key, lanes);
        if (!has_key) continue;
        for (; place < arguments.length && arguments.keys[place] == key; ++place) sink.match(arguments.row(place), input.value(at));
    }
    sink.finish();
}

}  // namespace overspill
