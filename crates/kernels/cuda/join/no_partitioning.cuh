// The no-partitioning hash join (paper 2, section 2.1): all blocks build one table, then all probe it.
#pragma once

#include "../hash_table/linear_probing.cuh"
#include "../hash_table/multi_value.cuh"
#include "../hash_table/perfect.cuh"
#include "sinks.cuh"

namespace overspill {

template <typename Key>
__device__ __forceinline__ PerfectTable<Key> perfect_table(const HashTableArguments& table) {
    return PerfectTable<Key>{table.slots, table.slot_count, table.smallest_key};
}

template <typename Key>
__device__ __forceinline__ LinearProbingTable<Key> linear_probing_table(const HashTableArguments& table) {
    return LinearProbingTable<Key>{table.slots, table.bits, table.hash_function};
}

template <typename Key>
__device__ __forceinline__ MultiValueTable<Key> multi_value_table(const HashTableArguments& table) {
    return MultiValueTable<Key>{table.claims, static_cast<Key*>(table.slot_keys), table.starts, table.filled, table.values,
                                table.bits,   table.hash_function};
}

// Calls `take(at)` for every tuple, neighbouring threads next to each other. 64-bit, as a side may have 2^32 tuples and more.
template <typename Take>
__device__ __forceinline__ void for_each_tuple(u64 tuples, Take&& take) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < tuples; at += stride) take(at);
}

// Counts in `refused` the tuples that the table could not take: a duplicate or a key out of range (perfect), no room.
template <typename Key, Claimants kWho = Claimants::kDevice, typename Table>
__device__ __forceinline__ void build(const JoinInput& input, const Table& table, u64* refused) {
    for_each_tuple(input.tuples, [&](u64 at) {
        if (!table.template insert<kWho>(input.key<Key>(at), input.value(at))) atomicAdd(refused, u64{1});
    });
}

template <typename Key, typename Sink, typename Table>
__device__ __forceinline__ void probe(const JoinInput& input, const Table& table, const JoinOutput& output) {
    Sink sink(output);
    for_each_tuple(input.tuples, [&](u64 at) {
        table.find(input.key<Key>(at), [&](u64 build_value) { sink.match(build_value, input.value(at)); });
    });
    sink.finish();
}

}  // namespace overspill
