//! Hash partitions against a plain reference that partitions as `overspill-exchange` does on the CPU.

use overspill_kernels::{
    HashPartitioner, HashPartitioning, HashPartitions, Kernels, KeyColumn, MovedColumn, PrefixSum, murmur3_word,
};
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::columns::{Column, DeviceColumn, room};
use crate::faults::each_fails_once;
use crate::test_gpu::{TestGpu, scaled, seeds};

const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

/// MurmurHash3 of 32 bits, by its definition over bytes.
fn murmur3(bytes: &[u8], seed: u32) -> u32 {
    let scramble = |word: u32| word.wrapping_mul(0xCC9E_2D51).rotate_left(15).wrapping_mul(0x1B87_3593);
    let (words, rest) = bytes.as_chunks::<4>();
    let mut hash = seed;
    for word in words {
        hash = (hash ^ scramble(u32::from_le_bytes(*word))).rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64);
    }
    hash ^= scramble(rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)));
    hash ^= bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}

/// Values that implementations of MurmurHash3 publish.
#[test]
fn the_reference_hashes_as_others_do() {
    for (bytes, seed, hash) in [
        (&b""[..], 1, 0x514E_28B7),
        (b"\xFF\xFF\xFF\xFF", 0, 0x7629_3B50),
        (b"\x21\x43\x65\x87", 0x5082_EDEE, 0x2362_F9DE),
        (b"\x21\x43\x65", 0, 0x7E4A_8634),
        (b"aaaa", 0x9747_B28C, 0x5A97_808A),
        (b"Hello, world!", 0x9747_B28C, 0x2488_4CBA),
    ] {
        assert_eq!(murmur3(bytes, seed), hash, "{bytes:?}, {seed}");
    }
    for word in [0, 1, 0x1234_5678_9ABC_DEF0, u64::MAX] {
        assert_eq!(murmur3_word(word, 7), murmur3(&word.to_le_bytes(), 7), "{word}");
    }
}

/// The partition of each row.
fn partitions_of(keys: &[Column], rows: usize, partitioning: HashPartitioning) -> Vec<usize> {
    let HashPartitioning { partitions, seed, home } = partitioning;
    let bits: usize = keys.iter().map(|key| key.width * 8).sum();
    let partition = |row: usize| {
        if !keys.iter().all(|key| key.is_valid(row)) {
            return home as usize;
        }
        let append = |word: u128, key: &Column| match key.width {
            16 => key.value(row),
            width => word << (width * 8) | key.value(row),
        };
        let word = keys.iter().fold(0, append);
        let low = murmur3(&(word as u64).to_le_bytes(), seed);
        let hash = if bits > 64 { murmur3(&((word >> 64) as u64).to_le_bytes(), low) } else { low };
        ((u64::from(hash) * u64::from(partitions)) >> 32) as usize
    };
    (0..rows).map(partition).collect()
}

/// Partitions keys and other columns, all of which are moved, and returns where the partitions are and what has been written.
fn run(
    kernels: &Kernels,
    partitioning: HashPartitioning,
    rows: usize,
    keys: &[Column],
    others: &[Column],
) -> Result<(HashPartitions, Vec<Vec<u8>>)> {
    let stream = Stream::new(kernels.device())?;
    let all = || keys.iter().chain(others);
    let from = all().map(|column| column.on(&stream)).collect::<Result<Vec<_>>>()?;
    let mut to = all().map(|column| room(&stream, column.width, rows as u64)).collect::<Result<Vec<_>>>()?;
    let key_columns: Vec<_> = from[..keys.len()].iter().map(DeviceColumn::key).collect();
    let mut moved: Vec<_> = from.iter().zip(&mut to).map(|(from, to)| from.moved(to)).collect();
    let partitions =
        HashPartitioner::new(kernels, partitioning)?.run(&stream, rows as u64, &key_columns, &mut moved)?;
    let written = to.iter().map(|buffer| buffer.read(&stream, buffer.bytes() as usize)).collect::<Result<_>>()?;
    // The starts in GPU memory are those that the CPU knows.
    let mut sums = DeviceBuffer::new(kernels.device(), partitions.on_device().bytes())?;
    let mut prefix_sum = PrefixSum::new(kernels, u64::from(partitioning.partitions) + 1)?;
    let sum = prefix_sum.run(&stream, partitions.on_device(), sums.view_mut())?;
    assert_eq!(sum, partitions.starts().iter().sum::<u64>());
    Ok((partitions, written))
}

/// Checks that rows are in the partitions of the reference, in their order.
fn check(kernels: &Kernels, partitioning: HashPartitioning, rows: usize, keys: &[Column], others: &[Column]) {
    let widths: Vec<_> = keys.iter().map(|key| key.width).collect();
    let case = format!("{rows} rows by keys of {widths:?} bytes, {partitioning:?}");
    let (found, written) =
        run(kernels, partitioning, rows, keys, others).unwrap_or_else(|error| panic!("{case}: {error}"));
    let numbers = partitions_of(keys, rows, partitioning);
    // A stable sort keeps the order.
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|row| numbers[*row]);
    let mut start = 0;
    for partition in 0..partitioning.partitions as usize {
        let count = numbers.iter().filter(|number| **number == partition).count() as u64;
        assert_eq!(found.rows(partition), start..start + count, "{case}: partition {partition}");
        start += count;
    }
    assert_eq!(found.starts().last(), Some(&(rows as u64)), "{case}");
    for (number, (column, written)) in keys.iter().chain(others).zip(written).enumerate() {
        let expected: Vec<u8> =
            order.iter().flat_map(|row| column.bytes[row * column.width..][..column.width].to_vec()).collect();
        let wrong = written.iter().zip(&expected).position(|(one, other)| one != other);
        assert!(wrong.is_none() && written.len() == expected.len(), "{case}: column {number} at byte {wrong:?}");
    }
}

fn partitioning(partitions: u32) -> HashPartitioning {
    HashPartitioning { partitions, seed: 1, home: partitions - 1 }
}

/// The numbers of rows, by which their order is told.
fn row_numbers(rows: usize) -> Column {
    Column::new(4, 0..rows as u128)
}

#[test]
fn every_schedule_of_a_hash_partition_keeps_the_order_of_rows() {
    let gpu = TestGpu::start();
    // Several blocks of several batches, within few rows.
    gpu.set_scratchpad(64 << 10);
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(3);
    let rows = scaled(6_000) as usize + 2_999;
    let key = Column::new(8, (0..rows).map(|_| u128::from(random.random_range(0..500_u64))));
    let others = [row_numbers(rows), Column::random(random, 16, rows), Column::random(random, 1, rows)];
    for seed in seeds() {
        gpu.schedule(seed);
        check(&kernels, partitioning(9), rows, std::slice::from_ref(&key), &others[..1 + seed as usize % 3]);
    }
}

#[test]
fn any_number_of_partitions_has_the_rows_of_the_cpu() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(4);
    for partitions in [1, 2, 3, 7, 8, 9, 60, 512, 1000, 1024, 4096] {
        for rows in [0, 1, 31, 33, 513, 20_011] {
            let rows = scaled(rows) as usize;
            let key = Column::random(random, 8, rows);
            check(&kernels, partitioning(partitions), rows, &[key], &[row_numbers(rows)]);
        }
    }
}

#[test]
fn skewed_keys_keep_their_order() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(5);
    let rows = scaled(20_000) as usize;
    let all_equal = Column::new(8, (0..rows).map(|_| 7));
    // Each key half as often as the one before it.
    let skewed = Column::new(8, (0..rows).map(|_| u128::from(random.random::<u64>().trailing_zeros())));
    // Runs of equal keys, as those of lineitem.
    let runs = Column::new(8, (0..rows).map(|row| row as u128 / 4));
    for partitions in [1, 8, 60, 1024] {
        for key in [&all_equal, &skewed, &runs] {
            check(&kernels, partitioning(partitions), rows, std::slice::from_ref(key), &[row_numbers(rows)]);
        }
    }
}

#[test]
fn keys_of_every_width_are_packed_as_on_the_cpu() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(6);
    let rows = scaled(3_000) as usize;
    let cases: [&[usize]; 16] = [
        &[1],
        &[2],
        &[4],
        &[8],
        &[16],
        &[4, 4],
        &[8, 8],
        &[1, 2, 4],
        &[2, 8],
        &[8, 2],
        &[8, 4, 4],
        &[4, 8, 4],
        &[1, 8],
        &[1; 16],
        &[2, 2, 2, 2, 8],
        &[4, 4, 1],
    ];
    for widths in cases {
        let keys: Vec<Column> = widths.iter().map(|width| Column::random(random, *width, rows)).collect();
        // Another seed is another hash.
        for seed in [1, 8] {
            check(&kernels, HashPartitioning { seed, ..partitioning(13) }, rows, &keys, &[row_numbers(rows)]);
        }
    }
}

#[test]
fn zeros_of_both_signs_share_a_partition_and_nulls_stay_at_home() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(7);
    let rows = scaled(2_000) as usize;
    for width in [2, 4, 8] {
        let zeros = (0..rows).map(|row| if row % 2 == 0 { 0 } else { 1 << (width * 8 - 1) });
        let mut zeros = Column::new(width, zeros);
        zeros.is_float = true;
        let numbers = partitions_of(std::slice::from_ref(&zeros), rows, partitioning(50));
        assert!(numbers.iter().all(|number| *number == numbers[0]), "the reference");
        check(&kernels, partitioning(50), rows, &[zeros], &[row_numbers(rows)]);
    }
    // Nulls in either of two columns, or in both.
    let mut keys = [Column::random(random, 4, rows), Column::random(random, 8, rows)];
    for key in &mut keys {
        key.valid = (0..rows).map(|_| random.random_bool(0.7)).collect();
    }
    let home = HashPartitioning { home: 4, ..partitioning(11) };
    let nulls = partitions_of(&keys, rows, home).iter().filter(|number| **number == 4).count();
    assert!(nulls > rows / 3, "{nulls} of {rows} rows at home");
    check(&kernels, home, rows, &keys, &[row_numbers(rows)]);
    check(&kernels, HashPartitioning { home: 0, ..home }, rows, &keys[..1], &keys[1..]);
}

#[test]
fn many_columns_of_every_width_move_together() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(8);
    let rows = scaled(9_001) as usize;
    let key = Column::random(random, 4, rows);
    let others: Vec<Column> = (0..30).map(|number| Column::random(random, WIDTHS[number % 5], rows)).collect();
    for partitions in [3, 60] {
        check(&kernels, partitioning(partitions), rows, std::slice::from_ref(&key), &others);
    }
}

/// Little scratchpad memory makes batches of one turn, and one that no whole number of batches fits.
#[test]
fn devices_with_less_scratchpad_memory_make_smaller_batches() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let random = &mut ChaCha8Rng::seed_from_u64(9);
    let rows = scaled(5_000) as usize + 1_100;
    let others = [row_numbers(rows), Column::random(random, 16, rows)];
    let key = Column::random(random, 8, rows);
    for (scratchpad, partitions) in [(64 << 10, 1024), (64 << 10, 5), (100 << 10, 1024), (163 << 10, 3000)] {
        gpu.set_scratchpad(scratchpad);
        let kernels = gpu.kernels();
        check(&kernels, partitioning(partitions), rows, std::slice::from_ref(&key), &others);
        let confined = kernels.confined_to(1).unwrap();
        check(&confined, partitioning(partitions), rows, std::slice::from_ref(&key), &others);
    }
    gpu.set_scratchpad(64 << 10);
    let error = run(&gpu.kernels(), partitioning(2_000), rows, &[key], &others).unwrap_err();
    assert!(matches!(error, Error::TooSmall { .. }), "{error:?}");
    assert!(error.to_string().contains("a hash partition of so many partitions"), "{error}");
}

/// No columns: the places alone. Partitions of a partition by another seed spread its rows.
#[test]
fn partitions_are_partitioned_again_by_another_seed() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let rows = 8_000_u64;
    let keys = DeviceBuffer::from_slice(&stream, &(0..rows).collect::<Vec<_>>()).unwrap();
    let mut once = DeviceBuffer::new(kernels.device(), rows * 8).unwrap();
    let key = |values| KeyColumn { values, width: 8, is_float: false, validity: None };
    let mut column = [MovedColumn { from: keys.view(), to: once.view_mut(), width: 8 }];
    let first = HashPartitioner::new(&kernels, partitioning(4)).unwrap();
    let first = first.run(&stream, rows, &[key(keys.view())], &mut column).unwrap();
    let part = first.rows(2);
    let values = once.view().slice(part.start * 8, (part.end - part.start) * 8).unwrap();
    let second = HashPartitioner::new(&kernels, HashPartitioning { seed: 8, ..partitioning(4) }).unwrap();
    let second = second.run(&stream, part.end - part.start, &[key(values)], &mut []).unwrap();
    for partition in 0..4 {
        let share = second.rows(partition);
        assert!((400..600).contains(&(share.end - share.start)), "{share:?} of {part:?}");
    }
}

#[test]
fn what_cannot_be_partitioned_is_refused() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let refused = |partitions, home| {
        let partitioning = HashPartitioning { partitions, seed: 1, home };
        HashPartitioner::new(&kernels, partitioning).unwrap_err().to_string()
    };
    assert_eq!(refused(0, 0), "rows cannot be partitioned 0 ways: kernels make 1 to 4096 partitions");
    assert_eq!(refused(4097, 0), "rows cannot be partitioned 4097 ways: kernels make 1 to 4096 partitions");
    assert_eq!(refused(8, 8), "rows without a partner belong in partition 8, and there are 8, counted from 0");
    let partitioner = HashPartitioner::new(&kernels, partitioning(4)).unwrap();
    let from = DeviceBuffer::from_slice(&stream, &[1_u8; 1024]).unwrap();
    let to = DeviceBuffer::new(kernels.device(), 1024).unwrap();
    // A key of the first `bytes` bytes.
    let key = |bytes, width| KeyColumn {
        values: from.view().slice(0, bytes).unwrap(),
        width,
        is_float: false,
        validity: None,
    };
    let refused = |keys: &[KeyColumn<'_>], columns: &mut [MovedColumn<'_>]| {
        partitioner.run(&stream, 50, keys, columns).unwrap_err().to_string()
    };
    assert_eq!(refused(&[], &mut []), "a key of 0 columns: kernels take 1 to 16");
    assert_eq!(refused(&[key(50, 1); 17], &mut []), "a key of 17 columns: kernels take 1 to 16");
    let error = refused(&[key(400, 8), key(400, 8), key(50, 1)], &mut []);
    assert_eq!(error, "keys of 136 bits: kernels partition by keys of at most 128");
    let error = refused(&[key(400, 3)], &mut []);
    assert_eq!(error, "values of 3 bytes: kernels move and compare those of 1, 2, 4, 8 or 16");
    let error = refused(&[KeyColumn { is_float: true, ..key(50, 1) }], &mut []);
    assert_eq!(error, "floats of 1 bytes as a key: they have 2, 4 or 8");
    let error = refused(&[key(399, 8)], &mut []);
    assert_eq!(error, "the values of key column 0 have 399 bytes, and 50 tuples of 8 bytes are 400");
    let misaligned = KeyColumn { values: from.view().slice(4, 400).unwrap(), ..key(400, 8) };
    let error = refused(&[misaligned], &mut []);
    assert!(error.contains("start at an address that is not a multiple of their 8 bytes"), "{error}");
    let few_bits = KeyColumn { validity: Some(from.view().slice(0, 7).unwrap()), ..key(400, 8) };
    let error = refused(&[few_bits], &mut []);
    assert!(error.contains("the validity bits of key column 0 have 7 bytes, and 2 tuples of 4 bytes"), "{error}");
    // The views are of one buffer. No kernel writes to them, as they are refused.
    let place = |begin, bytes| {
        // SAFETY: nothing uses the buffer.
        let whole = unsafe { to.view_mut_of_shared() };
        whole.split_at(begin).unwrap().1.split_at(bytes).unwrap().0
    };
    let column = |to, width| MovedColumn { from: from.view(), to, width };
    let error = refused(&[key(400, 8)], &mut [column(place(0, 400), 5)]);
    assert!(error.contains("values of 5 bytes"), "{error}");
    let error = refused(&[key(400, 8)], &mut [column(place(0, 400), 8), column(place(512, 500), 16)]);
    assert_eq!(error, "the places of column 1 have 500 bytes, and 50 tuples of 16 bytes are 800");
    let overlapping = "the columns that are written overlap each other or those that are read";
    let error = refused(&[key(400, 8)], &mut [column(place(0, 400), 8), column(place(392, 400), 8)]);
    assert_eq!(error, overlapping);
    let key_of_output = KeyColumn { values: to.view(), ..key(400, 8) };
    assert_eq!(refused(&[key_of_output], &mut [column(place(0, 400), 8)]), overlapping);
}

#[test]
fn each_failure_of_a_hash_partition_gives_all_memory_back() {
    let rows = 1_000;
    let work = |gpu: &TestGpu| {
        let device = gpu.driver.device(0, 64 << 20)?;
        let kernels = Kernels::load(&device)?;
        let key = Column::new(8, 0..rows);
        let (found, _) = run(&kernels, partitioning(5), rows as usize, std::slice::from_ref(&key), &[])?;
        assert_eq!(found.starts()[5], rows as u64);
        Ok(())
    };
    each_fails_once("allocation", 5, work);
    each_fails_once("launch", 5, work);
    each_fails_once("copy", 2, work);
    each_fails_once("synchronisation", 3, work);
}

#[test]
fn threads_launch_a_kernel_with_more_scratchpad_memory_and_with_less() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let key = Column::new(8, 0..300);
    let launch = |partitions: u32| {
        for _ in 0..30 {
            check(&kernels, partitioning(partitions), 300, std::slice::from_ref(&key), &[]);
        }
    };
    std::thread::scope(|scope| {
        // Their launches differ in the scratchpad memory of a block.
        for partitions in [7, 60, 1000] {
            let launch = &launch;
            scope.spawn(move || launch(partitions));
        }
    });
}
