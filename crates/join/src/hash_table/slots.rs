//! Rows that several threads put into one table, without locks.
//!
//! `tests/loom` compiles this file with a model checker's atomics.

use std::ops::Range;

use overspill_machine::memory::prefetch;

/// So many rows ahead of the one that is looked up or written, its place is asked for: more than misses that a core can have
/// at once.
pub(super) const AHEAD: usize = 64;

/// Puts rows into their slots: `put` is given each row that has one, with it.
///
/// Other threads may put other rows at the same time, in any slots. `put` is to be one plain store: an operation that reads as
/// well would wait for the cache miss of the store before it. Where two rows have one slot either stays, and whoever counts
/// the slots that are taken sees that there are fewer than rows.
#[inline(always)]
pub(super) fn put_rows<S>(
    slots: &[S],
    rows: Range<usize>,
    slot_of: impl Fn(usize) -> Option<usize>,
    put: impl Fn(usize, &S),
) {
    let Some(last) = rows.end.checked_sub(1) else { return };
    for row in rows {
        // Stores wait in order, each for its miss; what is asked for ahead comes at once.
        if let Some(ahead) = slot_of((row + AHEAD).min(last)) {
            prefetch(&slots[ahead]);
        }
        if let Some(slot) = slot_of(row) {
            put(row, &slots[slot]);
        }
    }
}
