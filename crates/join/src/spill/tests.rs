//! Tests that levels use disjoint bits of a hash, and that floors and stages grow with the number of columns.

use super::*;

#[test]
fn levels_use_disjoint_bits() {
    let first = Radix::new(0, 16).unwrap();
    let second = Radix::new(first.used_bits(), 64).unwrap();
    assert_eq!((first.fanout(), second.fanout()), (16, 64));
    let hash = 0xABCD_EF01_2345_6789;
    assert_eq!(first.partition(hash), 0xA);
    assert_eq!(second.partition(hash), 0b10_1111);
    assert!(Radix::new(36, 16).is_some());
    assert!(Radix::new(37, 16).is_none());
    assert!(!Radix::has_bits(38, 64));
}

#[test]
fn floors_and_stages_grow_with_the_number_of_columns() {
    let tuning = SpillTuning { enabled: true, max_fanout: 64, max_depth: 8, probers: 1 };
    assert_eq!(SpillTuning::floor(4), store::MIN_FLOOR);
    assert!(SpillTuning::floor(5_000) > SpillTuning::floor(500));
    for columns in [1, 10, 5_000] {
        for memory in [0, 1 << 20, 64 << 20, 1 << 40] {
            let stage = tuning.stage(columns, memory);
            assert!(2 * stage <= SpillTuning::floor(columns).max(memory), "{columns} columns, {memory} bytes");
            let fanout = tuning.fanout(columns, stage);
            assert!(fanout.is_power_of_two() && (16..=64).contains(&fanout));
        }
    }
}
