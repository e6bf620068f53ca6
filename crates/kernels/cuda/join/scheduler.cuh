// The join-task scheduler (paper 1, section 6.2.3): which pairs of partitions there are to join, and in how many pieces.
#pragma once

#include "../scan.cuh"
#include "arguments.cuh"

namespace overspill {

// A pair of partitions, and the part of the probe side that one block takes at a time. Mirrored in Rust.
struct JoinTask {
    u64 build_begin;
    u64 build_end;
    u64 probe_begin;
    u64 probe_end;
};

// Writes the tasks of partitions whose both sides have tuples, the probe side cut into pieces of at most `piece` tuples, so
// that a skewed partition is shared among blocks. `count` is the number of tasks; past `capacity` none are written.
// starts[p] to starts[p] + totals[p] is partition p. One block.
__device__ __forceinline__ void schedule_tasks(const u64* build_starts, const u64* build_totals, const u64* probe_starts, const u64* probe_totals,
                                               u32 fanout, u64 piece, JoinTask* tasks, u64 capacity, u64* count) {
    u64 base = 0;
    for (u32 first = 0; first < fanout; first += blockDim.x) {
        const u32 partition = first + threadIdx.x;
        const bool joins = partition < fanout && build_totals[partition] != 0;
        const u64 probe_tuples = joins ? probe_totals[partition] : 0;
        const u64 pieces = (probe_tuples + piece - 1) / piece;
        u64 sum;
        const u64 place = base + block_exclusive_sum(pieces, sum);
        for (u64 at = 0; at < pieces && place + at < capacity; ++at) {
            const u64 begin = probe_starts[partition] + at * piece;
            const u64 end = probe_starts[partition] + smaller(probe_tuples, (at + 1) * piece);
            tasks[place + at] = JoinTask{build_starts[partition], build_starts[partition] + build_totals[partition], begin, end};
        }
        base += sum;
    }
    if (threadIdx.x == 0) *count = base;
}

}  // namespace overspill
