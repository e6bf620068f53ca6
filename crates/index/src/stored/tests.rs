use std::io::{Seek, SeekFrom, Write};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::{IndexKind, WordRanges};

fn description(kind: IndexKind, rows: u64) -> StoredDescription {
    let file = IndexedFile { path: "t.parquet".into(), size: 9, inode: 8, modified: -7, changed: 6, footer: 5, rows };
    let (name, column, data_type) = ("i".to_owned(), "k".to_owned(), "Int64".to_owned());
    StoredDescription { name, column, data_type, kind, nulls: 3, files: vec![file], included: vec![] }
}

/// Sorted keys with the numbers of their rows.
fn pairs(random: &mut StdRng, count: usize) -> Vec<(u64, u64)> {
    let spread = [1, 10, 3000, u64::MAX][random.random_range(0..4)];
    let mut pairs: Vec<_> = (0..count as u64).map(|row| (random.random_range(0..=spread), row)).collect();
    pairs.sort_unstable();
    pairs
}

fn write(file: std::fs::File, pairs: &[(u64, u64)], table_rows: u64, kind: IndexKind) -> std::fs::File {
    let mut writer = StoredIndexWriter::new(file, table_rows).unwrap();
    for part in pairs.chunks(700) {
        let (keys, rows): (Vec<_>, Vec<_>) = part.iter().copied().unzip();
        writer.push(&keys, &rows).unwrap();
    }
    writer.finish(&description(kind, table_rows), &included(pairs.len())[..]).unwrap()
}

/// The bytes of included columns.
fn included(rows: usize) -> Vec<u8> {
    (0..rows * 37).map(|place| (place * 7 % 251) as u8).collect()
}

/// Probes that are in ascending order, with keys and without.
fn probes(random: &mut StdRng, pairs: &[(u64, u64)]) -> Vec<u64> {
    let mut probes = vec![0, u64::MAX];
    for _ in 0..100 {
        let near = if pairs.is_empty() { random.random() } else { pairs[random.random_range(0..pairs.len())].0 };
        probes.push(near.wrapping_add(random.random_range(0..3)).wrapping_sub(1));
    }
    probes.sort_unstable();
    probes.dedup();
    probes
}

fn rows(pairs: &[(u64, u64)], has: impl Fn(u64) -> bool) -> Vec<u64> {
    pairs.iter().filter(|(key, _)| has(*key)).map(|(_, row)| *row).collect()
}

/// The rows at the places that were found, which are in order and do not touch.
fn rows_at(pairs: &[(u64, u64)], found: &FoundPlaces) -> Vec<u64> {
    assert!(found.places.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", found.places);
    found
        .places
        .iter()
        .flat_map(|places| &pairs[places.start as usize..places.end as usize])
        .map(|(_, row)| *row)
        .collect()
}

#[test]
fn what_is_written_is_found() {
    for case in 0..300 {
        let random = &mut StdRng::seed_from_u64(case);
        let count = [0, 1, 511, 512, 513, 1024, 5000][case as usize % 7];
        let pairs = pairs(random, count);
        let kind = IndexKind::ALL[case as usize % 5];
        // Row numbers of four bytes, and of eight.
        let table_rows = if case % 2 == 0 { count as u64 + 3 } else { 1 << 33 };
        let file = write(tempfile::tempfile().unwrap(), &pairs, table_rows, kind);
        let read = read_description(&file).unwrap();
        assert_eq!(read, description(kind, table_rows), "case {case}");
        let index = StoredIndex::open(file, read.kind).unwrap();
        assert_eq!(index.rows(), count as u64);
        let probes = probes(random, &pairs);
        let mut found = FoundRows::default();
        index.look_up(&probes, &mut found).unwrap();
        assert_eq!(found.rows, rows(&pairs, |key| probes.contains(&key)), "case {case}");
        let mut places = FoundPlaces::default();
        for probes in probes.chunks(30) {
            index.look_up_places(probes, &mut places).unwrap();
        }
        assert_eq!(rows_at(&pairs, &places), found.rows, "case {case}");
        assert_eq!(places.blocks(), found.blocks(), "case {case}");
        let words = WordRanges::of(probes.chunks(2).step_by(5).map(|pair| pair[0]..=pair[pair.len() - 1]));
        let mut found = FoundRows::default();
        index.look_up_ranges(&words, &mut found).unwrap();
        let expected = rows(&pairs, |key| words.ranges().iter().any(|range| range.contains(&key)));
        assert_eq!(found.rows, expected, "case {case}");
        let mut places = FoundPlaces::default();
        index.look_up_place_ranges(&words, &mut places).unwrap();
        assert_eq!(rows_at(&pairs, &places), expected, "case {case}");
        let (least, most) = index.count(&words);
        assert!(
            (least..=most).contains(&(expected.len() as u64)),
            "case {case}: {least} to {most}, {}",
            expected.len()
        );
    }
}

#[test]
fn few_blocks_are_read_for_a_few_keys() {
    let pairs: Vec<_> = (0..100_000).map(|row| (row * 3, row)).collect();
    let file = write(tempfile::tempfile().unwrap(), &pairs, 100_000, IndexKind::RadixSpline);
    let index = StoredIndex::open(file, IndexKind::RadixSpline).unwrap();
    let mut found = FoundRows::default();
    index.look_up(&[3, 6, 9, 150_000, 150_001, 299_997], &mut found).unwrap();
    assert_eq!(found.rows, [1, 2, 3, 50_000, 99_999]);
    assert_eq!(found.blocks(), 3);
}

#[test]
fn any_part_of_the_included_columns_is_read() {
    let pairs: Vec<_> = (0..5000).map(|row| (row, row)).collect();
    let columns = IncludedColumns::open(write(tempfile::tempfile().unwrap(), &pairs, 5000, IndexKind::BTree)).unwrap();
    let bytes = included(5000);
    assert_eq!(columns.bytes(), bytes.len() as u64);
    let random = &mut StdRng::seed_from_u64(3);
    for case in 0..200 {
        let start = random.random_range(0..=bytes.len());
        let end = if case % 2 == 0 { bytes.len() } else { random.random_range(start..=bytes.len()) };
        assert_eq!(columns.read(start as u64..end as u64).unwrap(), bytes[start..end], "{start}..{end}");
    }
    let beyond = bytes.len() as u64 + 1;
    assert!(matches!(columns.read(0..beyond), Err(StoredError::Damaged { .. })));
}

/// Every answer of a damaged file is right, or it is refused. `OVERSPILL_TEST_CASES` is the number of damaged files.
#[test]
fn damaged_files_are_refused_or_answer_right() {
    let cases: u64 = std::env::var("OVERSPILL_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000);
    let random = &mut StdRng::seed_from_u64(1);
    let (mut refused, mut answered) = (0, 0);
    let (mut pairs, mut intact) = (Vec::new(), Vec::new());
    for case in 0..cases {
        if case % 500 == 0 {
            let count = [1, 512, 700, 2000][random.random_range(0..4)];
            pairs = self::pairs(random, count);
            let mut writer = StoredIndexWriter::new(Vec::new(), count as u64).unwrap();
            let (keys, rows): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
            writer.push(&keys, &rows).unwrap();
            let description = description(IndexKind::ALL[case as usize % 5], count as u64);
            intact = writer.finish(&description, &included(count)[..]).unwrap();
        }
        let mut bytes = intact.clone();
        let place = random.random_range(0..bytes.len());
        match random.random_range(0..5) {
            0 => bytes[place] ^= 1 << random.random_range(0..8),
            1 => bytes.truncate(place),
            2 => bytes.extend_from_within(place..),
            3 => {
                let end = (place + random.random_range(1..64)).min(bytes.len());
                random.fill(&mut bytes[place..end]);
            }
            _ => {
                let other = random.random_range(0..bytes.len());
                let length = random.random_range(1..600).min(intact.len() - place.max(other));
                bytes.copy_within(other..other + length, place);
            }
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let probes = probes(random, &pairs);
        let mut found = FoundRows::default();
        let expected = included(pairs.len());
        let start = random.random_range(0..expected.len());
        let part = start..random.random_range(start..=expected.len());
        let answer = read_description(&file).and_then(|description| {
            let columns = IncludedColumns::open(file.try_clone()?)?.read(part.start as u64..part.end as u64)?;
            let index = StoredIndex::open(file, description.kind)?;
            index.look_up(&probes, &mut found)?;
            Ok((description, columns))
        });
        match answer {
            Ok((read, columns)) => {
                assert_eq!(read.name, "i", "case {case}");
                assert_eq!(columns, expected[part], "case {case}");
                assert_eq!(found.rows, rows(&pairs, |key| probes.contains(&key)), "case {case}");
                answered += 1;
            }
            Err(StoredError::NotAnIndex | StoredError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("case {case}: {error}"),
        }
    }
    // Damage to a block that no key asks for is not seen.
    assert!(refused * 2 > cases && answered > 0, "{refused} refused, {answered} answered");
}

#[test]
fn keys_out_of_order_are_not_written() {
    let mut writer = StoredIndexWriter::new(Vec::new(), 3).unwrap();
    writer.push(&[1, 5], &[0, 1]).unwrap();
    let error = writer.push(&[4], &[2]).unwrap_err().to_string();
    assert!(error.contains("4 follows 5"), "{error}");
}

#[test]
fn a_file_that_is_cut_off_while_it_is_used_is_refused() {
    let pairs: Vec<_> = (0..10_000).map(|row| (row, row)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("i");
    let file = std::fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    let index = StoredIndex::open(write(file, &pairs, 10_000, IndexKind::BTree), IndexKind::BTree).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20_000).unwrap();
    let mut found = FoundRows::default();
    index.look_up(&[7], &mut found).unwrap();
    assert_eq!(found.rows, [7]);
    assert!(matches!(index.look_up(&[9000], &mut found), Err(StoredError::NotAnIndex)));
}
