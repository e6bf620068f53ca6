// Hierarchical: full buffers of the scratchpad are evicted to larger ones in GPU memory, which leave for CPU memory in long
// runs, outside of any lock (paper 1, section 4.3).
#pragma once

#include "write_combining.cuh"

namespace overspill {

template <typename Key, int Payloads>
struct GpuMemoryLevel {
    const PartitionArguments& arguments;
    const WriteCombiningBuffers<Key, Payloads>& buffers;
    // The second-level buffer that each partition fills: an index among the block's fanout + warps.
    u32* owned;
    // The buffer that this warp swaps in when one is full.
    u32 spare;
    // What `take` leaves for `after_release`: a full second-level buffer, from `flush_slot` on.
    u32 flush_slot;
    u32 flush_count;
    u64 flush_position;

    __device__ __forceinline__ ColumnBuffer<Key, Payloads> second_level(u32 index) const {
        const u64 buffers_of_block = (1u << arguments.radix_bits) + blockDim.x / kWarp;
        const u64 bytes = arguments.second_level_tuples * tuple_bytes<Key, Payloads>(arguments);
        return ColumnBuffer<Key, Payloads>{static_cast<unsigned char*>(arguments.second_level) + (blockIdx.x * buffers_of_block + index) * bytes,
                                           arguments.second_level_tuples};
    }

    // The first slot of a second-level buffer that the block fills, in the window that ends before position `end`.
    __device__ __forceinline__ u64 window_start(u32 partition, u64 end) const {
        const u64 window = (end - 1) / arguments.second_level_tuples * arguments.second_level_tuples;
        const u64 block_start = buffers.start(arguments, partition);
        return block_start > window ? block_start : window;
    }

    __device__ __forceinline__ void take(u32 partition, u64 position, u32 slot, u32 count) {
        const u32 capacity = arguments.second_level_tuples;
        const u32 filling = owned[partition];
        buffers.buffer(arguments, partition).move_to(arguments, slot, second_level(filling), position % capacity, count);
        const u64 end = position + count;
        flush_count = 0;
        if (end % capacity != 0) return;
        flush_position = window_start(partition, end);
        flush_slot = static_cast<u32>(flush_position % capacity);
        flush_count = static_cast<u32>(end - flush_position);
        // All lanes have read which buffer was filling before it changes. From here on the full one is this warp's own.
        __syncwarp(kFullMask);
        if (lane_index() == 0) owned[partition] = spare;
        spare = filling;
    }

    __device__ __forceinline__ void after_release() {
        if (flush_count == 0) return;
        second_level(spare).flush_to_output(arguments, flush_slot, flush_position, flush_count);
        // All lanes have read the buffer before it is filled again.
        __syncwarp(kFullMask);
    }

    __device__ __forceinline__ void finish(u32 partition, u64 position, u32 slot, u32 count) const {
        const u64 end = position + count;
        if (end == buffers.start(arguments, partition)) return;
        const u64 start = window_start(partition, end);
        // A window that has left already is followed by nothing.
        if (count == 0 && end % arguments.second_level_tuples == 0) return;
        const auto buffer = second_level(owned[partition]);
        buffers.buffer(arguments, partition).move_to(arguments, slot, buffer, position % arguments.second_level_tuples, count);
        __syncwarp(kFullMask);
        buffer.flush_to_output(arguments, start % arguments.second_level_tuples, start, end - start);
    }
};

// Scratchpad: 12 bytes a partition, a buffer of `buffer_tuples` tuples each, and 4 more bytes a partition.
// GPU memory: for each block, fanout + warps buffers of `second_level_tuples` tuples, a multiple of `buffer_tuples`.
template <typename Key, int Payloads>
__device__ __forceinline__ void partition_hierarchical(const PartitionArguments& arguments) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    const u32 fanout = 1u << arguments.radix_bits;
    const auto buffers = WriteCombiningBuffers<Key, Payloads>::in(scratchpad, fanout);
    auto* owned = reinterpret_cast<u32*>(buffers.buffers + fanout * arguments.buffer_tuples * tuple_bytes<Key, Payloads>(arguments));
    for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) owned[partition] = partition;
    buffers.initialise(arguments);
    GpuMemoryLevel<Key, Payloads> level{arguments, buffers, owned, fanout + warp_index(), 0, 0, 0};
    fill_and_flush<Key, Payloads>(arguments, buffers, level);
}

}  // namespace overspill
