//! Cascaded compression: the kernels write the bytes of the CPU, and read them.

use overspill_codec::{CHUNK, Cascade, ColumnInfo, DeviceCascade, DeviceColumn, DeviceIntegers, Error, Integer, Stack};
use overspill_kernels::CompressedColumn;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, Plain};
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::test_gpu::{TestGpu, seeds};

/// Integers with runs, steps, few values or none of that, as the kind says.
fn column<I: Integer>(random: &mut ChaCha8Rng, length: usize, kind: u32) -> Vec<I> {
    use overspill_codec::Bits;
    let (mut word, mut values) = (random.next_u64(), Vec::with_capacity(length));
    let few: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
    let most = random.random_range(1..200);
    while values.len() < length {
        let run = if kind == 0 { 1 } else { random.random_range(1..=most) };
        word = match kind {
            0 => random.next_u64(),
            1 => word.wrapping_add(3),
            2 => word.wrapping_add(random.random_range(0..40)).wrapping_sub(20),
            _ => *few.choose(random).unwrap(),
        };
        let value = I::from_bits(I::Bits::of_word(word));
        values.extend(std::iter::repeat_n(value, run.min(length - values.len())));
    }
    values
}

/// The bytes of a compressed column.
fn bytes_of(stream: &Stream, column: &CompressedColumn) -> Vec<u8> {
    column.buffer.read(stream, column.bytes as usize).unwrap()
}

/// Compresses columns on both processors, and decompresses them on the GPU: each by all stacks, in one call.
fn round_trips<I: Integer + Plain>(gpu: &TestGpu, seed: u64, lengths: &[usize]) {
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let cascade = DeviceCascade::new(&kernels).unwrap();
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let columns: Vec<Vec<I>> =
        lengths.iter().zip((0..4).cycle()).map(|(length, kind)| column(random, *length, kind)).collect();
    let buffers: Vec<_> = columns.iter().map(|values| DeviceBuffer::from_slice(&stream, values).unwrap()).collect();
    let cases: Vec<_> = (0..columns.len()).flat_map(|number| Stack::ALL.map(|stack| (number, stack))).collect();
    let inputs: Vec<_> =
        cases.iter().map(|(number, stack)| DeviceIntegers::new::<I>(buffers[*number].view(), *stack)).collect();
    let compressed = cascade.compress(&stream, &inputs).unwrap().made;
    let mut host = Cascade::new();
    let mut written = vec![];
    for ((number, stack), compressed) in cases.iter().zip(&compressed) {
        let mut expected = vec![];
        host.compress(&columns[*number], *stack, &mut expected).unwrap();
        let found = bytes_of(&stream, compressed);
        let case = format!("{} integers of {} bytes by {stack}, seed {seed}", columns[*number].len(), size_of::<I>());
        let place = found.iter().zip(&expected).position(|(one, other)| one != other);
        assert!(found == expected, "{case}: {} bytes and {}, differing at {place:?}", found.len(), expected.len());
        written.push(found);
    }
    let width = size_of::<I>();
    let room = |(number, _): &(usize, Stack)| {
        DeviceBuffer::new(kernels.device(), (columns[*number].len() * width) as u64).unwrap()
    };
    let mut rooms: Vec<_> = cases.iter().map(room).collect();
    let parts = written.iter().zip(&compressed).zip(&mut rooms);
    let read: Vec<_> = parts
        .map(|((bytes, column), room)| {
            let whole = column.buffer.view().slice(0, column.bytes).unwrap();
            DeviceColumn::new(bytes, whole, room.view_mut()).unwrap()
        })
        .collect();
    cascade.decompress(&stream, read).unwrap();
    for ((number, stack), room) in cases.iter().zip(&rooms) {
        let again: Vec<u64> = room.read(&stream, columns[*number].len() * width / 8).unwrap();
        let expected = &columns[*number][..again.len() * 8 / width];
        let expected: Vec<u64> = expected.chunks(8 / width).map(joined).collect();
        assert!(again == expected, "{} integers of {width} bytes by {stack}, seed {seed}", columns[*number].len());
    }
}

/// The integers of a word.
fn joined<I: Integer>(integers: &[I]) -> u64 {
    use overspill_codec::Bits;
    let width = size_of::<I>() * 8;
    integers.iter().rev().fold(0, |word, integer| word.checked_shl(width as u32).unwrap_or(0) | integer.bits().word())
}

#[test]
fn every_kernel_writes_and_reads_the_bytes_of_the_cpu() {
    let gpu = TestGpu::start();
    for seed in seeds() {
        gpu.schedule(seed);
        let lengths = [0, 1, 40, 1024, CHUNK, CHUNK + 1000];
        let lengths = &lengths[..if seed % 3 == 0 { lengths.len() } else { 4 }];
        round_trips::<u8>(&gpu, seed, lengths);
        round_trips::<i16>(&gpu, seed, lengths);
        round_trips::<u32>(&gpu, seed, lengths);
        round_trips::<i64>(&gpu, seed, lengths);
    }
}

/// Writes the checksum of a changed column, as `docs/codec.md` says.
fn seal(column: &mut [u8]) {
    let words = column.as_chunks::<8>().0.iter().zip(0_u64..).filter(|(_, place)| *place != 2);
    let parts = words.map(|(word, place)| {
        let x = u64::from_le_bytes(*word).wrapping_add(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(place));
        let y = (x ^ x >> 32).wrapping_mul(0x9FB2_1C65_1E98_DF25);
        y ^ y >> 29
    });
    let sum = parts.fold(0, u64::wrapping_add);
    column[16..24].copy_from_slice(&sum.to_le_bytes());
}

/// Each column has a right checksum, so that its damage reaches the parsers. `OVERSPILL_TEST_CASES` sets the number of columns.
#[test]
fn forged_columns_are_refused_or_read_as_the_cpu_does() {
    let cases = std::env::var("OVERSPILL_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400_usize);
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let cascade = DeviceCascade::new(&kernels).unwrap();
    let random = &mut ChaCha8Rng::seed_from_u64(5);
    let (mut refused, mut read) = (0, 0);
    for _ in 0..cases {
        let (stack, kind) = (*Stack::ALL.choose(random).unwrap(), random.random_range(0..4));
        let length = *[1, 90, 1500].choose(random).unwrap();
        let values = column::<u32>(random, length, kind);
        let (mut bytes, mut host) = (vec![], Cascade::<u32>::new());
        host.compress(&values, stack, &mut bytes).unwrap();
        let head_bytes = ColumnInfo::of(&bytes).unwrap().head_bytes();
        for _ in 0..random.random_range(0..3) {
            // Most of them where lengths and widths are.
            let most = if random.random_bool(0.2) { bytes.len() } else { bytes.len().min(head_bytes + 48) };
            let place = random.random_range(head_bytes..most);
            bytes[place] = *[0, 1, 0xFF, bytes[place] ^ 1, random.random()].choose(random).unwrap();
        }
        seal(&mut bytes);
        let mut expected = vec![];
        let expects = host.decompress(&bytes, &mut expected);
        let device_bytes = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
        let mut room = DeviceBuffer::new(kernels.device(), length as u64 * 4).unwrap();
        let column = DeviceColumn::new(&bytes, device_bytes.view(), room.view_mut()).unwrap();
        match (cascade.decompress(&stream, vec![column]), expects) {
            (Ok(_), Ok(())) => {
                assert!(room.read::<u32>(&stream, length).unwrap() == expected, "{length} integers by {stack}");
                read += 1;
            }
            (Err(Error::Damaged(_)), Err(Error::Damaged(_))) => refused += 1,
            (found, expects) => panic!("{length} integers by {stack}: {found:?}, and the CPU {expects:?}"),
        }
    }
    assert!(read > cases / 20 && refused > cases / 20, "{read} read, {refused} refused");
    // With another checksum nothing is read.
    let mut bytes = vec![];
    Cascade::<u32>::new().compress(&[1, 2, 3], Stack::ALL[0], &mut bytes).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let device_bytes = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
    let mut room = DeviceBuffer::new(kernels.device(), 12).unwrap();
    let column = DeviceColumn::new(&bytes, device_bytes.view(), room.view_mut()).unwrap();
    let error = cascade.decompress(&stream, vec![column]).unwrap_err();
    assert_eq!(error.to_string(), "compressed data is damaged: its checksum is another");
}
