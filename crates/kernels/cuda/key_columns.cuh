// Keys of one or several columns, whose values have 1, 2, 4, 8 or 16 bytes.
#pragma once

#include "columns.cuh"
#include "hash.cuh"

namespace overspill {

constexpr u32 kMaxKeyColumns = 16;

// A column of keys, and a bit for each row that says whether its value is there; without bits all are. Mirrored in Rust.
struct KeyColumn {
    const void* values;
    const u32* validity;
    u32 width;
    u32 is_float;

    __device__ __forceinline__ bool is_valid(u64 row) const {
        return validity == nullptr || (validity[row / 32] >> (row % 32) & 1) != 0;
    }

    // The bits by which a value is hashed and compared. SQL treats -0.0 and 0.0 as equal.
    template <typename T>
    __device__ __forceinline__ TwoWords bits(T value) const {
        if constexpr (sizeof(T) == sizeof(TwoWords)) {
            return value;
        } else {
            const u64 sign = u64{1} << (sizeof(T) * 8 - 1);
            const u64 word = value;
            return TwoWords{is_float != 0 && word == sign ? 0 : word, 0};
        }
    }
};

// Mirrored in Rust.
struct KeyColumns {
    KeyColumn column[kMaxKeyColumns];
    u32 columns;
    // The bits of all columns.
    u32 bits;

    __device__ __forceinline__ bool has_null(u64 row) const {
        for (u32 at = 0; at < columns; ++at) {
            if (!column[at].is_valid(row)) return true;
        }
        return false;
    }

    // The hash of a key of any length: each of its words is hashed with the hash of those before it as the seed.
    __device__ __forceinline__ u32 hash(u64 row, u32 seed) const {
        u32 hash = seed;
        for (u32 at = 0; at < columns; ++at) {
            const KeyColumn& own = column[at];
            with_type_of_width(own.width, [&](auto type) {
                using T = decltype(type);
                const TwoWords value = own.bits(static_cast<const T*>(own.values)[row]);
                hash = murmur3_word(value.first, hash);
                if constexpr (sizeof(T) == sizeof(TwoWords)) hash = murmur3_word(value.second, hash);
            });
        }
        return hash;
    }

    // Whether a key equals one of other columns, whose types are the same.
    __device__ __forceinline__ bool are_equal(u64 row, const KeyColumns& others, u64 other_row) const {
        bool are_equal = true;
        for (u32 at = 0; at < columns && are_equal; ++at) {
            const KeyColumn& own = column[at];
            with_type_of_width(own.width, [&](auto type) {
                using T = decltype(type);
                const TwoWords value = own.bits(static_cast<const T*>(own.values)[row]);
                const TwoWords other = own.bits(static_cast<const T*>(others.column[at].values)[other_row]);
                are_equal = value.first == other.first && value.second == other.second;
            });
        }
        return are_equal;
    }
};

// The keys of rows, each at most 128 bits, packed into a word of 64 bits or of 128: each column is appended below those before it.
// The CPU packs keys so, too, and both processors give a key the same hash. Several rows are packed at once, so that a thread waits
// for their values together.
template <u32 Rows>
struct PackedKeys {
    TwoWords packed[Rows];
    // A bit for each row that says whether its key has a null.
    u32 nulls;

    // Packs the rows `first`, `first + stride` and so on. What lies at `end` and behind is not read.
    __device__ __forceinline__ void load(const KeyColumns& keys, u64 first, u64 stride, u64 end) {
        nulls = 0;
#pragma unroll
        for (u32 at = 0; at < Rows; ++at) packed[at] = TwoWords{0, 0};
        for (u32 number = 0; number < keys.columns; ++number) {
            const KeyColumn& column = keys.column[number];
            with_type_of_width(column.width, [&](auto type) {
                using T = decltype(type);
                const auto* values = static_cast<const T*>(column.values);
                T value[Rows];
#pragma unroll
                for (u32 at = 0; at < Rows; ++at) value[at] = first + at * stride < end ? values[first + at * stride] : type;
#pragma unroll
                for (u32 at = 0; at < Rows; ++at) append<sizeof(T) * 8>(packed[at], column.bits(value[at]));
            });
            if (column.validity == nullptr) continue;
#pragma unroll
            for (u32 at = 0; at < Rows; ++at) {
                const u64 row = first + at * stride;
                if (row < end && !column.is_valid(row)) nulls |= 1u << at;
            }
        }
    }

    template <u32 Bits>
    __device__ __forceinline__ static void append(TwoWords& word, const TwoWords& value) {
        if constexpr (Bits == 128) {
            word = value;
        } else if constexpr (Bits == 64) {
            word = TwoWords{value.first, word.first};
        } else {
            word = TwoWords{word.first << Bits | value.first, word.second << Bits | word.first >> (64 - Bits)};
        }
    }

    __device__ __forceinline__ u32 hash(const KeyColumns& keys, u32 at, u32 seed) const {
        const u32 low = murmur3_word(packed[at].first, seed);
        return keys.bits > 64 ? murmur3_word(packed[at].second, low) : low;
    }
};

}  // namespace overspill
