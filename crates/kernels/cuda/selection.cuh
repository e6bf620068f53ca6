// Selection and aggregation in one pass over columns: which rows lie in ranges, and counts, sums, smallest and largest
// values of those that do (paper 2, section 7.2.4).
#pragma once

#include "platform.cuh"

namespace overspill {

constexpr u32 kSelectionColumns = 16;
constexpr u32 kSelectionAggregates = 8;

// Signed values of 4 or 8 bytes, and a bit for each that says whether it is there; without bits all are. Mirrored in Rust.
struct SelectionColumn {
    const void* values;
    const u32* validity;
    u64 width;

    __device__ __forceinline__ bool is_valid(u64 row) const {
        return validity == nullptr || (validity[row / 32] >> (row % 32) & 1) != 0;
    }

    __device__ __forceinline__ s64 value(u64 row) const {
        return width == 8 ? static_cast<const s64*>(values)[row] : static_cast<const int*>(values)[row];
    }
};

// Rows whose value of a column is in a range that includes both ends. A null is in none. Mirrored in Rust.
struct SelectionRange {
    s64 lowest;
    s64 highest;
    u64 column;
};

enum SelectionFunction : u32 { kCount = 0, kSum = 1, kSumOfProducts = 2, kLargest = 3, kSmallest = 4 };

// Mirrored in Rust.
struct SelectionAggregate {
    u32 function;
    u32 left;
    u32 right;
    u32 padding;
};

// Mirrored in Rust.
struct SelectionArguments {
    u64 rows;
    u32 ranges;
    u32 aggregates;
    SelectionColumn columns[kSelectionColumns];
    SelectionRange range[kSelectionColumns];
    SelectionAggregate aggregate[kSelectionAggregates];
    // Of each aggregate the low and the high word of its value and how many rows it has; behind them how many rows are
    // selected. Launches add to what is there.
    u64* results;
};

// A sum of 128 bits, modulo 2^128, or the largest value in the low word; and how many rows it is of.
struct Accumulated {
    u64 low;
    u64 high;
    u64 rows;

    __device__ __forceinline__ static Accumulated none(u32 function) {
        const bool is_largest = function == kLargest || function == kSmallest;
        return {is_largest ? u64{1} << 63 : 0, 0, 0};
    }

    __device__ __forceinline__ void add(u64 other_low, u64 other_high) {
        low += other_low;
        high += other_high + (low < other_low ? 1 : 0);
    }

    __device__ __forceinline__ void combine(u32 function, const Accumulated& other) {
        rows += other.rows;
        if (function == kLargest || function == kSmallest) {
            if (static_cast<s64>(other.low) > static_cast<s64>(low)) low = other.low;
        } else {
            add(other.low, other.high);
        }
    }
};

// What a row gives an aggregate, if it is selected. The smallest value is the complement of the largest complement.
template <bool Branching>
__device__ __forceinline__ void accumulate(const SelectionArguments& arguments, const SelectionAggregate& aggregate, u64 row, bool selected,
                                           Accumulated& sum) {
    const auto& left = arguments.columns[aggregate.left];
    const auto& right = arguments.columns[aggregate.right];
    const bool is_product = aggregate.function == kSumOfProducts;
    const bool counts = selected && left.is_valid(row) && (!is_product || right.is_valid(row));
    if (Branching && !counts) return;
    const u64 mask = counts ? ~u64{0} : 0;
    sum.rows += mask & 1;
    if (aggregate.function == kCount) return;
    const s64 value = left.value(row);
    if (is_product) {
        const s64 factor = right.value(row);
        const u64 low = static_cast<u64>(value) * static_cast<u64>(factor);
        const u64 unsigned_high = __umul64hi(static_cast<u64>(value), static_cast<u64>(factor));
        const u64 high = unsigned_high - (value < 0 ? static_cast<u64>(factor) : 0) - (factor < 0 ? static_cast<u64>(value) : 0);
        sum.add(low & mask, high & mask);
    } else if (aggregate.function == kSum) {
        sum.add(static_cast<u64>(value) & mask, (value < 0 ? ~u64{0} : 0) & mask);
    } else {
        const s64 candidate = aggregate.function == kSmallest ? ~value : value;
        if (counts && candidate > static_cast<s64>(sum.low)) sum.low = static_cast<u64>(candidate);
    }
}

// The combination over the threads of the block, in its first thread. All threads call it, and may call it again at once.
__device__ __forceinline__ Accumulated combine_block(u32 function, Accumulated own) {
    __shared__ Accumulated warps[kWarp];
    for (u32 distance = kWarp / 2; distance > 0; distance /= 2) {
        const Accumulated other{__shfl_down_sync(kFullMask, own.low, distance), __shfl_down_sync(kFullMask, own.high, distance),
                                __shfl_down_sync(kFullMask, own.rows, distance)};
        if (lane_index() + distance < kWarp) own.combine(function, other);
    }
    if (lane_index() == 0) warps[warp_index()] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < blockDim.x / kWarp; ++warp) own.combine(function, warps[warp]);
    }
    // They are read before the next call writes them.
    __syncthreads();
    return own;
}

// Aggregates the rows that lie in all ranges; `Aggregates` is at least their number. Branching ends a row at the first range
// that it is not in, and what it would read further does not cross the link; predication reads and computes everything, and masks
// what does not count.
template <u32 Aggregates, bool Branching>
__device__ __forceinline__ void select_and_aggregate(const SelectionArguments& arguments) {
    Accumulated sums[Aggregates];
    u64 selected_rows = 0;
#pragma unroll
    for (u32 at = 0; at < Aggregates; ++at) sums[at] = Accumulated::none(arguments.aggregate[at].function);
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 row = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; row < arguments.rows; row += stride) {
        bool selected = true;
        for (u32 at = 0; at < arguments.ranges; ++at) {
            const auto& range = arguments.range[at];
            const auto& column = arguments.columns[range.column];
            if (Branching) {
                selected = column.is_valid(row);
                if (selected) {
                    const s64 value = column.value(row);
                    selected = range.lowest <= value && value <= range.highest;
                }
                if (!selected) break;
            } else {
                const s64 value = column.value(row);
                selected = selected & (range.lowest <= value) & (value <= range.highest) & column.is_valid(row);
            }
        }
        if (Branching && !selected) continue;
        selected_rows += selected ? 1 : 0;
#pragma unroll
        for (u32 at = 0; at < Aggregates; ++at) {
            if (at < arguments.aggregates) accumulate<Branching>(arguments, arguments.aggregate[at], row, selected, sums[at]);
        }
    }
#pragma unroll
    for (u32 at = 0; at < Aggregates; ++at) {
        if (at >= arguments.aggregates) continue;
        const u32 function = arguments.aggregate[at].function;
        const Accumulated sum = combine_block(function, sums[at]);
        u64* result = arguments.results + at * 3;
        if (threadIdx.x != 0) continue;
        atomicAdd(&result[2], sum.rows);
        if (function == kLargest || function == kSmallest) {
            atomicMax(reinterpret_cast<s64*>(&result[0]), static_cast<s64>(sum.low));
        } else {
            // Whoever wraps the low word carries: all sums together are exact, in whatever order they come.
            const u64 before = atomicAdd(&result[0], sum.low);
            atomicAdd(&result[1], sum.high + (before + sum.low < before ? 1 : 0));
        }
    }
    const Accumulated rows = combine_block(kCount, {0, 0, selected_rows});
    if (threadIdx.x == 0) atomicAdd(&arguments.results[arguments.aggregates * 3], rows.rows);
}

}  // namespace overspill
