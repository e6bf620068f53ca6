// Every kernel by its name: <what>[_<how>]_u<key bits>[_<payload columns>]. What each does, and what it asks of its
// arguments, stands at the function it calls.

#include "codec/compress.cuh"
#include "codec/decompress.cuh"
#include "gather.cuh"
#include "hash_partition/count.cuh"
#include "hash_partition/scatter.cuh"
#include "index/look_up.cuh"
#include "join/local.cuh"
#include "join/no_partitioning.cuh"
#include "join/partitioned.cuh"
#include "memory_access.cuh"
#include "partition/arguments.cuh"
#include "partition/hierarchical.cuh"
#include "partition/histogram.cuh"
#include "partition/linear.cuh"
#include "partition/offsets.cuh"
#include "partition/shared.cuh"
#include "partition/standard.cuh"
#include "prefix_sum.cuh"
#include "registry.cuh"
#include "selection.cuh"
#include "validity.cuh"

using namespace overspill;

// The sizes of structures that Rust mirrors, checked when the module is loaded.
OVERSPILL_KERNEL(sizes_of_arguments, u64* sizes) {
    sizes[0] = sizeof(PartitionArguments);
    sizes[1] = sizeof(JoinInput);
    sizes[2] = sizeof(HashTableArguments);
    sizes[3] = sizeof(JoinOutput);
    sizes[4] = sizeof(JoinTask);
    sizes[5] = sizeof(SelectionArguments);
    sizes[6] = sizeof(IndexArguments);
    sizes[7] = sizeof(ChunkTask);
    sizes[8] = sizeof(ColumnTask);
    sizes[9] = sizeof(HashPartitionArguments);
    sizes[10] = sizeof(MovedColumn);
    sizes[11] = sizeof(LocalJoinArguments);
}

// Prefix sums.

OVERSPILL_KERNEL(prefix_sum_sum_tiles, const u64* values, u64 length, u64* tile_sums) { sum_tiles(values, length, tile_sums); }
OVERSPILL_KERNEL(prefix_sum_scan_tile_sums, u64* tile_sums, u64 tiles, u64* total) { scan_tile_sums(tile_sums, tiles, total); }
OVERSPILL_KERNEL(prefix_sum_scan_tiles, const u64* values, u64 length, const u64* tile_sums, u64* sums) {
    scan_tiles(values, length, tile_sums, sums);
}

// From histograms to offsets.

OVERSPILL_KERNEL(offsets_totals, const u64* counts, u64 blocks, u32 fanout, u64* totals) { partition_totals(counts, blocks, fanout, totals); }
OVERSPILL_KERNEL(offsets_starts, const u64* totals, u32 fanout, u64 alignment, u64* starts) { partition_starts(totals, fanout, alignment, starts); }
OVERSPILL_KERNEL(offsets_blocks, const u64* counts, const u64* starts, u64 blocks, u32 fanout, u64* offsets) {
    block_offsets(counts, starts, blocks, fanout, offsets);
}

// Histograms and partitioners.

#define OVERSPILL_PARTITIONERS(bits, payloads)                                                                                       \
    OVERSPILL_KERNEL(histogram_copy_u##bits##_##payloads, const PartitionArguments arguments, u64* counts) {                         \
        histogram<u##bits, payloads, true>(arguments, counts);                                                                       \
    }                                                                                                                                \
    OVERSPILL_KERNEL(partition_standard_u##bits##_##payloads, const PartitionArguments arguments) {                                  \
        partition_standard<u##bits, payloads>(arguments);                                                                            \
    }                                                                                                                                \
    OVERSPILL_KERNEL(partition_linear_u##bits##_##payloads, const PartitionArguments arguments) {                                    \
        partition_linear<u##bits, payloads>(arguments);                                                                              \
    }                                                                                                                                \
    OVERSPILL_KERNEL(partition_shared_u##bits##_##payloads, const PartitionArguments arguments) {                                    \
        partition_shared<u##bits, payloads>(arguments);                                                                              \
    }                                                                                                                                \
    OVERSPILL_KERNEL(partition_hierarchical_u##bits##_##payloads, const PartitionArguments arguments) {                              \
        partition_hierarchical<u##bits, payloads>(arguments);                                                                        \
    }

#define OVERSPILL_PARTITIONERS_OF_KEY(bits)                                                                                           \
    OVERSPILL_KERNEL(histogram_u##bits, const PartitionArguments arguments, u64* counts) {                                           \
        histogram<u##bits, 0, false>(arguments, counts);                                                                             \
    }                                                                                                                                \
    OVERSPILL_PARTITIONERS(bits, 0)                                                                                                  \
    OVERSPILL_PARTITIONERS(bits, 1)                                                                                                  \
    OVERSPILL_PARTITIONERS(bits, 2)                                                                                                  \
    OVERSPILL_PARTITIONERS(bits, 3)                                                                                                  \
    OVERSPILL_PARTITIONERS(bits, 4)

OVERSPILL_PARTITIONERS_OF_KEY(32)
OVERSPILL_PARTITIONERS_OF_KEY(64)

// Hash partitions of any number, in which rows keep their order.

OVERSPILL_KERNEL(hash_partition_count, const HashPartitionArguments arguments) { count_hash_partitions(arguments); }
OVERSPILL_KERNEL(hash_partition_scatter, const HashPartitionArguments arguments) { scatter_hash_partitions(arguments); }

// The no-partitioning join.

#define OVERSPILL_PROBES(bits, kind, sink_name, Sink)                                                                                \
    OVERSPILL_KERNEL(probe_##kind##_##sink_name##_u##bits, const JoinInput input, const HashTableArguments table, const JoinOutput output) { \
        probe<u##bits, Sink>(input, kind##_table<u##bits>(table), output);                                                           \
    }

#define OVERSPILL_PROBES_OF_TABLE(bits, kind)                                                                                        \
    OVERSPILL_PROBES(bits, kind, aggregate, AggregateSink)                                                                           \
    OVERSPILL_PROBES(bits, kind, allocate, LinearAllocatorSink)

#define OVERSPILL_JOIN_PARTITIONS(bits, sink_name, Sink)                                                                             \
    OVERSPILL_KERNEL(join_partitions_##sink_name##_u##bits, const JoinInput build_input, const JoinInput probe_input, const JoinTask* tasks, \
                     const u64* task_count, u64* next_task, u32 capacity, u32 hash_function, u32 shared_bits, const JoinOutput output) { \
        join_partitions<u##bits, Sink>(build_input, probe_input, tasks, task_count, next_task, capacity, hash_function, shared_bits, output); \
    }

#define OVERSPILL_JOINS(bits)                                                                                                        \
    OVERSPILL_KERNEL(build_perfect_u##bits, const JoinInput input, const HashTableArguments table, u64* refused) {                   \
        build<u##bits>(input, perfect_table<u##bits>(table), refused);                                                               \
    }                                                                                                                                \
    OVERSPILL_KERNEL(build_linear_probing_u##bits, const JoinInput input, const HashTableArguments table, u64* refused) {            \
        build<u##bits>(input, linear_probing_table<u##bits>(table), refused);                                                        \
    }                                                                                                                                \
    OVERSPILL_KERNEL(count_multi_value_u##bits, const JoinInput input, const HashTableArguments table, u64* refused) {               \
        const auto multi_value = multi_value_table<u##bits>(table);                                                                  \
        for_each_tuple(input.tuples, [&](u64 at) {                                                                                   \
            if (!multi_value.count(static_cast<const u##bits*>(input.keys), at)) atomicAdd(refused, u64{1});                         \
        });                                                                                                                          \
    }                                                                                                                                \
    OVERSPILL_KERNEL(fill_multi_value_u##bits, const JoinInput input, const HashTableArguments table) {                              \
        const auto multi_value = multi_value_table<u##bits>(table);                                                                  \
        for_each_tuple(input.tuples, [&](u64 at) { multi_value.fill(input.key<u##bits>(at), input.value(at)); });                    \
    }                                                                                                                                \
    OVERSPILL_PROBES_OF_TABLE(bits, perfect)                                                                                         \
    OVERSPILL_PROBES_OF_TABLE(bits, linear_probing)                                                                                  \
    OVERSPILL_PROBES_OF_TABLE(bits, multi_value)                                                                                     \
    OVERSPILL_JOIN_PARTITIONS(bits, aggregate, AggregateSink)                                                                        \
    OVERSPILL_JOIN_PARTITIONS(bits, allocate, LinearAllocatorSink)

OVERSPILL_JOINS(32)
OVERSPILL_JOINS(64)

// Builds beside the CPU (paper 2, section 6.2).

#define OVERSPILL_SHARED_BUILD(kind)                                                                                                 \
    OVERSPILL_KERNEL(build_shared_##kind##_u64, const JoinInput input, const HashTableArguments table, u64* refused) {               \
        build<u64, Claimants::kSystem>(input, kind##_table<u64>(table), refused);                                                    \
    }

OVERSPILL_SHARED_BUILD(perfect)
OVERSPILL_SHARED_BUILD(linear_probing)

OVERSPILL_KERNEL(schedule_join_tasks, const u64* build_starts, const u64* build_totals, const u64* probe_starts, const u64* probe_totals,
                 u32 fanout, u64 piece, JoinTask* tasks, u64 capacity, u64* count) {
    schedule_tasks(build_starts, build_totals, probe_starts, probe_totals, fanout, piece, tasks, capacity, count);
}

// The local join of a rank.

OVERSPILL_KERNEL(local_join_build, const LocalJoinArguments arguments) { build_row_numbers(arguments); }
OVERSPILL_KERNEL(local_join_count, const LocalJoinArguments arguments) { count_local_matches(arguments); }
OVERSPILL_KERNEL(local_join_write, const LocalJoinArguments arguments) { write_local_pairs(arguments); }
OVERSPILL_KERNEL(gather, const u32* numbers, u64 count, const MovedColumn* columns, u64 column_count) {
    gather_rows(numbers, count, columns, column_count);
}
OVERSPILL_KERNEL(pack_validity, const unsigned char* bytes, u64 rows, u32* words) { pack_validity_bits(bytes, rows, words); }

// Lookups in an index over sorted keys.

#define OVERSPILL_LOOKUPS(kind, Index)                                                                                               \
    OVERSPILL_KERNEL(look_up_##kind##_aggregate_u64, const JoinInput input, const IndexArguments index, const JoinOutput output) {   \
        look_up<AggregateSink, Index>(input, index, output);                                                                         \
    }                                                                                                                                \
    OVERSPILL_KERNEL(look_up_##kind##_allocate_u64, const JoinInput input, const IndexArguments index, const JoinOutput output) {    \
        look_up<LinearAllocatorSink, Index>(input, index, output);                                                                   \
    }

OVERSPILL_LOOKUPS(binary_search, BinarySearchIndex)
OVERSPILL_LOOKUPS(btree, BTreeIndex)
OVERSPILL_LOOKUPS(harmonia, HarmoniaIndex)
OVERSPILL_LOOKUPS(radix_spline, RadixSplineIndex)

// Selection and aggregation, of up to so many aggregates.

#define OVERSPILL_SELECTIONS(aggregates)                                                                                             \
    OVERSPILL_KERNEL(select_branching_##aggregates, const SelectionArguments arguments) {                                            \
        select_and_aggregate<aggregates, true>(arguments);                                                                           \
    }                                                                                                                                \
    OVERSPILL_KERNEL(select_predicated_##aggregates, const SelectionArguments arguments) {                                           \
        select_and_aggregate<aggregates, false>(arguments);                                                                          \
    }

OVERSPILL_SELECTIONS(1)
OVERSPILL_SELECTIONS(2)
OVERSPILL_SELECTIONS(4)
OVERSPILL_SELECTIONS(8)

// Cascaded compression.

#define OVERSPILL_CODEC(bits, T)                                                                                                     \
    OVERSPILL_KERNEL(compress_chunks_u##bits, const ChunkTask* tasks, u64 chunks) { compress_chunks<T>(tasks, chunks); }             \
    OVERSPILL_KERNEL(decompress_chunks_u##bits, const ChunkTask* tasks, u64 chunks) { decompress_chunks<T>(tasks, chunks); }

OVERSPILL_CODEC(8, u8)
OVERSPILL_CODEC(16, u16)
OVERSPILL_CODEC(32, u32)
OVERSPILL_CODEC(64, u64)

OVERSPILL_KERNEL(compress_begin_columns, const ColumnTask* tasks, u64 columns) { begin_columns(tasks, columns); }
OVERSPILL_KERNEL(compress_gather_chunks, const ColumnTask* tasks, u64 columns, u64 chunks) { gather_chunks(tasks, columns, chunks); }

// Measurements.

OVERSPILL_KERNEL(measure_read, const u64* values, u64 length, u64* result) { read_sequentially(values, length, result); }
OVERSPILL_KERNEL(measure_copy, uint4* to, const uint4* from, u64 length) { copy_sequentially(to, from, length); }
OVERSPILL_KERNEL(measure_chase, const u64* next, u64 start, u64 steps, u64* result) { chase_pointers(next, start, steps, result); }

#define OVERSPILL_ACCESS(bytes, Unit)                                                                                                \
    OVERSPILL_KERNEL(measure_random_read_##bytes, unsigned char* array, u64 units, u32 threads, u64 misalignment, u64 accesses, u64* result) { \
        access_randomly<Unit, false>(array, units, threads, misalignment, accesses, result);                                         \
    }                                                                                                                                \
    OVERSPILL_KERNEL(measure_random_write_##bytes, unsigned char* array, u64 units, u32 threads, u64 misalignment, u64 accesses, u64* result) { \
        access_randomly<Unit, true>(array, units, threads, misalignment, accesses, result);                                          \
    }

OVERSPILL_ACCESS(4, u32)
OVERSPILL_ACCESS(8, u64)
OVERSPILL_ACCESS(16, uint4)
