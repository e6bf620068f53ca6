// The local join of a rank (paper 4, section 3.3): one table of row numbers, which the probe side looks up twice, first to count its
// matches and then to write them.
#pragma once

#include "../hash_table/row_numbers.cuh"
#include "../scan.cuh"
#include "no_partitioning.cuh"

namespace overspill {

// Mirrors `LocalJoinArguments` of the Rust launcher. The build uses the first half of it.
struct LocalJoinArguments {
    RowNumberTable table;
    KeyColumns build_keys;
    u64 build_rows;
    KeyColumns probe_keys;
    u64 probe_rows;
    // Block b takes probe rows [b * chunk, (b + 1) * chunk).
    u64 chunk;
    // The matches of each probe row.
    u32* counts;
    // The matches of each block, and later where they start.
    u64* offsets;
    // The row numbers of each pair.
    u32* build_numbers;
    u32* probe_numbers;
    u32 seed;
    u32 padding;

    // Calls `found(build_row)` for each match of a probe row without nulls in its key, until it returns false.
    template <typename Found>
    __device__ __forceinline__ void find(u64 probe_row, Found&& found) const {
        table.find(probe_keys.hash(probe_row, seed), [&](u32 build_row) {
            return !probe_keys.are_equal(probe_row, build_keys, build_row) || found(build_row);
        });
    }
};

// Inserts the rows of the build side, but those with a null in their key: they have no partner.
__device__ __forceinline__ void build_row_numbers(const LocalJoinArguments& arguments) {
    const KeyColumns& keys = arguments.build_keys;
    for_each_tuple(arguments.build_rows, [&](u64 row) {
        if (!keys.has_null(row)) arguments.table.insert(keys.hash(row, arguments.seed), static_cast<u32>(row));
    });
}

// Counts the matches of each probe row and of each block's chunk.
__device__ __forceinline__ void count_local_matches(const LocalJoinArguments& arguments) {
    const u64 begin = smaller(arguments.probe_rows, blockIdx.x * arguments.chunk);
    const u64 end = smaller(arguments.probe_rows, begin + arguments.chunk);
    u64 matches = 0;
    for (u64 row = begin + threadIdx.x; row < end; row += blockDim.x) {
        u32 count = 0;
        if (!arguments.probe_keys.has_null(row)) {
            arguments.find(row, [&](u32) {
                ++count;
                return true;
            });
        }
        arguments.counts[row] = count;
        matches += count;
    }
    const u64 sum = block_combine(matches, [](u64 one, u64 other) { return one + other; });
    if (threadIdx.x == 0) arguments.offsets[blockIdx.x] = sum;
}

// Writes the pairs in the order of probe rows. A row without a match is not looked up again, and others until their last match.
__device__ __forceinline__ void write_local_pairs(const LocalJoinArguments& arguments) {
    const u64 begin = smaller(arguments.probe_rows, blockIdx.x * arguments.chunk);
    const u64 end = smaller(arguments.probe_rows, begin + arguments.chunk);
    u64 base = arguments.offsets[blockIdx.x];
    for (u64 first = begin; first < end; first += blockDim.x) {
        const u64 row = first + threadIdx.x;
        u32 count = row < end ? arguments.counts[row] : 0;
        u64 sum;
        u64 place = base + block_exclusive_sum(static_cast<u64>(count), sum);
        base += sum;
        if (count == 0) continue;
        arguments.find(row, [&](u32 build_row) {
            arguments.build_numbers[place] = build_row;
            arguments.probe_numbers[place] = static_cast<u32>(row);
            ++place;
            return --count != 0;
        });
    }
}

}  // namespace overspill
