// Joins pairs of partitions in scratchpad memory (paper 1, section 5.1, the third stage).
#pragma once

#include "../hash_table/bucket_chaining.cuh"
#include "scheduler.cuh"
#include "sinks.cuh"

namespace overspill {

// Blocks draw tasks from `next_task`, which is zero before the launch. A build side larger than the scratchpad's `capacity`
// tuples is taken in pieces, each probed by the whole of the task's probe side: slower, never wrong.
template <typename Key, typename Sink>
__device__ __forceinline__ void join_partitions(const JoinInput& build, const JoinInput& probe, const JoinTask* tasks, const u64* task_count,
                                                u64* next_task, u32 capacity, u32 hash_function, u32 shared_bits, const JoinOutput& output) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    __shared__ u64 drawn;
    const auto table = BucketChainingTable<Key>::in(scratchpad, capacity, hash_function, shared_bits);
    Sink sink(output);
    while (true) {
        if (threadIdx.x == 0) drawn = atomicAdd(next_task, u64{1});
        __syncthreads();
        const u64 number = drawn;
        if (number >= *task_count) break;
        const JoinTask task = tasks[number];
        for (u64 piece = task.build_begin; piece < task.build_end; piece += capacity) {
            table.clear();
            __syncthreads();
            const u64 end = smaller(task.build_end, piece + capacity);
            for (u64 at = piece + threadIdx.x; at < end; at += blockDim.x) {
                table.insert(static_cast<u32>(at - piece), build.key<Key>(at), build.value(at));
            }
            __syncthreads();
            for (u64 at = task.probe_begin + threadIdx.x; at < task.probe_end; at += blockDim.x) {
                table.find(probe.key<Key>(at), [&](u64 build_value) { sink.match(build_value, probe.value(at)); });
            }
            // The table has been read before the next piece, or the next task's number, overwrites it.
            __syncthreads();
        }
    }
    sink.finish();
}

}  // namespace overspill
