//! Keys that most rows have do not make messages large.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use overspill_exchange::{Levels, ShuffleSpec, Topology};

use crate::ranks::{ranks, shuffle_all};

#[test]
fn equal_keys_make_rounds_small() {
    const ROUND: usize = 8 << 10;
    for levels in [Levels::One, Levels::Two] {
        let endpoints = ranks(Topology::of_nodes(8, 2).unwrap(), None);
        let keys: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..8000).map(|row| if row % 10 == 0 { row } else { 7 })));
        let batch = RecordBatch::try_from_iter([("key", keys)]).unwrap();
        let spec = ShuffleSpec {
            number: 0,
            schema: batch.schema(),
            keys: vec![0],
            null_equal: false,
            levels,
            is_compressed: false,
            round_bytes: ROUND,
            heavy: None,
        };
        let all = shuffle_all(&endpoints, &spec, &vec![vec![batch]; 8]);
        let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        let largest = all.iter().map(|(batches, _)| rows(batches)).max().unwrap();
        assert!(largest >= 8 * 7200, "{largest} rows on the rank of the key");
        assert_eq!(all.iter().map(|(batches, _)| rows(batches)).sum::<usize>(), 64_000);
        // What a rank receives in a round is as much as it sends, if one rank receives nearly all.
        for batch in all.iter().flat_map(|(batches, _)| batches) {
            assert!(batch.num_rows() * 8 <= 2 * ROUND, "{} rows in a round", batch.num_rows());
        }
    }
}
