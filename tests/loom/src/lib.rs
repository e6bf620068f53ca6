//! The files of `overspill-join` whose data several threads write at once without locks, compiled with loom's atomics: its tests
//! run every order in which the operations of the threads may take effect.
//!
//! `cargo test --manifest-path tests/loom/Cargo.toml`, which `make test` runs as well.

#![cfg(test)]

/// The files name the crate that asks for cache lines ahead, which no model has.
extern crate self as overspill_machine;

/// What they use of it.
pub mod memory {
    /// Does nothing.
    pub fn prefetch<T>(_: &T) {}
}

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../../../crates/join/src/hash_table"]
#[expect(dead_code, reason = "models do not ask for everything that is in the files")]
mod hash_table {
    mod slots;
    mod visited;

    mod tests {
        use loom::sync::Arc;
        use loom::thread;

        use super::slots::put_rows;
        use super::visited::VisitedRows;
        use crate::atomic::{AtomicU64, Ordering};

        #[test]
        fn no_mark_is_lost_whoever_marks_what() {
            loom::model(|| {
                // Rows of one word, which both set, and of another.
                let visited = Arc::new(VisitedRows::new(65));
                let threads = [[0, 1, 64], [1, 2, 64]].map(|rows| {
                    let visited = Arc::clone(&visited);
                    thread::spawn(move || rows.map(|row| visited.set(row)))
                });
                threads.into_iter().for_each(|thread| _ = thread.join().unwrap());
                let rows: Vec<u32> = (0..65).filter(|row| visited.get(*row)).collect();
                assert_eq!(rows, [0, 1, 2, 64]);
            });
        }

        #[test]
        fn no_row_is_lost_and_two_rows_of_a_slot_are_noticed() {
            // The keys of two threads, and how many slots they take.
            for (keys, taken) in [([[7, 9], [8, 10]], 4), ([[7, 9], [9, 10]], 3), ([[8, 8], [8, 8]], 1)] {
                loom::model(move || {
                    let slots = Arc::new([0; 4].map(AtomicU64::new));
                    let threads = [0, 1].map(|number| {
                        let slots = Arc::clone(&slots);
                        thread::spawn(move || {
                            let slot_of = |row: usize| Some(keys[row / 2][row % 2] as usize - 7);
                            put_rows(&slots[..], 2 * number..2 * number + 2, slot_of, |row, slot| {
                                slot.store(row as u64 + 1, Ordering::Relaxed);
                            });
                        })
                    });
                    threads.into_iter().for_each(|thread| thread.join().unwrap());
                    let rows = slots.iter().map(|slot| slot.load(Ordering::Relaxed));
                    let rows: Vec<(u64, u64)> = (7..).zip(rows).filter(|(_, row)| *row > 0).collect();
                    assert_eq!(rows.len(), taken, "{rows:?}");
                    for (key, row) in rows {
                        assert_eq!(
                            keys[(row as usize - 1) / 2][(row as usize - 1) % 2],
                            key,
                            "a row in the slot of another key"
                        );
                    }
                });
            }
        }
    }
}
