//! Joins of what ranks have after a shuffle are the join of all rows.

use std::collections::HashMap;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::row::OwnedRow;
use overspill_exchange::transport::Network;
use overspill_exchange::{Levels, ShuffleSpec, Topology};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::ranks::{ranks, shuffle_all};
use crate::rows::{Tables, converted, joined};

/// The rows of batches, each with how often it is there.
fn counted<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>, schema: &SchemaRef) -> HashMap<OwnedRow, usize> {
    let mut rows = HashMap::new();
    for row in converted(batches, schema, 0..schema.fields().len()) {
        *rows.entry(row.1).or_default() += 1;
    }
    rows
}

fn cases() -> u64 {
    std::env::var("OVERSPILL_TEST_CASES").ok().map_or(150, |cases| cases.parse().unwrap())
}

/// One to nine ranks on up to four nodes, which need not be alike.
pub fn topology(random: &mut StdRng) -> Topology {
    let count = random.random_range(1..=9);
    if random.random_bool(0.5) {
        return Topology::of_nodes(count, random.random_range(1..=4)).unwrap();
    }
    let nodes = random.random_range(1..=count.min(4));
    Topology::new(
        &(0..count).map(|rank| if rank < nodes { rank } else { random.random_range(0..nodes) }).collect::<Vec<_>>(),
    )
    .unwrap()
}

#[test]
fn joins_of_shuffled_rows_are_the_join_of_all_rows() {
    let first = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() * 1000;
    let first = std::env::var("OVERSPILL_TEST_SEED").ok().map_or(first, |seed| seed.parse().unwrap());
    println!("OVERSPILL_TEST_SEED={first}");
    let mut rounds = 0;
    for seed in first..first + cases() {
        rounds += joins(seed);
    }
    assert!(rounds > 10 * cases(), "{rounds} rounds: too few");
}

/// Returns the rounds of all ranks.
fn joins(seed: u64) -> u64 {
    let random = &mut StdRng::seed_from_u64(seed);
    let topology = topology(random);
    let tables = Tables::random(seed, topology.ranks());
    let network = random.random_bool(0.5).then(|| Network {
        seed,
        most_delay: Duration::from_micros(random.random_range(0..400)),
        ..Network::default()
    });
    let endpoints = ranks(topology, network);
    let schemas = [tables.schema(0), tables.schema(1)];
    let levels = if random.random_bool(0.5) { Levels::One } else { Levels::Two };
    let (is_compressed, round_bytes) = (random.random_bool(0.5), 1 << random.random_range(8..17));
    let null_equal = random.random_bool(0.2);
    let spec = |side: usize| ShuffleSpec {
        number: side as u64,
        schema: schemas[side].clone(),
        keys: (0..tables.keys).collect(),
        null_equal,
        levels,
        is_compressed,
        round_bytes,
        heavy: None,
    };
    let mut rounds = 0;
    let shuffled = [0, 1].map(|side| shuffle_all(&endpoints, &spec(side), &tables.sides[side]));
    for side in [0, 1] {
        let all: Vec<&RecordBatch> = shuffled[side].iter().flat_map(|(batches, _)| batches).collect();
        let before = counted(tables.sides[side].iter().flatten(), &schemas[side]);
        assert!(counted(all, &schemas[side]) == before, "seed {seed}: rows of side {side}");
        rounds += shuffled[side].iter().flat_map(|(_, levels)| levels).map(|level| level.rounds).sum::<u64>();
    }
    let sides = [0, 1].map(|side| tables.sides[side].iter().flatten().cloned().collect::<Vec<_>>());
    let expected = joined([&sides[0], &sides[1]], [&schemas[0], &schemas[1]], tables.keys);
    let of_rank = |rank: usize| [0, 1].map(|side| &shuffled[side][rank].0[..]);
    let mut pairs: Vec<_> =
        (0..endpoints.len()).flat_map(|rank| joined(of_rank(rank), [&schemas[0], &schemas[1]], tables.keys)).collect();
    pairs.sort_unstable();
    assert!(pairs == expected, "seed {seed}: {} pairs in place of {}", pairs.len(), expected.len());
    rounds
}

/// A shuffle of rows like these by their first column.
fn by_first_column(batch: &RecordBatch, levels: Levels, is_compressed: bool, round_bytes: usize) -> ShuffleSpec {
    let schema = batch.schema();
    ShuffleSpec { number: 0, schema, keys: vec![0], null_equal: false, levels, is_compressed, round_bytes, heavy: None }
}

/// Rows from one rank to another keep their order, on which compression lives.
#[test]
fn rows_keep_their_order() {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    for levels in [Levels::One, Levels::Two] {
        let endpoints = ranks(Topology::of_nodes(6, 2).unwrap(), None);
        let batches: Vec<Vec<RecordBatch>> = (0..6)
            .map(|rank| {
                let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..5000).map(|row| rank * 5000 + row)));
                vec![RecordBatch::try_from_iter([("key", keys)]).unwrap()]
            })
            .collect();
        let spec = by_first_column(&batches[0][0], levels, true, 1 << 14);
        for (batches, _) in shuffle_all(&endpoints, &spec, &batches) {
            let mut last = [-1; 6];
            for key in batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values()) {
                let of_rank = &mut last[(key / 5000) as usize];
                assert!(*of_rank < *key);
                *of_rank = *key;
            }
        }
    }
}

/// Dictionaries of several ranks that fit no one batch come in several.
#[test]
fn dictionaries_with_too_many_values_together_arrive() {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, DictionaryArray, Int64Array};
    use arrow::datatypes::Int8Type;

    let endpoints = ranks(Topology::of_nodes(4, 4).unwrap(), None);
    let batches: Vec<Vec<RecordBatch>> = (0..4)
        .map(|rank| {
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..400));
            let texts: Vec<String> = (0..400).map(|row| format!("text {rank} {}", row % 100)).collect();
            let texts: DictionaryArray<Int8Type> = texts.iter().map(|text| Some(text.as_str())).collect();
            vec![RecordBatch::try_from_iter([("key", keys), ("text", Arc::new(texts) as ArrayRef)]).unwrap()]
        })
        .collect();
    let spec = by_first_column(&batches[0][0], Levels::One, false, 1 << 20);
    let mut texts = std::collections::HashSet::new();
    for (batches, _) in shuffle_all(&endpoints, &spec, &batches) {
        for batch in &batches {
            let column =
                batch.column(1).as_dictionary::<Int8Type>().downcast_dict::<arrow::array::StringArray>().unwrap();
            texts.extend(column.into_iter().flatten().map(str::to_owned));
        }
    }
    assert_eq!(texts.len(), 400);
}
