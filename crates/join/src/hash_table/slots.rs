//! Writes rows into one table from several threads, without locks.
//!
//! `tests/loom` compiles this file with a model checker's atomics.

use std::ops::Range;

use overspill_machine::memory::prefetch;

/// Prefetch distance in rows for lookups and writes: more than the misses that a core can have outstanding.
pub(super) const AHEAD: usize = 64;

/// Writes rows into their slots: `put` is called with each row that has a slot, and with the slot.
///
/// Other threads may write other rows at the same time, into any slots. `put` must be one plain store: an operation that also
/// reads would wait for the cache miss of the previous store. If two rows share a slot, either stays, and the number of
/// occupied slots is then less than the number of rows.
#[inline(always)]
pub(super) fn put_rows<S>(
    slots: &[S],
    rows: Range<usize>,
    slot_of: impl Fn(usize) -> Option<usize>,
    put: impl Fn(usize, &S),
) {
    let Some(last) = rows.end.checked_sub(1) else { return };
    for row in rows {
        // Stores complete in order, each after its cache miss; prefetches overlap.
        if let Some(ahead) = slot_of((row + AHEAD).min(last)) {
            prefetch(&slots[ahead]);
        }
        if let Some(slot) = slot_of(row) {
            put(row, &slots[slot]);
        }
    }
}
