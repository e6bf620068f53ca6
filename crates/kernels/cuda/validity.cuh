// Validity: bytes, which are moved with rows, as bits, by which kernels read keys.
#pragma once

#include "flush.cuh"

namespace overspill {

// words[row / 32] has a bit for each row, from the lowest on, that says whether bytes[row] is not 0. Bits behind the last row are 0. A
// warp makes a word of its votes, grid stride.
__device__ __forceinline__ void pack_validity_bits(const unsigned char* bytes, u64 rows, u32* words) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    // All lanes of a warp go on as long as one has a row, as all of them vote.
    for (u64 first = static_cast<u64>(blockIdx.x) * blockDim.x + warp_index() * kWarp; first < rows; first += stride) {
        const u64 row = first + lane_index();
        const u32 word = __ballot_sync(kFullMask, row < rows && bytes[row] != 0);
        if (lane_index() == 0) flush_one(words + first / kWarp, word);
    }
}

}  // namespace overspill
