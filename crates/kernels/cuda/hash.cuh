// Hash functions. Radix bits and table slots are taken from the top of the 64 bits, where multiply-shift is best.
#pragma once

#include "platform.cuh"

namespace overspill {

// The identity keeps the order of keys, for partitions that are read in the order of an index (paper 3, section 4.2).
enum HashFunction : u32 { kMultiplyShift = 0, kMurmur3 = 1, kIdentity = 2 };

// Multiply-shift (paper 1, section 6.1): one multiplication by an odd constant; the top bits are the hash.
__device__ __forceinline__ u64 multiply_shift(u64 key) { return key * 0x9E3779B97F4A7C15ull; }

// The finalizer of MurmurHash3 for 64 bits: every bit of the key reaches every bit of the hash.
__device__ __forceinline__ u64 murmur3(u64 key) {
    key ^= key >> 33;
    key *= 0xFF51AFD7ED558CCDull;
    key ^= key >> 33;
    key *= 0xC4CEB9FE1A85EC53ull;
    return key ^ (key >> 33);
}

__device__ __forceinline__ u32 rotate_left(u32 word, u32 bits) { return word << bits | word >> (32 - bits); }

__device__ __forceinline__ u32 murmur3_mix(u32 hash, u32 word) {
    const u32 scrambled = rotate_left(word * 0xCC9E2D51u, 15) * 0x1B873593u;
    return rotate_left(hash ^ scrambled, 13) * 5 + 0xE6546B64u;
}

// MurmurHash3 of 32 bits over the bytes of a word, lowest first (paper 4, section 3). Another seed gives an independent hash.
__device__ __forceinline__ u32 murmur3_word(u64 word, u32 seed) {
    u32 hash = murmur3_mix(murmur3_mix(seed, static_cast<u32>(word)), static_cast<u32>(word >> 32)) ^ 8u;
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
    return hash ^ hash >> 16;
}

__device__ __forceinline__ u64 hash_key(u64 key, u32 function) {
    if (function == kIdentity) return key;
    return function == kMurmur3 ? murmur3(key) : multiply_shift(key);
}

// The partition of a hash: `bits` (1 to 12) of it, `shift` bits below the top, where earlier passes have looked.
__device__ __forceinline__ u32 radix(u64 hash, u32 shift, u32 bits) {
    return static_cast<u32>((hash << shift) >> (64 - bits));
}

}  // namespace overspill
