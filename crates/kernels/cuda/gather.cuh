// Materializes rows of a table by their numbers (paper 4, section 3.3).
#pragma once

#include "columns.cuh"
#include "flush.cuh"

namespace overspill {

// Rows that a thread gathers at once, so that it waits for their values together.
constexpr u32 kGatheredTogether = 4;

// output[i] = input[numbers[i]] in each column, for `count` numbers. Numbers are read once for all columns. Neighbouring threads write
// next to each other, grid stride.
__device__ __forceinline__ void gather_rows(const u32* numbers, u64 count, const MovedColumn* columns, u64 column_count) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x * kGatheredTogether;
    for (u64 first = static_cast<u64>(blockIdx.x) * blockDim.x * kGatheredTogether + threadIdx.x; first < count; first += stride) {
        u32 rows[kGatheredTogether];
#pragma unroll
        for (u32 at = 0; at < kGatheredTogether; ++at) rows[at] = first + at * blockDim.x < count ? numbers[first + at * blockDim.x] : 0;
        for (u64 number = 0; number < column_count; ++number) {
            const MovedColumn column = columns[number];
            with_type_of_width(column.width, [&](auto type) {
                using T = decltype(type);
                const auto* input = static_cast<const T*>(column.input);
                auto* output = static_cast<T*>(column.output);
                T values[kGatheredTogether];
                // Numbers that stand for none are those of the first row, which there is as there is a number.
#pragma unroll
                for (u32 at = 0; at < kGatheredTogether; ++at) values[at] = input[rows[at]];
#pragma unroll
                for (u32 at = 0; at < kGatheredTogether; ++at) {
                    if (first + at * blockDim.x < count) flush_one(output + first + at * blockDim.x, values[at]);
                }
            });
        }
    }
}

}  // namespace overspill
