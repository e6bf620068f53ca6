// Harmonia (Yan et al., 2019; paper 3, sections 2.2 and 3.3.1): a B+tree with the children of its nodes in an array of their own.
// Sub-warps go down together, a key each at a time.
#pragma once

#include "arguments.cuh"

namespace overspill {

// Lanes of a sub-warp. With two keys a lane they read a line of a node at once.
constexpr u32 kSubWarp = 8;
constexpr u32 kHarmoniaKeys = 32;

struct HarmoniaIndex {
    const IndexArguments& index;

    // All lanes of the warp call it, and the first `lanes` of them with a key to look up.
    __device__ __forceinline__ u64 lower_bound(u64 key, u32 lanes) const {
        const u32 first_lane = lane_index() / kSubWarp * kSubWarp;
        const u32 mask = ((1u << kSubWarp) - 1) << first_lane;
        u64 place = 0;
        for (u32 turn = 0; turn < kSubWarp && first_lane + turn < lanes; ++turn) {
            const u64 shared_key = __shfl_sync(mask, key, first_lane + turn);
            const u64 found = descend(shared_key, mask);
            if (lane_index() == first_lane + turn) place = found;
        }
        return place;
    }

  private:
    __device__ __forceinline__ u64 descend(u64 key, u32 mask) const {
        u64 node = 0;
        for (u32 level = 0; level < index.levels; ++level) {
            const u64 child = index.children[node];
            node = child + rank(index.nodes + node * kHarmoniaKeys, kHarmoniaKeys, key, mask);
        }
        const u64 start = node * kHarmoniaKeys;
        return start + rank(index.keys + start, smaller<u64>(kHarmoniaKeys, index.length - start), key, mask);
    }

    // How many of a node's `count` keys are smaller: a line at a time, as far as all keys of a line are.
    __device__ __forceinline__ u32 rank(const u64* keys, u64 count, u64 key, u32 mask) const {
        constexpr u32 kLineKeys = 2 * kSubWarp;
        u32 smaller_keys = 0;
        for (u32 line = 0; line < kHarmoniaKeys; line += kLineKeys) {
            const u64 at = line + lane_index() % kSubWarp * 2;
            // Runs of sorted keys end with a line that is filled up, so both keys of a lane are there if its first is.
            const TwoWords pair = at < count ? reinterpret_cast<const TwoWords*>(keys)[at / 2] : TwoWords{~u64{0}, ~u64{0}};
            const u32 of_line = __popc(__ballot_sync(mask, pair.first < key)) + __popc(__ballot_sync(mask, pair.second < key));
            smaller_keys += of_line;
            if (of_line < kLineKeys) break;
        }
        return smaller_keys;
    }
};

}  // namespace overspill
