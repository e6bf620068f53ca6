// The second pass of a hash partition: a block sorts a batch of rows by partition in scratchpad memory, a column at a time, and writes
// them out in that order, so that neighbours leave together (paper 4, section 3.1). The paper takes places by atomic operations, which
// leaves rows of a partition in any order. Here they keep theirs, as compression lives on it: warps rank their rows by votes.
//
// Ranks are found once and used for all columns. Keys are hashed again, as they come through the cache a second time when they are moved
// as columns: partition numbers, written by the first pass, would be 4 more bytes a row to write and read.
#pragma once

#include "../flush.cuh"
#include "../scan.cuh"
#include "arguments.cuh"

namespace overspill {

// Rows of a batch that a thread takes at most. A batch has fewer than 2^16 rows, so that places in it are numbers of 16 bits.
constexpr u32 kMaxTurns = 16;
// Stands for a row that there is not.
constexpr u32 kNoRow = 0xffff;

// The scratchpad memory of a block. For each partition, 8 + 4 bytes and 2 more for each warp; for each row of a batch, 2 bytes and a
// value of the widest column.
struct ScatterBatch {
    // Where the next row of each partition goes.
    u64* next;
    // Where rows of each partition start in the batch.
    u32* starts;
    // Of each warp, and in that of each partition: how many rows there are, and later where they start in the batch.
    u16* counters;
    // The partition of each place.
    u16* partitions;
    // A value for each place.
    unsigned char* values;

    __device__ __forceinline__ static ScatterBatch in(unsigned char* scratchpad, u32 partitions, u32 batch_rows) {
        ScatterBatch batch;
        batch.next = reinterpret_cast<u64*>(scratchpad);
        batch.starts = reinterpret_cast<u32*>(batch.next + partitions);
        batch.counters = reinterpret_cast<u16*>(batch.starts + partitions);
        batch.partitions = batch.counters + partitions * (blockDim.x / kWarp);
        batch.values = scratchpad + (partitions * (12 + blockDim.x / kWarp * 2) + batch_rows * 2 + 15) / 16 * 16;
        return batch;
    }

    __device__ __forceinline__ u16* counters_of_warp(u32 partition_count) const { return counters + warp_index() * partition_count; }
};

// The place of each row among those of its warp and partition, and the partition in the upper half. A warp takes neighbouring rows, in
// turns of 32, so that rows of lower numbers come first.
__device__ __forceinline__ void rank_rows(const HashPartitionArguments& arguments, const ScatterBatch& batch, u64 first, u64 end, u32 (&ranks)[kMaxTurns]) {
    u16* counters = batch.counters_of_warp(arguments.partitions);
#pragma unroll
    for (u32 begin = 0; begin < kMaxTurns; begin += kPackedTogether) {
        if (begin >= arguments.turns) break;
        PackedKeys<kPackedTogether> packed;
        packed.load(arguments.keys, first + begin * kWarp, kWarp, smaller(end, first - lane_index() + arguments.turns * kWarp));
#pragma unroll
        for (u32 at = 0; at < kPackedTogether; ++at) {
            const u32 turn = begin + at;
            if (turn >= arguments.turns) break;
            const bool is_row = first + turn * kWarp < end;
            const u32 partition = is_row ? arguments.partition(packed, at) : kNoRow;
            const u32 equals = __match_any_sync(kFullMask, partition);
            const u32 leader = __ffs(static_cast<int>(equals)) - 1;
            u32 before = 0;
            if (is_row && lane_index() == leader) {
                before = counters[partition];
                counters[partition] = static_cast<u16>(before + __popc(equals));
            }
            before = __shfl_sync(kFullMask, before, leader);
            // The counters are written before another lane leads rows of the same partition.
            __syncwarp(kFullMask);
            ranks[turn] = partition << 16 | (before + __popc(equals & ((1u << lane_index()) - 1)));
        }
    }
}

// Turns the counts of warps into places in the batch: an exclusive sum over partitions, and within each over warps. All threads call it,
// and wait for each other before they use the places.
__device__ __forceinline__ void place_partitions(const ScatterBatch& batch, u32 partitions) {
    const u32 warps = blockDim.x / kWarp;
    u32 base = 0;
    for (u32 from = 0; from < partitions; from += blockDim.x) {
        const u32 partition = from + threadIdx.x;
        u32 rows = 0;
        if (partition < partitions) {
            for (u32 warp = 0; warp < warps; ++warp) rows += batch.counters[warp * partitions + partition];
        }
        u32 sum;
        u32 place = base + block_exclusive_sum(rows, sum);
        base += sum;
        if (partition >= partitions) continue;
        batch.starts[partition] = place;
        for (u32 warp = 0; warp < warps; ++warp) {
            const u32 count = batch.counters[warp * partitions + partition];
            batch.counters[warp * partitions + partition] = static_cast<u16>(place);
            place += count;
        }
    }
}

// Moves a column of the batch. All threads call it, and may call it again at once.
template <typename T>
__device__ __forceinline__ void move_column(const ScatterBatch& batch, const T* input, T* output, u64 first, u32 turns, u32 count,
                                            const u32 (&places)[kMaxTurns]) {
    auto* values = reinterpret_cast<T*>(batch.values);
#pragma unroll
    for (u32 turn = 0; turn < kMaxTurns; ++turn) {
        if (turn >= turns) break;
        if (places[turn] != kNoRow) values[places[turn]] = input[first + turn * kWarp];
    }
    __syncthreads();
    for (u32 place = threadIdx.x; place < count; place += blockDim.x) {
        const u32 partition = batch.partitions[place];
        flush_one(output + (batch.next[partition] + (place - batch.starts[partition])), values[place]);
    }
    __syncthreads();
}

// Scatters the rows of the block's chunk. `offsets` holds places, not counts.
__device__ __forceinline__ void scatter_hash_partitions(const HashPartitionArguments& arguments) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    const u32 partitions = arguments.partitions;
    const u32 batch_rows = arguments.turns * blockDim.x;
    const auto batch = ScatterBatch::in(scratchpad, partitions, batch_rows);
    for (u32 partition = threadIdx.x; partition < partitions; partition += blockDim.x) {
        const u64* offsets = arguments.offsets + static_cast<u64>(partition) * gridDim.x;
        batch.next[partition] = offsets[blockIdx.x];
        if (blockIdx.x == 0) arguments.starts[partition] = offsets[0];
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) arguments.starts[partitions] = arguments.rows;
    const u64 end = arguments.chunk_end();
    for (u64 begin = arguments.chunk_begin(); begin < end; begin += batch_rows) {
        const u32 count = static_cast<u32>(smaller<u64>(batch_rows, end - begin));
        for (u32 at = threadIdx.x; at < partitions * (blockDim.x / kWarp); at += blockDim.x) batch.counters[at] = 0;
        __syncthreads();
        const u64 first = begin + warp_index() * arguments.turns * kWarp + lane_index();
        u32 places[kMaxTurns];
        rank_rows(arguments, batch, first, end, places);
        __syncthreads();
        place_partitions(batch, partitions);
        __syncthreads();
        const u16* starts = batch.counters_of_warp(partitions);
#pragma unroll
        for (u32 turn = 0; turn < kMaxTurns; ++turn) {
            if (turn >= arguments.turns) break;
            const u32 partition = places[turn] >> 16;
            places[turn] = partition == kNoRow ? kNoRow : starts[partition] + (places[turn] & 0xffff);
            if (partition != kNoRow) batch.partitions[places[turn]] = static_cast<u16>(partition);
        }
        for (u64 number = 0; number < arguments.column_count; ++number) {
            const MovedColumn column = arguments.columns[number];
            with_type_of_width(column.width, [&](auto type) {
                using T = decltype(type);
                move_column(batch, static_cast<const T*>(column.input), static_cast<T*>(column.output), first, arguments.turns, count, places);
            });
        }
        for (u32 partition = threadIdx.x; partition < partitions; partition += blockDim.x) {
            const u32 place_behind = partition + 1 < partitions ? batch.starts[partition + 1] : count;
            batch.next[partition] += place_behind - batch.starts[partition];
        }
        // The counters have been read before the next batch clears them.
        __syncthreads();
    }
}

}  // namespace overspill
