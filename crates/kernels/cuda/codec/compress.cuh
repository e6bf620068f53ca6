// Compresses chunks: all layers of all columns in one launch, a block of threads a chunk (paper 4, section 4). What lies between layers
// stays in scratchpad memory. The words are those that the CPU writes.
#pragma once

#include "../scan.cuh"
#include "arguments.cuh"

namespace overspill {

// Replaces values by one of each run, and writes the lengths of runs, which other threads may read after a barrier. Returns the number of
// runs.
template <typename T>
__device__ __forceinline__ u32 find_runs(T* values, u16* lengths, u32 count) {
    const u32 begin = threadIdx.x * kPerThread;
    T own[kPerThread];
    T before = begin > 0 && begin < count ? values[place_of(begin - 1)] : T{0};
    u32 begins = 0;
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        own[at] = begin + at < count ? values[own_place() + at] : T{0};
        const bool is_head = begin + at < count && (begin + at == 0 || own[at] != before);
        begins |= static_cast<u32>(is_head) << at;
        before = own[at];
    }
    u32 runs;
    u32 run = block_exclusive_sum<u32>(__popc(begins), runs);
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        if (begins >> at & 1) {
            values[place_of(run)] = own[at];
            // Where it begins, until all do.
            lengths[place_of(run++)] = static_cast<u16>(begin + at);
        }
    }
    __syncthreads();
    u16 own_lengths[kPerThread];
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        if (begin + at < runs) {
            const u32 end = begin + at + 1 < runs ? lengths[place_of(begin + at + 1)] : count;
            own_lengths[at] = static_cast<u16>(end - lengths[own_place() + at]);
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        if (begin + at < runs) lengths[own_place() + at] = own_lengths[at];
    }
    return runs;
}

// Replaces values by the differences of neighbours: one fewer. Returns the first value.
template <typename T>
__device__ __forceinline__ u64 find_differences(T* values, u32 count) {
    const u32 begin = threadIdx.x * kPerThread;
    const u64 first = count == 0 ? 0 : values[0];
    T own[kPerThread];
    T before = begin < count ? values[own_place()] : T{0};
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        const T after = begin + at + 1 < count ? values[place_of(begin + at + 1)] : T{0};
        own[at] = static_cast<T>(after - before);
        before = after;
    }
    __syncthreads();
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        if (begin + at + 1 < count) values[own_place() + at] = own[at];
    }
    __syncthreads();
    return first;
}

// Arrays of a chunk that are packed.
constexpr u32 kArrays = 3;

// The least and the greatest integers that warps have found in arrays.
struct Extremes {
    u64 least[kArrays][kCodecThreads / kWarp];
    u64 most[kArrays][kCodecThreads / kWarp];
};

// The frame of the array of this number. All threads get it. Other threads write `extremes` of another array without waiting.
template <typename T>
__device__ __forceinline__ PackedFrame find_frame(const T* values, u32 count, bool is_signed, Extremes& extremes, u32 array) {
    const T flip = is_signed ? static_cast<T>(u64{1} << (sizeof(T) * 8 - 1)) : T{0};
    u64 least = ~u64{0}, most = 0;
    const u32 first = threadIdx.x / kPackingThreads * kPackedBlock + threadIdx.x % kPackingThreads;
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        const u32 number = first + at * kPackingThreads;
        if (number < count) {
            const u64 value = static_cast<T>(values[place_of(number)] ^ flip);
            least = smaller(least, value);
            if (most < value) most = value;
        }
    }
#pragma unroll
    for (u32 distance = kWarp / 2; distance > 0; distance /= 2) {
        least = smaller(least, __shfl_xor_sync(kFullMask, least, distance));
        const u64 other = __shfl_xor_sync(kFullMask, most, distance);
        if (most < other) most = other;
    }
    if (lane_index() == 0) {
        extremes.least[array][warp_index()] = least;
        extremes.most[array][warp_index()] = most;
    }
    __syncthreads();
    constexpr u32 kWarps = kCodecThreads / kWarp, kWarpsOfBlock = kWarps / kPackedBlocks;
#pragma unroll
    for (u32 warp = 0; warp < kWarps; ++warp) least = smaller(least, extremes.least[array][warp]);
    PackedFrame frame;
    frame.least = count == 0 ? 0 : static_cast<T>(static_cast<T>(least) ^ flip);
#pragma unroll
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        u64 greatest = 0;
#pragma unroll
        for (u32 warp = 0; warp < kWarpsOfBlock; ++warp) {
            const u64 other = extremes.most[array][block * kWarpsOfBlock + warp];
            if (greatest < other) greatest = other;
        }
        const u64 range = integers_of_block(count, block) == 0 ? 0 : greatest - least;
        frame.widths[block] = range == 0 ? 0 : 64 - __clzll(static_cast<s64>(range));
    }
    return frame;
}

// `bits` bits of a packed block from `first_bit` on. `offset` gives an integer of the block by its number, of `width` bits.
template <typename Offset>
__device__ __forceinline__ u64 packed_bits(u32 first_bit, u32 bits, u32 width, u32 integers, Offset&& offset) {
    u64 packed = 0;
    u32 number = first_bit / width;
    for (u32 bit = number * width; bit < first_bit + bits && number < integers; bit += width, ++number) {
        const u64 value = offset(number);
        packed |= bit >= first_bit ? value << (bit - first_bit) : value >> (first_bit - bit);
    }
    return packed;
}

// Writes a packed array: its whole blocks, to whose words threads go together, and what is left.
template <typename T>
__device__ __forceinline__ void pack(const T* values, const PackedFrame& frame, u32 count, u64* to) {
    using Lanes = FastLanes<T>;
    const u32 blocks = count / kPackedBlock;
    u32 words = 0;
#pragma unroll
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        if (block < blocks) words += frame.widths[block] * Lanes::kLanes;
    }
    T* lanes = reinterpret_cast<T*>(to);
    for (u32 word = threadIdx.x; word < words; word += kCodecThreads) {
        u32 first = 0, begin = 0, width = frame.widths[0], end = width * Lanes::kLanes;
#pragma unroll
        for (u32 block = 1; block < kPackedBlocks; ++block) {
            if (word >= end) {
                first = block * kPackedBlock;
                begin = end;
                width = frame.widths[block];
                end += width * Lanes::kLanes;
            }
        }
        const u32 lane = (word - begin) % Lanes::kLanes, first_bit = (word - begin) / Lanes::kLanes * Lanes::kBits;
        const u64 mask = ~u64{0} >> (64 - width);
        lanes[word] = static_cast<T>(packed_bits(first_bit, Lanes::kBits, width, Lanes::kBits, [&](u32 row) {
            return (static_cast<u64>(values[place_of(first + Lanes::number(row, lane))]) - frame.least) & mask;
        }));
    }
    to += words * sizeof(T) / 8;
    u32 width = 0;
#pragma unroll
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        if (block == blocks) width = frame.widths[block];
    }
    const u32 first = blocks * kPackedBlock, integers = count - first;
    const u64 mask = width == 0 ? 0 : ~u64{0} >> (64 - width);
    for (u32 word = threadIdx.x; word < packed_words(integers, width); word += kCodecThreads) {
        to[word] = packed_bits(word * 64, 64, width, integers, [&](u32 number) {
            return (static_cast<u64>(values[place_of(first + number)]) - frame.least) & mask;
        });
    }
}

// The upper half of a word that describes an array.
__device__ __forceinline__ u64 widths_word(const PackedFrame& frame) {
    u64 word = 0;
    for (u32 block = 0; block < kPackedBlocks; ++block) word |= static_cast<u64>(frame.widths[block]) << (32 + 8 * block);
    return word;
}

template <typename T>
__device__ __forceinline__ void compress_chunk(const ChunkTask& task, T* values, u16* lengths, Extremes& extremes) {
    const T* from = static_cast<const T*>(task.from);
    u64* to = static_cast<u64*>(task.to);
    // All of them are asked for before the first is awaited.
#pragma unroll
    for (u32 at = 0; at < kPerThread; ++at) {
        const u32 number = at * kCodecThreads + threadIdx.x;
        if (number < task.integers) values[place_of(number)] = from[number];
    }
    __syncthreads();
    u32 count = task.integers, run_counts[2] = {0, 0};
    u64 firsts[2] = {0, 0};
#pragma unroll
    for (u32 round = 0; round < 2; ++round) {
        if (round < task.runs) {
            count = find_runs(values, lengths + round * kPlaces, count);
            run_counts[round] = count;
        }
        if (round < task.deltas) {
            firsts[round] = find_differences(values, count);
            count = count == 0 ? 0 : count - 1;
        }
    }
    const PackedFrame frame = find_frame(values, count, task.detail != 0 || task.deltas > 0, extremes, 0);
    const u32 head_words = 2 + task.runs + task.deltas;
    u32 words = head_words + packed_words(frame, count);
    PackedFrame run_frames[2];
#pragma unroll
    for (u32 round = 0; round < 2; ++round) {
        if (round < task.runs) {
            run_frames[round] = find_frame(lengths + round * kPlaces, run_counts[round], false, extremes, 1 + round);
            words += packed_words(run_frames[round], run_counts[round]);
        }
    }
    const u32 raw_words = 1 + (task.integers * sizeof(T) + 7) / 8;
    if (words >= raw_words) {
        if (threadIdx.x == 0) {
            to[0] = 0;
            // What its integers do not fill.
            to[raw_words - 1] = 0;
            *static_cast<u32*>(task.result) = raw_words;
        }
        __syncthreads();
        T* raw = reinterpret_cast<T*>(to + 1);
        for (u32 at = threadIdx.x; at < task.integers; at += kCodecThreads) raw[at] = from[at];
        return;
    }
    if (threadIdx.x == 0) {
        to[0] = 1 | widths_word(frame);
#pragma unroll
        for (u32 round = 0; round < 2; ++round) {
            if (round < task.runs) to[1 + round] = run_counts[round] | (run_frames[round].least << 16) | widths_word(run_frames[round]);
            if (round < task.deltas) to[2 + task.runs + round] = firsts[round];
        }
        to[1 + task.runs] = frame.least;
        *static_cast<u32*>(task.result) = words;
    }
    u64* packed = to + head_words;
    pack(values, frame, count, packed);
    packed += packed_words(frame, count);
#pragma unroll
    for (u32 round = 0; round < 2; ++round) {
        if (round < task.runs) {
            pack(lengths + round * kPlaces, run_frames[round], run_counts[round], packed);
            packed += packed_words(run_frames[round], run_counts[round]);
        }
    }
}

// Bytes of scratchpad memory that compressing takes: the values, and the lengths of two layers of runs.
template <typename T>
constexpr u32 compress_scratchpad() {
    return kPlaces * (sizeof(T) + 2 * sizeof(u16));
}

// One block a chunk, grid stride. Each has `compress_scratchpad` bytes.
template <typename T>
__device__ __forceinline__ void compress_chunks(const ChunkTask* tasks, u64 chunks) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    T* values = reinterpret_cast<T*>(scratchpad);
    u16* lengths = reinterpret_cast<u16*>(values + kPlaces);
    __shared__ Extremes extremes;
    for (u64 number = blockIdx.x; number < chunks; number += gridDim.x) {
        const ChunkTask task = tasks[number];
        compress_chunk<T>(task, values, lengths, extremes);
        // The arrays are read before the next chunk writes them.
        __syncthreads();
    }
}

// Writes what precedes the chunks of columns: the head, the table of where chunks end, and their part of the checksum. One block a
// column, grid stride.
__device__ __forceinline__ void begin_columns(const ColumnTask* tasks, u64 columns) {
    for (u64 number = blockIdx.x; number < columns; number += gridDim.x) {
        const ColumnTask task = tasks[number];
        const u64 table_words = (task.chunks + 1) / 2;
        u32* table = reinterpret_cast<u32*>(task.to + kHeadWords);
        u64 end = 0;
        for (u64 first = 0; first < task.chunks; first += blockDim.x) {
            const u64 chunk = first + threadIdx.x;
            const u64 size = chunk < task.chunks ? task.sizes[chunk] : 0;
            u64 all;
            const u64 before = block_exclusive_sum(size, all);
            if (chunk < task.chunks) table[chunk] = static_cast<u32>(end + before + size);
            end += all;
        }
        if (threadIdx.x == 0) {
            task.to[0] = task.head;
            task.to[1] = task.integers;
            if (task.chunks % 2 == 1) table[task.chunks] = 0;
        }
        __syncthreads();
        u64 sum = threadIdx.x < 2 ? checksum_part(task.to[threadIdx.x], threadIdx.x) : 0;
        for (u64 at = threadIdx.x; at < table_words; at += blockDim.x) {
            sum += checksum_part(task.to[kHeadWords + at], kHeadWords + at);
        }
        sum = block_combine(sum, [](u64 one, u64 other) { return one + other; });
        if (threadIdx.x == 0) {
            task.to[2] = sum;
            *task.words = kHeadWords + table_words + end;
        }
    }
}

// Moves compressed chunks to their columns, after `begin_columns`, and adds their parts to the checksums. One block a chunk, grid stride.
__device__ __forceinline__ void gather_chunks(const ColumnTask* tasks, u64 columns, u64 chunks) {
    for (u64 number = blockIdx.x; number < chunks; number += gridDim.x) {
        // The last column that does not begin after the chunk.
        u64 low = 0, high = columns;
        while (high - low > 1) {
            const u64 middle = (low + high) / 2;
            if (tasks[middle].first_chunk <= number) {
                low = middle;
            } else {
                high = middle;
            }
        }
        const ColumnTask task = tasks[low];
        const u64 chunk = number - task.first_chunk, head_words = kHeadWords + (task.chunks + 1) / 2;
        const u32* table = reinterpret_cast<const u32*>(task.to + kHeadWords);
        const u64 begin = head_words + (chunk == 0 ? 0 : table[chunk - 1]), end = head_words + table[chunk];
        const u64* from = task.slots + chunk * task.slot_words;
        u64 sum = 0;
        for (u64 at = begin + threadIdx.x; at < end; at += blockDim.x) {
            const u64 word = from[at - begin];
            task.to[at] = word;
            sum += checksum_part(word, at);
        }
        sum = block_combine(sum, [](u64 one, u64 other) { return one + other; });
        if (threadIdx.x == 0) atomicAdd(task.to + 2, sum);
    }
}

}  // namespace overspill
