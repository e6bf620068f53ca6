// Decompresses chunks: all layers of all columns in one launch, a block of threads a chunk (paper 4, section 4). What lies between layers
// stays in scratchpad memory. A chunk that is damaged is counted, and nothing beyond its integers is read or written.
#pragma once

#include "../scan.cuh"
#include "arguments.cuh"

namespace overspill {

// Unpacks an array. Other threads may read it after a barrier.
template <typename T>
__device__ __forceinline__ void unpack(const u64* words, const PackedFrame& frame, u32 count, T* values) {
    using Lanes = FastLanes<T>;
#pragma unroll
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        const u32 integers = integers_of_block(count, block), width = frame.widths[block];
        const u64 mask = width == 0 ? 0 : ~u64{0} >> (64 - width);
#pragma unroll
        for (u32 at = 0; at < kPackedBlock / kCodecThreads; ++at) {
            const u32 number = at * kCodecThreads + threadIdx.x;
            if (number >= integers) continue;
            u64 value = 0;
            if (width > 0 && integers == kPackedBlock) {
                const u32 bit = Lanes::row(number) * width, shift = bit % Lanes::kBits;
                const T* lanes = reinterpret_cast<const T*>(words) + bit / Lanes::kBits * Lanes::kLanes + number % Lanes::kLanes;
                value = static_cast<u64>(lanes[0]) >> shift;
                if (shift + width > Lanes::kBits) value |= static_cast<u64>(lanes[Lanes::kLanes]) << (Lanes::kBits - shift);
            } else if (width > 0) {
                const u32 bit = number * width, shift = bit % 64;
                value = words[bit / 64] >> shift;
                if (shift + width > 64) value |= words[bit / 64 + 1] << (64 - shift);
            }
            values[place_of(block * kPackedBlock + number)] = static_cast<T>((value & mask) + frame.least);
        }
        words += packed_words(integers, width);
    }
}

// Undoes delta encoding. `values` has `differences` differences; it gets one value more than that, and `first` is the first.
template <typename T>
__device__ __forceinline__ void sum_up(T* values, u32 differences, u64 first) {
    const u32 begin = threadIdx.x * kPerThread;
    T own[kPerThread];
    T sum = 0;
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        own[at] = begin + at < differences ? values[own_place() + at] : T{0};
        sum = static_cast<T>(sum + own[at]);
    }
    u64 total;
    T value = static_cast<T>(first + block_exclusive_sum<u64>(sum, total));
    if (threadIdx.x == 0) values[0] = static_cast<T>(first);
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        value = static_cast<T>(value + own[at]);
        if (begin + at < differences) values[place_of(begin + at + 1)] = value;
    }
    __syncthreads();
}

// Undoes run-length encoding. `values` has one value of each of `runs` runs; it gets each value as often as the run is long. Returns
// whether that makes `count` values.
template <typename T>
__device__ __forceinline__ bool repeat_runs(T* values, u16* ends, const u64* packed, const PackedFrame& frame, u32 runs, u32 count) {
    const u32 begin = threadIdx.x * kPerThread;
    unpack(packed, frame, runs, ends);
    __syncthreads();
    u32 lengths[kPerThread];
    u32 sum = 0;
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        lengths[at] = begin + at < runs ? ends[own_place() + at] : 0;
        sum += lengths[at];
    }
    u32 total;
    u32 end = block_exclusive_sum(sum, total);
    // All threads see the same total.
    if (total != count) return false;
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        end += lengths[at];
        if (begin + at < runs) ends[own_place() + at] = static_cast<u16>(end);
    }
    __syncthreads();
    T own[kPerThread];
    if (begin < count) {
        // The first run that ends after the thread's first value.
        u32 low = 0, high = runs;
        while (low < high) {
            const u32 middle = (low + high) / 2;
            if (ends[place_of(middle)] <= begin) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        u32 until = ends[place_of(low)];
        T value = values[place_of(low)];
#pragma unroll
        for (u32 at = 0; at < kPerThread; ++at) {
            if (begin + at < count) {
                if (until <= begin + at) {
                    // Runs of no values are none that kernels or the CPU write, but a damaged column may have them.
                    do {
                        until = ends[place_of(++low)];
                    } while (until <= begin + at);
                    value = values[place_of(low)];
                }
                own[at] = value;
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        if (begin + at < count) values[own_place() + at] = own[at];
    }
    __syncthreads();
    return true;
}

// The frame whose widths are the upper half of a word.
template <typename T>
__device__ __forceinline__ bool read_frame(u64 word, u64 least, u32 count, PackedFrame& frame) {
    frame.least = least;
    bool is_possible = true;
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        frame.widths[block] = word >> (32 + 8 * block) & 0xff;
        is_possible &= frame.widths[block] <= (integers_of_block(count, block) == 0 ? 0 : sizeof(T) * 8);
    }
    return is_possible;
}

// Returns whether the chunk is as it should be. All threads return the same.
template <typename T>
__device__ __forceinline__ bool decompress_chunk(const ChunkTask& task, T* values, u16* ends) {
    const u64* words = static_cast<const u64*>(task.from);
    T* to = static_cast<T*>(task.to);
    if (task.words == 0 || task.integers > kChunk) return false;
    const u64 head = words[0];
    if ((head & 0xff) == 0) {
        if (task.words != 1 + (task.integers * sizeof(T) + 7) / 8) return false;
        const T* from = reinterpret_cast<const T*>(words + 1);
        for (u32 at = threadIdx.x; at < task.integers; at += blockDim.x) to[at] = from[at];
        return true;
    }
    const u32 head_words = 2 + task.runs + task.deltas;
    if ((head & 0xffffffff) != 1 || task.words < head_words) return false;
    // The number of values before each layer, and what it is.
    u32 before[4], layers = 0, count = task.integers, run_counts[2] = {0, 0};
    bool is_runs[4];
    for (u32 round = 0; round < 2; ++round) {
        if (round < task.runs) {
            run_counts[round] = words[1 + round] & 0xffff;
            if (run_counts[round] > count) return false;
            is_runs[layers] = true;
            before[layers++] = count;
            count = run_counts[round];
        }
        if (round < task.deltas) {
            is_runs[layers] = false;
            before[layers++] = count;
            count = count == 0 ? 0 : count - 1;
        }
    }
    PackedFrame frame, run_frames[2];
    if (!read_frame<T>(head, words[1 + task.runs], count, frame)) return false;
    const u64* packed = words + head_words;
    const u64* packed_runs[2] = {packed + packed_words(frame, count), packed + packed_words(frame, count)};
    u32 expected = head_words + packed_words(frame, count);
    for (u32 round = 0; round < task.runs; ++round) {
        const u64 word = words[1 + round];
        if (!read_frame<u16>(word, word >> 16 & 0xffff, run_counts[round], run_frames[round])) return false;
        if (round > 0) packed_runs[1] = packed_runs[0] + packed_words(run_frames[0], run_counts[0]);
        expected += packed_words(run_frames[round], run_counts[round]);
    }
    if (expected != task.words) return false;
    unpack(packed, frame, count, values);
    __syncthreads();
    u32 runs = task.runs, deltas = task.deltas;
    while (layers-- > 0) {
        if (is_runs[layers]) {
            --runs;
            if (!repeat_runs(values, ends, packed_runs[runs], run_frames[runs], count, before[layers])) return false;
        } else {
            --deltas;
            if (before[layers] > 0) sum_up(values, count, words[2 + task.runs + deltas]);
        }
        count = before[layers];
    }
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        const u32 number = at * kCodecThreads + threadIdx.x;
        if (number < task.integers) to[number] = values[place_of(number)];
    }
    return true;
}

// One block a chunk, grid stride.
template <typename T>
__device__ __forceinline__ void decompress_chunks(const ChunkTask* tasks, u64 chunks) {
    __shared__ T values[kPlaces];
    __shared__ u16 ends[kPlaces];
    for (u64 number = blockIdx.x; number < chunks; number += gridDim.x) {
        const ChunkTask task = tasks[number];
        const u64* words = static_cast<const u64*>(task.from);
        u64 sum = 0;
        for (u32 at = threadIdx.x; at < task.words; at += blockDim.x) sum += checksum_part(words[at], task.detail + at);
        sum = block_combine(sum, [](u64 one, u64 other) { return one + other; });
        const bool is_sound = decompress_chunk<T>(task, values, ends);
        if (threadIdx.x == 0) {
            u64* counters = static_cast<u64*>(task.result);
            atomicAdd(counters, sum);
            if (!is_sound) atomicAdd(counters + 1, u64{1});
        }
        // The next chunk writes the arrays after its checksum, which all threads compute together.
    }
}

}  // namespace overspill
