// Software write-combining in buffers that all warps of a block share (paper 1, section 4.2).
#pragma once

#include "arguments.cuh"

namespace overspill {

// One buffer a partition in scratchpad memory, with its state.
//
// A buffer is a window on the output: slot s holds the tuple for a position that is s modulo the buffer's tuples, which
// are a whole number of lines. So whatever leaves is aligned, and only the first and the last window of a block in a
// partition are not whole.
//
// `fill` counts the slots that have been given out. Who draws a slot below the buffer's tuples owns it. Who draws the
// first one past the end holds the lock of the full buffer. Who draws a later one tries again.
//
// Scratchpad: kStateBytes a partition, then the buffers.
template <typename Key, int Payloads>
struct WriteCombiningBuffers {
    static constexpr u32 kStateBytes = 12;

    u32* fill;
    // Slots whose tuple is there. A buffer is handed on when all are.
    u32* written;
    // Tuples that have left the buffer, counted from the block's start in the partition.
    u32* left;
    unsigned char* buffers;

    __device__ __forceinline__ static WriteCombiningBuffers in(unsigned char* scratchpad, u32 fanout) {
        auto* words = reinterpret_cast<u32*>(scratchpad);
        return WriteCombiningBuffers{words, words + fanout, words + 2 * fanout, scratchpad + (kStateBytes * fanout + 15) / 16 * 16};
    }

    __device__ __forceinline__ ColumnBuffer<Key, Payloads> buffer(const PartitionArguments& arguments, u32 partition) const {
        return ColumnBuffer<Key, Payloads>{buffers + partition * arguments.buffer_tuples * tuple_bytes<Key, Payloads>(arguments),
                                           arguments.buffer_tuples};
    }

    // Where the block's tuples of the partition start in the output.
    __device__ __forceinline__ static u64 start(const PartitionArguments& arguments, u32 partition) {
        return arguments.offsets[static_cast<u64>(partition) * gridDim.x + blockIdx.x];
    }

    // Where the next tuple that leaves the buffer belongs.
    __device__ __forceinline__ u64 position(const PartitionArguments& arguments, u32 partition) const {
        return start(arguments, partition) + left[partition];
    }

    __device__ __forceinline__ void initialise(const PartitionArguments& arguments) const {
        const u32 fanout = 1u << arguments.radix_bits;
        for (u32 partition = threadIdx.x; partition < fanout; partition += blockDim.x) {
            const u32 first_slot = static_cast<u32>(start(arguments, partition) % arguments.buffer_tuples);
            fill[partition] = first_slot;
            written[partition] = first_slot;
            left[partition] = 0;
        }
        __syncthreads();
    }
};

// Partitions the block's chunk. `Level` says what becomes of a full buffer:
//   take(partition, position, slot, count)  copies `count` tuples out of the buffer, by one warp that holds its lock
//   after_release()                         what the warp still has to do once others may fill the buffer again
//   finish(partition, position, slot, count)  writes the last tuples of a partition
template <typename Key, int Payloads, typename Level>
__device__ __forceinline__ void fill_and_flush(const PartitionArguments& arguments, const WriteCombiningBuffers<Key, Payloads>& buffers, Level& level) {
    const u32 capacity = arguments.buffer_tuples;
    const Chunk chunk = chunk_of_block(arguments.tuples, arguments.chunk);
    // A warp goes its own way: it waits only for warps that are between drawing a slot and writing it.
    for (u64 first = chunk.begin + warp_index() * kWarp; first < chunk.end; first += blockDim.x) {
        const u64 at = first + lane_index();
        bool done = at >= chunk.end;
        Tuple<Key, Payloads> tuple = {};
        u32 partition = 0;
        if (!done) {
            tuple = Tuple<Key, Payloads>::load(arguments, at);
            partition = tuple.partition(arguments);
        }
        while (true) {
            u32 slot = 0;
            if (!done) {
                slot = ScratchpadAtomic(buffers.fill[partition]).fetch_add(1, cuda::memory_order_acquire);
                if (slot < capacity) {
                    buffers.buffer(arguments, partition).put(arguments, slot, tuple);
                    ScratchpadAtomic(buffers.written[partition]).fetch_add(1, cuda::memory_order_release);
                    done = true;
                }
            }
            const bool locked = !done && slot == capacity;
            const u32 lockers = __ballot_sync(kFullMask, locked);
            if (lockers == 0) {
                if (__all_sync(kFullMask, done)) break;
                __nanosleep(32);
                continue;
            }
            const u32 leader = __ffs(static_cast<int>(lockers)) - 1;
            // The others let go at once, so that other warps can flush their buffers meanwhile.
            if (locked && lane_index() != leader) {
                ScratchpadAtomic(buffers.fill[partition]).store(capacity, cuda::memory_order_release);
            }
            const u32 full = __shfl_sync(kFullMask, partition, leader);
            if (lane_index() == leader) {
                while (ScratchpadAtomic(buffers.written[full]).load(cuda::memory_order_acquire) != capacity) __nanosleep(32);
            }
            // What the leader has seen, all lanes see.
            __syncwarp(kFullMask);
            const u64 position = buffers.position(arguments, full);
            const u32 slot_of_first = static_cast<u32>(position % capacity);
            level.take(full, position, slot_of_first, capacity - slot_of_first);
            // All lanes have read the buffer before anyone may fill it again.
            __syncwarp(kFullMask);
            if (lane_index() == leader) {
                buffers.left[full] += capacity - slot_of_first;
                ScratchpadAtomic(buffers.written[full]).store(0, cuda::memory_order_relaxed);
                ScratchpadAtomic(buffers.fill[full]).store(0, cuda::memory_order_release);
            }
            level.after_release();
        }
    }
    __syncthreads();
    const u32 fanout = 1u << arguments.radix_bits;
    for (u32 partition = warp_index(); partition < fanout; partition += blockDim.x / kWarp) {
        const u64 position = buffers.position(arguments, partition);
        const u32 slot_of_first = static_cast<u32>(position % capacity);
        level.finish(partition, position, slot_of_first, buffers.fill[partition] - slot_of_first);
    }
}

}  // namespace overspill
