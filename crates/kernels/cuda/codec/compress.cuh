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
    u32 begins = 0, heads = 0;
    for (u32 at = 0; at < kPerThread && begin + at < count; ++at) {
        own[at] = values[begin + at];
        const bool is_head = begin + at == 0 || own[at] != (at == 0 ? values[begin - 1] : own[at - 1]);
        begins |= static_cast<u32>(is_head) << at;
        heads += is_head;
    }
    u32 runs;
    u32 run = block_exclusive_sum(heads, runs);
    for (u32 at = 0; at < kPerThread; ++at) {
        if (begins >> at & 1) {
            values[run] = own[at];
            // Where it begins, until all do.
            lengths[run++] = static_cast<u16>(begin + at);
        }
    }
    __syncthreads();
    u16 own_lengths[kPerThread];
    for (u32 at = 0; at < kPerThread && begin + at < runs; ++at) {
        const u32 end = begin + at + 1 < runs ? lengths[begin + at + 1] : count;
        own_lengths[at] = static_cast<u16>(end - lengths[begin + at]);
    }
    __syncthreads();
    for (u32 at = 0; at < kPerThread && begin + at < runs; ++at) lengths[begin + at] = own_lengths[at];
    return runs;
}

// Replaces values by the differences of neighbours: one fewer. Returns the first value.
template <typename T>
__device__ __forceinline__ u64 find_differences(T* values, u32 count) {
    const u32 begin = threadIdx.x * kPerThread;
    const u64 first = count == 0 ? 0 : values[0];
    T own[kPerThread];
    for (u32 at = 0; at < kPerThread && begin + at + 1 < count; ++at) {
        own[at] = static_cast<T>(values[begin + at + 1] - values[begin + at]);
    }
    __syncthreads();
    for (u32 at = 0; at < kPerThread && begin + at + 1 < count; ++at) values[begin + at] = own[at];
    __syncthreads();
    return first;
}

// The frame of an array. All threads get it.
template <typename T>
__device__ __forceinline__ PackedFrame find_frame(const T* values, u32 count, bool is_signed) {
    __shared__ u64 extremes[1 + kPackedBlocks];
    const T flip = is_signed ? static_cast<T>(u64{1} << (sizeof(T) * 8 - 1)) : T{0};
    u64 least = ~u64{0}, most[kPackedBlocks];
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        most[block] = 0;
        const u32 integers = integers_of_block(count, block);
        for (u32 at = threadIdx.x; at < integers; at += blockDim.x) {
            const u64 value = static_cast<T>(values[block * kPackedBlock + at] ^ flip);
            least = smaller(least, value);
            if (most[block] < value) most[block] = value;
        }
    }
    least = block_combine(least, [](u64 one, u64 other) { return smaller(one, other); });
    if (threadIdx.x == 0) extremes[0] = least;
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        const u64 greatest = block_combine(most[block], [](u64 one, u64 other) { return one < other ? other : one; });
        if (threadIdx.x == 0) extremes[1 + block] = greatest;
    }
    __syncthreads();
    PackedFrame frame;
    frame.least = count == 0 ? 0 : static_cast<T>(static_cast<T>(extremes[0]) ^ flip);
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        const u64 range = integers_of_block(count, block) == 0 ? 0 : extremes[1 + block] - extremes[0];
        frame.widths[block] = range == 0 ? 0 : 64 - __clzll(static_cast<s64>(range));
    }
    // The next call writes them after a barrier.
    return frame;
}

// Writes a packed array.
template <typename T>
__device__ __forceinline__ void pack(const T* values, const PackedFrame& frame, u32 count, u64* to) {
    using Lanes = FastLanes<T>;
    for (u32 block = 0; block < kPackedBlocks; ++block) {
        const u32 integers = integers_of_block(count, block), width = frame.widths[block];
        const T* own = values + block * kPackedBlock;
        const u64 mask = width == 0 ? 0 : ~u64{0} >> (64 - width);
        const auto offset = [&](u32 number) { return (static_cast<u64>(own[number]) - frame.least) & mask; };
        if (integers == kPackedBlock) {
            T* lanes = reinterpret_cast<T*>(to);
            for (u32 word = threadIdx.x; word < width * Lanes::kLanes; word += blockDim.x) {
                const u32 lane = word % Lanes::kLanes, first_bit = word / Lanes::kLanes * Lanes::kBits;
                u64 bits = 0;
                for (u32 row = first_bit / width; row * width < first_bit + Lanes::kBits; ++row) {
                    const u64 value = offset(Lanes::number(row, lane));
                    const u32 bit = row * width;
                    bits |= bit >= first_bit ? value << (bit - first_bit) : value >> (first_bit - bit);
                }
                lanes[word] = static_cast<T>(bits);
            }
        } else {
            for (u32 word = threadIdx.x; word < packed_words(integers, width); word += blockDim.x) {
                const u32 first_bit = word * 64;
                u64 bits = 0;
                for (u32 number = first_bit / width; number < integers && number * width < first_bit + 64; ++number) {
                    const u64 value = offset(number);
                    const u32 bit = number * width;
                    bits |= bit >= first_bit ? value << (bit - first_bit) : value >> (first_bit - bit);
                }
                to[word] = bits;
            }
        }
        to += packed_words(integers, width);
    }
}

// The upper half of a word that describes an array.
__device__ __forceinline__ u64 widths_word(const PackedFrame& frame) {
    u64 word = 0;
    for (u32 block = 0; block < kPackedBlocks; ++block) word |= static_cast<u64>(frame.widths[block]) << (32 + 8 * block);
    return word;
}

template <typename T>
__device__ __forceinline__ void compress_chunk(const ChunkTask& task, T* values, u16* lengths) {
    const T* from = static_cast<const T*>(task.from);
    u64* to = static_cast<u64*>(task.to);
    for (u32 at = threadIdx.x; at < task.integers; at += blockDim.x) values[at] = from[at];
    __syncthreads();
    u32 count = task.integers, run_counts[2] = {0, 0};
    u64 firsts[2] = {0, 0};
    for (u32 round = 0; round < 2; ++round) {
        if (round < task.runs) {
            count = find_runs(values, lengths + round * kChunk, count);
            run_counts[round] = count;
        }
        if (round < task.deltas) {
            firsts[round] = find_differences(values, count);
            count = count == 0 ? 0 : count - 1;
        }
    }
    const PackedFrame frame = find_frame(values, count, task.detail != 0 || task.deltas > 0);
    const u32 head_words = 2 + task.runs + task.deltas;
    u32 words = head_words + packed_words(frame, count);
    PackedFrame run_frames[2];
    for (u32 round = 0; round < task.runs; ++round) {
        run_frames[round] = find_frame(lengths + round * kChunk, run_counts[round], false);
        words += packed_words(run_frames[round], run_counts[round]);
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
        for (u32 at = threadIdx.x; at < task.integers; at += blockDim.x) raw[at] = from[at];
        return;
    }
    if (threadIdx.x == 0) {
        to[0] = 1 | widths_word(frame);
        for (u32 round = 0; round < task.runs; ++round) {
            to[1 + round] = run_counts[round] | (run_frames[round].least << 16) | widths_word(run_frames[round]);
        }
        to[1 + task.runs] = frame.least;
        for (u32 round = 0; round < task.deltas; ++round) to[2 + task.runs + round] = firsts[round];
        *static_cast<u32*>(task.result) = words;
    }
    u64* packed = to + head_words;
    pack(values, frame, count, packed);
    packed += packed_words(frame, count);
    for (u32 round = 0; round < task.runs; ++round) {
        pack(lengths + round * kChunk, run_frames[round], run_counts[round], packed);
        packed += packed_words(run_frames[round], run_counts[round]);
    }
}

// Bytes of scratchpad memory that compressing takes: the values, and the lengths of two layers of runs.
template <typename T>
constexpr u32 compress_scratchpad() {
    return kChunk * (sizeof(T) + 2 * sizeof(u16));
}

// One block a chunk, grid stride. Each has `compress_scratchpad` bytes.
template <typename T>
__device__ __forceinline__ void compress_chunks(const ChunkTask* tasks, u64 chunks) {
    OVERSPILL_DYNAMIC_SHARED(scratchpad);
    T* values = reinterpret_cast<T*>(scratchpad);
    u16* lengths = reinterpret_cast<u16*>(values + kChunk);
    for (u64 number = blockIdx.x; number < chunks; number += gridDim.x) {
        compress_chunk<T>(tasks[number], values, lengths);
        // The arrays are read before the next chunk writes them.
        __syncthreads();
    }
}

// Puts columns together of compressed chunks: the head, the ends of chunks, the chunks one after the other, the checksum. One block a
// column, grid stride.
__device__ __forceinline__ void assemble_columns(const ColumnTask* tasks, u64 columns) {
    constexpr u32 kHeadWords = 3;
    for (u64 number = blockIdx.x; number < columns; number += gridDim.x) {
        const ColumnTask task = tasks[number];
        const u64 table_words = (task.chunks + 1) / 2;
        u32* table = reinterpret_cast<u32*>(task.to + kHeadWords);
        u64* body = task.to + kHeadWords + table_words;
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
        u64 sum = 0;
        for (u64 chunk = 0; chunk < task.chunks; ++chunk) {
            const u64 begin = chunk == 0 ? 0 : table[chunk - 1], size = table[chunk] - begin;
            const u64* from = task.slots + chunk * task.slot_words;
            for (u64 at = threadIdx.x; at < size; at += blockDim.x) {
                body[begin + at] = from[at];
                sum += checksum_part(from[at], kHeadWords + table_words + begin + at);
            }
        }
        for (u64 at = threadIdx.x; at < table_words; at += blockDim.x) {
            sum += checksum_part(task.to[kHeadWords + at], kHeadWords + at);
        }
        if (threadIdx.x < 2) sum += checksum_part(task.to[threadIdx.x], threadIdx.x);
        sum = block_combine(sum, [](u64 one, u64 other) { return one + other; });
        if (threadIdx.x == 0) {
            task.to[2] = sum;
            *task.words = kHeadWords + table_words + end;
        }
    }
}

}  // namespace overspill
