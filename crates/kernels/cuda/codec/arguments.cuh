// What kernels of cascaded compression are given. docs/codec.md specifies the bytes.
#pragma once

#include "../platform.cuh"

namespace overspill {

// Integers of a chunk, and of a block that is packed.
constexpr u32 kChunk = 4096;
constexpr u32 kPackedBlock = 1024;
constexpr u32 kPackedBlocks = kChunk / kPackedBlock;

// Threads of a block.
constexpr u32 kCodecThreads = 256;
// Neighbouring integers of a chunk that one thread holds.
constexpr u32 kPerThread = kChunk / kCodecThreads;
// Threads that share a block that is packed.
constexpr u32 kPackingThreads = kCodecThreads / kPackedBlocks;

// Places of an array of a chunk in scratchpad memory. Behind what each thread holds lies one that is unused: else all threads of a warp
// would ask one bank for their first integers, and wait for each other.
constexpr u32 kPlaces = kChunk + kCodecThreads;
__device__ __forceinline__ u32 place_of(u32 number) { return number + number / kPerThread; }
// Where the integers begin that the calling thread holds.
__device__ __forceinline__ u32 own_place() { return threadIdx.x * (kPerThread + 1); }

// A chunk, which a block of threads compresses or decompresses.
struct ChunkTask {
    // Integers to compress, or words of a compressed chunk.
    const void* from;
    // The other.
    void* to;
    // Of a chunk to compress, where the number of its words goes. Of one to decompress, the two counters of its column: the checksum of
    // its chunks, and how many of them are damaged.
    void* result;
    u32 integers;
    // The number of compressed words, of a chunk to decompress.
    u32 words;
    u32 runs;
    u32 deltas;
    // Of a chunk to compress, whether the least integer is that of signed ones. Of one to decompress, its first word's place in the column.
    u64 detail;
};

// A column to put together of compressed chunks.
struct ColumnTask {
    u64* to;
    // Compressed chunks, `slot_words` apart, and their numbers of words.
    const u64* slots;
    const u32* sizes;
    u64 slot_words;
    // How many chunks the columns before it have, and how many it has.
    u64 first_chunk;
    u64 chunks;
    // The first word, and the number of integers.
    u64 head;
    u64 integers;
    // Where the number of words of the column goes.
    u64* words;
};

// Words of a column before the table of its chunks.
constexpr u32 kHeadWords = 3;

// The part of a word in the checksum, by its place in the column.
__device__ __forceinline__ u64 checksum_part(u64 word, u64 place) {
    u64 mixed = word + 0x9E3779B97F4A7C15ull * place;
    mixed = (mixed ^ mixed >> 32) * 0x9FB21C651E98DF25ull;
    return mixed ^ mixed >> 29;
}

// The least integer of an array, and how many bits those of each block need beyond it.
struct PackedFrame {
    u64 least;
    u32 widths[kPackedBlocks];
};

// Words of 8 bytes of some packed integers.
__device__ __forceinline__ u32 packed_words(u32 integers, u32 width) { return (integers * width + 63) / 64; }

// Integers of a block of an array.
__device__ __forceinline__ u32 integers_of_block(u32 count, u32 block) {
    return count > block * kPackedBlock ? smaller(count - block * kPackedBlock, kPackedBlock) : 0;
}

// Words of 8 bytes of a packed array.
__device__ __forceinline__ u32 packed_words(const PackedFrame& frame, u32 count) {
    u32 words = 0;
    for (u32 block = 0; block < kPackedBlocks; ++block) words += packed_words(integers_of_block(count, block), frame.widths[block]);
    return words;
}

// Where the order of FastLanes has an integer of a block: the row and the lane of its number. `T` has as many lanes as fit 1,024 bits.
template <typename T>
struct FastLanes {
    static constexpr u32 kBits = sizeof(T) * 8;
    static constexpr u32 kLanes = kPackedBlock / kBits;

    static __device__ __forceinline__ u32 reversed(u32 three_bits) {
        return (three_bits & 1) << 2 | (three_bits & 2) | three_bits >> 2;
    }
    static __device__ __forceinline__ u32 row(u32 number) {
        const u32 group = number % 128 / kLanes * (kLanes / 16);
        return reversed(group) * 8 + number / 128;
    }
    static __device__ __forceinline__ u32 number(u32 row, u32 lane) { return reversed(row / 8) * 16 + row % 8 * 128 + lane; }
};

}  // namespace overspill
