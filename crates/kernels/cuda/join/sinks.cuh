// What becomes of a match.
#pragma once

#include "../scan.cuh"
#include "arguments.cuh"

namespace overspill {

// Each sink is made by every thread of a block, takes matches in `match`, and is ended by all threads in `finish`.

// Counts and aggregates in registers, then one atomic operation a block and aggregate (paper 1, section 5.1).
struct AggregateSink {
    const JoinOutput& output;
    u64 matches = 0;
    u64 values[kMaxJoinAggregates] = {};

    __device__ __forceinline__ explicit AggregateSink(const JoinOutput& output) : output(output) {}

    __device__ __forceinline__ void match(u64 build_value, u64 probe_value) {
        ++matches;
#pragma unroll
        for (u32 at = 0; at < kMaxJoinAggregates; ++at) {
            if (at >= output.aggregates) break;
            const JoinAggregate& aggregate = output.aggregate[at];
            values[at] = aggregate.combine(values[at], aggregate.value(build_value, probe_value));
        }
    }

    __device__ __forceinline__ void finish() {
        const u64 block_matches = block_combine(matches, [](u64 one, u64 other) { return one + other; });
        if (threadIdx.x == 0 && block_matches != 0) atomicAdd(&output.totals[0], block_matches);
#pragma unroll
        for (u32 at = 0; at < kMaxJoinAggregates; ++at) {
            if (at >= output.aggregates) break;
            const JoinAggregate& aggregate = output.aggregate[at];
            const u64 value = block_combine(values[at], [&](u64 one, u64 other) { return aggregate.combine(one, other); });
            if (threadIdx.x != 0 || block_matches == 0) continue;
            if (aggregate.is_sum != 0) {
                atomicAdd(&output.totals[1 + at], value);
            } else {
                atomicMax(&output.totals[1 + at], value);
            }
        }
    }
};

// Pairs of values, placed by one counter (paper 1, section 5.1: a linear allocator needs one pass).
struct LinearAllocatorSink {
    const JoinOutput& output;

    __device__ __forceinline__ explicit LinearAllocatorSink(const JoinOutput& output) : output(output) {}

    __device__ __forceinline__ void match(u64 build_value, u64 probe_value) {
        // The lanes that have a match just now draw their places together.
        const u32 lanes = __activemask();
        const u32 leader = __ffs(static_cast<int>(lanes)) - 1;
        const u32 rank = __popc(lanes & ((1u << lane_index()) - 1));
        u64 place = 0;
        if (lane_index() == leader) place = atomicAdd(output.cursor, static_cast<u64>(__popc(lanes)));
        place = __shfl_sync(lanes, place, leader) + rank;
        if (place < output.capacity) {
            output.build_values[place] = build_value;
            output.probe_values[place] = probe_value;
        }
    }

    __device__ __forceinline__ void finish() {}
};

}  // namespace overspill
