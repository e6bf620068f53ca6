//! Columns of all kinds come back as they were, and damaged ones are refused.

use std::fmt::Debug;

use overspill_codec::{CHUNK, Cascade, ColumnInfo, Error, Integer, Selector, Stack};
use rand::distr::{Distribution, StandardUniform};
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `OVERSPILL_TEST_CASES` is the number of columns.
fn cases(default: u64) -> u64 {
    std::env::var("OVERSPILL_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

/// Integers as real columns have them: runs, steps, few values, extremes, and none of that.
fn column<I: Integer>(random: &mut ChaCha8Rng) -> Vec<I>
where
    StandardUniform: Distribution<I>,
{
    let length = match random.random_range(0..10) {
        0 => 0,
        1 => random.random_range(1..4),
        2..6 => random.random_range(1..2 * CHUNK / 4),
        _ => *[CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 7, 2 * CHUNK].choose(random).unwrap(),
    };
    let few: Vec<I> = (0..random.random_range(1..6)).map(|_| random.random()).collect();
    let (kind, most) = (random.random_range(0..6), random.random_range(1..300_usize));
    let step: u64 = random.random_range(0..5);
    let mut word = random.next_u64();
    let mut values = Vec::with_capacity(length);
    while values.len() < length {
        let run = if kind == 0 { 1 } else { random.random_range(1..=most) };
        word = match kind {
            1 => word.wrapping_add(step),
            2 => word.wrapping_add(random.random_range(0..40)).wrapping_sub(20),
            _ => word,
        };
        let value = match kind {
            0 => random.random(),
            1 | 2 => of_word(word),
            _ => *few.choose(random).unwrap(),
        };
        values.extend(std::iter::repeat_n(value, run.min(length - values.len())));
    }
    values
}

/// The integer with the low bits of a word.
fn of_word<I: Integer>(word: u64) -> I {
    use overspill_codec::Bits;
    I::from_bits(I::Bits::of_word(word))
}

fn round_trips<I: Integer + Debug>(seeds: std::ops::Range<u64>)
where
    StandardUniform: Distribution<I>,
{
    let mut cascade = Cascade::new();
    for seed in seeds {
        let values = column::<I>(&mut ChaCha8Rng::seed_from_u64(seed));
        for stack in Stack::ALL {
            let case = format!("seed {seed}, {} integers of {} bytes by {stack}", values.len(), size_of::<I>());
            // What stands there stays.
            let (mut bytes, mut again) = (vec![1, 2, 3], vec![I::default()]);
            cascade.compress(&values, stack, &mut bytes).unwrap();
            let most = size_of_val(&values[..]) + 64 + 16 * values.len().div_ceil(CHUNK);
            assert!(bytes.len() - 3 <= most, "{case}: {} bytes", bytes.len() - 3);
            let info = ColumnInfo::of(&bytes[3..]).unwrap();
            assert_eq!((info.values, info.stack, info.width), (values.len(), stack, size_of::<I>()), "{case}");
            cascade.decompress(&bytes[3..], &mut again).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(again[1..] == values, "{case}");
        }
    }
}

#[test]
fn columns_of_all_types_round_trip_by_all_stacks() {
    let cases = cases(60);
    round_trips::<u8>(0..cases);
    round_trips::<i8>(0..cases);
    round_trips::<u16>(0..cases);
    round_trips::<i16>(0..cases);
    round_trips::<u32>(0..cases);
    round_trips::<i32>(0..cases);
    round_trips::<u64>(0..cases);
    round_trips::<i64>(0..cases);
}

#[test]
fn extremes_round_trip_and_constants_take_little() {
    let mut cascade = Cascade::new();
    for stack in Stack::ALL {
        for values in [vec![i64::MIN, i64::MAX, -1, 0], vec![i64::MIN; 10_000], vec![7; 100_000]] {
            let (mut bytes, mut again) = (vec![], vec![]);
            cascade.compress(&values, stack, &mut bytes).unwrap();
            cascade.decompress(&bytes, &mut again).unwrap();
            assert_eq!(again, values, "{stack}");
            assert!(
                values.len() < 10 || bytes.len() < 64 + 56 * values.len().div_ceil(CHUNK),
                "{stack}: {}",
                bytes.len()
            );
        }
    }
}

#[test]
fn any_byte_that_changes_is_noticed() {
    let mut cascade = Cascade::new();
    let values: Vec<u32> = (0..5000).map(|value| value / 3 * 7).collect();
    let mut bytes = vec![];
    cascade.compress(&values, Stack::new(2, 1).unwrap(), &mut bytes).unwrap();
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << (place % 8);
        let mut again = vec![];
        assert!(cascade.decompress(&damaged, &mut again).is_err(), "byte {place}");
        assert!(again.is_empty());
    }
    for length in 0..bytes.len() {
        assert!(cascade.decompress(&bytes[..length], &mut vec![]).is_err(), "{length} bytes");
    }
    let mut longer = bytes.clone();
    longer.extend_from_slice(&[0; 8]);
    assert!(cascade.decompress(&longer, &mut vec![]).is_err());
}

#[test]
fn what_is_no_such_column_is_refused_in_a_sentence() {
    let mut bytes = vec![];
    Cascade::<u32>::new().compress(&[1, 2, 3], Stack::ALL[0], &mut bytes).unwrap();
    let wide = Cascade::<u64>::new().decompress(&bytes, &mut vec![]).unwrap_err();
    assert_eq!(wide.to_string(), "the column has integers of 4 bytes, and those of 8 bytes were expected");
    bytes[2] = 9;
    let later = Cascade::<u32>::new().decompress(&bytes, &mut vec![]).unwrap_err();
    assert!(matches!(later, Error::Version { found: 9 }), "{later}");
    let foreign = Cascade::<u32>::new().decompress(&[b'P'; 100], &mut vec![]).unwrap_err();
    assert_eq!(foreign.to_string(), "these 100 bytes are neither a compressed column nor a block of them");
}

#[test]
fn the_selector_finds_what_table_1_says() {
    // As in TPC-H: of each 32 keys the first 8 are used, and orders have 1 to 7 lines.
    let random = &mut ChaCha8Rng::seed_from_u64(1);
    let orders: Vec<i64> = (0..200_000).map(|order| order / 8 * 32 + order % 8).collect();
    let lines: Vec<i64> = orders.iter().flat_map(|key| std::iter::repeat_n(*key, random.random_range(1..=7))).collect();
    let priorities: Vec<i32> = orders.iter().map(|_| random.random_range(0..5)).collect();
    let chosen = |values: &[i64]| Selector::default().choose(&[values]);
    let (of_orders, of_lines) = (chosen(&orders), chosen(&lines));
    assert_eq!([of_orders.stack, of_lines.stack], [Stack::new(2, 1).unwrap(); 2]);
    assert!(of_orders.ratio > 25.0 && of_lines.ratio > 40.0, "{of_orders:?}, {of_lines:?}");
    assert_eq!(Selector::default().choose(&[&priorities[..]]).stack, Stack::new(0, 0).unwrap());
    assert_eq!(Selector::default().choose::<u8>(&[]).stack, Stack::new(0, 0).unwrap());
}
