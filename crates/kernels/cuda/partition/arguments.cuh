// What the partitioners are given, and what they share.
#pragma once

#include "../flush.cuh"
#include "../hash.cuh"
#include "../platform.cuh"

namespace overspill {

constexpr u32 kMaxPayloads = 4;
constexpr u32 kMaxFanout = 4096;

// A column that moves along with the key. `width` is 4 or 8 bytes. Without an `input` it holds row ids, which are made
// in the pass (paper 1, section 6.2.10).
struct Column {
    const void* input;
    void* output;
    u64 width;
};

// Mirrors `PartitionArguments` of the Rust launchers, which checks the layout when the module is loaded.
struct PartitionArguments {
    u64 tuples;
    // Block b takes tuples [b * chunk, (b + 1) * chunk). A chunk has fewer than 2^32 tuples.
    u64 chunk;
    // The id of the first tuple.
    u64 first_row_id;
    const void* keys;
    void* partitioned_keys;
    // Where the tuples of block b in partition p start: offsets[p * blocks + b].
    const u64* offsets;
    Column payloads[kMaxPayloads];
    // Hierarchical: the second-level buffers, for each block (fanout + warps) of them, in GPU memory.
    void* second_level;
    // Keys are hashed by their distance from this one. Other than 0 only for partitions in the order of keys.
    u64 smallest_key;
    u32 radix_bits;
    u32 radix_shift;
    u32 hash_function;
    // Tuples of a buffer in scratchpad memory, and of one of the second level: powers of two.
    u32 buffer_tuples;
    u32 second_level_tuples;
    u32 padding;

    __device__ __forceinline__ u32 partition(u64 key) const {
        return radix(hash_key(key - smallest_key, hash_function), radix_shift, radix_bits);
    }
};

// The tuples of a block.
struct Chunk {
    u64 begin;
    u64 end;
};

__device__ __forceinline__ Chunk chunk_of_block(u64 tuples, u64 chunk) {
    const u64 begin = smaller(tuples, blockIdx.x * chunk);
    return Chunk{begin, smaller(tuples, begin + chunk)};
}

__device__ __forceinline__ u64 load_value(const void* column, u64 position, u64 width) {
    return width == 8 ? static_cast<const u64*>(column)[position] : static_cast<const u32*>(column)[position];
}

__device__ __forceinline__ void store_value(void* column, u64 position, u64 value, u64 width) {
    if (width == 8) {
        static_cast<u64*>(column)[position] = value;
    } else {
        static_cast<u32*>(column)[position] = static_cast<u32>(value);
    }
}

// A tuple in registers. All of it is read at once, while neighbouring threads read neighbouring tuples.
template <typename Key, int Payloads>
struct Tuple {
    Key key;
    u64 payloads[Payloads == 0 ? 1 : Payloads];

    __device__ __forceinline__ static Tuple load(const PartitionArguments& arguments, u64 position) {
        Tuple tuple;
        tuple.key = static_cast<const Key*>(arguments.keys)[position];
#pragma unroll
        for (int column = 0; column < Payloads; ++column) {
            const Column& payload = arguments.payloads[column];
            tuple.payloads[column] = payload.input == nullptr ? arguments.first_row_id + position : load_value(payload.input, position, payload.width);
        }
        return tuple;
    }

    __device__ __forceinline__ u32 partition(const PartitionArguments& arguments) const {
        return arguments.partition(key);
    }

    // Writes the tuple straight to its place.
    __device__ __forceinline__ void write(const PartitionArguments& arguments, u64 position) const {
        flush_value(arguments.partitioned_keys, position, key, sizeof(Key));
#pragma unroll
        for (int column = 0; column < Payloads; ++column) {
            flush_value(arguments.payloads[column].output, position, payloads[column], arguments.payloads[column].width);
        }
    }
};

// The bytes of one tuple with all its columns.
template <typename Key, int Payloads>
__device__ __forceinline__ u64 tuple_bytes(const PartitionArguments& arguments) {
    u64 bytes = sizeof(Key);
#pragma unroll
    for (int column = 0; column < Payloads; ++column) bytes += arguments.payloads[column].width;
    return bytes;
}

// Tuples column by column: `capacity` keys, then `capacity` values of each payload. Columns of 8 bytes come before those
// of 4 only if the caller orders them so; every column starts at a multiple of 8 as capacities are even.
template <typename Key, int Payloads>
struct ColumnBuffer {
    unsigned char* base;
    u64 capacity;

    __device__ __forceinline__ void* keys() const { return base; }

    __device__ __forceinline__ void* payload(const PartitionArguments& arguments, int column) const {
        u64 offset = capacity * sizeof(Key);
#pragma unroll
        for (int before = 0; before < Payloads; ++before) {
            if (before < column) offset += capacity * arguments.payloads[before].width;
        }
        return base + offset;
    }

    __device__ __forceinline__ void put(const PartitionArguments& arguments, u64 slot, const Tuple<Key, Payloads>& tuple) const {
        static_cast<Key*>(keys())[slot] = tuple.key;
#pragma unroll
        for (int column = 0; column < Payloads; ++column) {
            store_value(payload(arguments, column), slot, tuple.payloads[column], arguments.payloads[column].width);
        }
    }

    // Copies `count` tuples from `slot` on to their place in the output, by one warp.
    __device__ __forceinline__ void flush_to_output(const PartitionArguments& arguments, u64 slot, u64 position, u64 count) const {
        flush(static_cast<Key*>(arguments.partitioned_keys) + position, static_cast<const Key*>(keys()) + slot, count * sizeof(Key), sizeof(Key));
#pragma unroll
        for (int column = 0; column < Payloads; ++column) {
            const u64 width = arguments.payloads[column].width;
            flush(static_cast<unsigned char*>(arguments.payloads[column].output) + position * width,
                  static_cast<const unsigned char*>(payload(arguments, column)) + slot * width, count * width, width);
        }
    }

    // Copies `count` tuples from `slot` on to `other_slot` of another buffer in GPU memory, by one warp.
    __device__ __forceinline__ void move_to(const PartitionArguments& arguments, u64 slot, const ColumnBuffer& other, u64 other_slot, u64 count) const {
        copy_by_warp(static_cast<Key*>(other.keys()) + other_slot, static_cast<const Key*>(keys()) + slot, count * sizeof(Key), sizeof(Key));
#pragma unroll
        for (int column = 0; column < Payloads; ++column) {
            const u64 width = arguments.payloads[column].width;
            copy_by_warp(static_cast<unsigned char*>(other.payload(arguments, column)) + other_slot * width,
                         static_cast<const unsigned char*>(payload(arguments, column)) + slot * width, count * width, width);
        }
    }
};

}  // namespace overspill
