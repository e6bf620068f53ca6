//! Random batches, whole, sliced, damaged and forged.

mod arrays;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int64Array, RecordBatch, RecordBatchOptions, StringArray, StringViewArray,
};
use arrow::datatypes::{Int32Type, Schema, SchemaRef};
use rand::{Rng, SeedableRng};

use super::{BlockReader, BlockWriter, CHECKSUM, HEADER, LENGTH};
use crate::Error;
use crate::checksum::seal;
use arrays::{KINDS, Random, batch};

/// Cases of a test: `few`, or as many as `OVERSPILL_TEST_CASES` says.
fn cases(few: u64) -> u64 {
    std::env::var("OVERSPILL_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(few)
}

#[test]
fn batches_of_all_types_round_trip() {
    for seed in 0..cases(60) {
        let random = &mut Random::seed_from_u64(seed);
        let mut writers = [BlockWriter::default(), BlockWriter::plain()];
        for kind in 0..KINDS {
            let batch = batch(random, &[kind]);
            let block = writers[(seed as usize + kind) % 2]
                .write(&batch)
                .unwrap_or_else(|error| panic!("seed {seed}, kind {kind}: {error}"));
            let again = BlockReader::new(batch.schema()).read(block);
            let again = again.unwrap_or_else(|error| panic!("seed {seed}, kind {kind}: {error}"));
            assert!(again == batch, "seed {seed}, kind {kind}");
        }
    }
}

#[test]
fn the_stack_of_the_last_block_is_kept_until_it_loses() {
    let batch = |values: Vec<i64>| {
        RecordBatch::try_from_iter([("key", Arc::new(Int64Array::from(values)) as ArrayRef)]).unwrap()
    };
    let in_runs = batch((0..8000).map(|row| row / 100).collect());
    let scattered = batch((0..8000_i64).map(|row| row.wrapping_mul(7919) % 10_000 * 1_000_003).collect());
    let mut writer = BlockWriter::default();
    let runs = writer.write(&in_runs).unwrap().len();
    assert!(runs < 1000, "{runs} bytes");
    let fresh = BlockWriter::default().write(&scattered).unwrap().len();
    let blocks: Vec<_> = (0..20).map(|_| writer.write(&scattered).unwrap().len()).collect();
    assert!(blocks[0] >= fresh && blocks[19] == fresh, "{blocks:?}, and {fresh} bytes by themselves");
    for batch in [&in_runs, &scattered] {
        assert_eq!(&BlockReader::new(batch.schema()).read(writer.write(batch).unwrap()).unwrap(), batch);
    }
}

#[test]
fn a_block_has_what_its_batch_shows() {
    let size = |array: ArrayRef| {
        BlockWriter::default().write(&RecordBatch::try_from_iter([("a", array)]).unwrap()).unwrap().len()
    };
    let texts: Vec<_> = (0..10_000).map(|row| format!("a text that no view holds, {}", row * 7919 % 10_007)).collect();
    let arrays: [ArrayRef; 3] = [
        Arc::new(StringArray::from_iter_values(&texts)),
        Arc::new(StringViewArray::from_iter_values(&texts)),
        Arc::new(texts.iter().map(String::as_str).collect::<DictionaryArray<Int32Type>>()),
    ];
    for array in arrays {
        let (ten, one) = (size(array.slice(5000, 10)), size(array.slice(5000, 1)));
        assert!(one < ten && ten < 800, "{}: {one} and {ten} bytes", array.data_type());
    }
    // What lies under nulls costs nothing.
    let values = (0..5000).map(|row| if row % 2 == 0 { 7 } else { row * 7919 });
    let nulls = (0..5000).map(|row| row % 2 == 0).collect();
    let nullable = size(Arc::new(Int64Array::new(values.collect(), Some(nulls))));
    assert!(nullable < 300, "{nullable} bytes");
}

#[test]
fn batches_without_columns_have_rows() {
    let options = RecordBatchOptions::new().with_row_count(Some(77));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    let mut writer = BlockWriter::default();
    assert_eq!(BlockReader::new(batch.schema()).read(writer.write(&batch).unwrap()).unwrap().num_rows(), 77);
}

#[test]
fn any_byte_of_a_block_that_changes_is_noticed() {
    let random = &mut Random::seed_from_u64(1);
    let mut block = vec![];
    let batch = loop {
        let batch = batch(random, &[5, 17, 1]);
        if batch.num_rows() == 100 {
            BlockWriter::default().write(&batch).unwrap().clone_into(&mut block);
            break batch;
        }
    };
    let mut reader = BlockReader::new(batch.schema());
    assert_eq!(reader.read(&block).unwrap(), batch);
    for place in 0..block.len() {
        let mut damaged = block.clone();
        damaged[place] ^= 1 << (place % 8);
        assert!(reader.read(&damaged).is_err(), "byte {place}");
    }
    for length in 0..block.len() {
        assert!(reader.read(&block[..length]).is_err(), "{length} bytes");
    }
    assert_eq!(BlockReader::length(&block[..HEADER]).unwrap(), Some(block.len()));
    assert_eq!(BlockReader::length(&block[..HEADER - 1]).unwrap(), None);
    block[2] += 1;
    assert!(matches!(reader.read(&block).unwrap_err(), Error::Version { found: 2 }));
    let foreign = reader.read(&[b'P'; 100]).unwrap_err();
    assert_eq!(foreign.to_string(), "these 100 bytes are neither a compressed column nor a block of them");
}

/// Blocks have right checksums, so that what is wrong in them reaches the parser; half are read with the schema of another.
/// `OVERSPILL_TEST_CASES` sets their number.
#[test]
fn forged_blocks_give_an_error_or_valid_arrays() {
    let random = &mut Random::seed_from_u64(2);
    let mut blocks: Vec<(Vec<u8>, SchemaRef)> = vec![];
    for kind in (0..KINDS).cycle().take(3 * KINDS) {
        let batch = batch(random, &[kind]);
        blocks.push((BlockWriter::default().write(&batch).unwrap().to_vec(), batch.schema()));
    }
    let (mut refused, mut read) = (0, 0);
    for _ in 0..cases(20_000) {
        let (block, schema) = &blocks[random.random_range(0..blocks.len())];
        let mut block = block.clone();
        let is_foreign = random.random();
        let schema = if is_foreign { &blocks[random.random_range(0..blocks.len())].1 } else { schema };
        for _ in 0..random.random_range(u32::from(!is_foreign)..3) {
            // Most of them where lengths and numbers of rows are.
            let most = if random.random_bool(0.3) { block.len() } else { block.len().min(96) };
            let place = random.random_range(8..most);
            block[place] = match random.random_range(0..3) {
                0 => random.random(),
                1 => block[place] ^ 1 << random.random_range(0..8),
                _ => [0, 1, 0xFF, 0x7F][random.random_range(0..4)],
            };
        }
        if random.random_bool(0.1) {
            block.truncate(random.random_range(HEADER / 8..=block.len() / 8) * 8);
            let length = block.len() as u64;
            block[LENGTH].copy_from_slice(&length.to_le_bytes());
        }
        seal(&mut block, &CHECKSUM);
        match BlockReader::new(Arc::clone(schema)).read(&block) {
            Ok(batch) => {
                assert_eq!(batch.num_rows() as u64, u64::from_le_bytes(block[8..16].try_into().unwrap()));
                batch.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > read / 10 && read > refused / 20, "{refused} refused, {read} read");
}
