//! Finds the positions of a block with a rank by a second key in a range.

use std::ops::Range;

/// Entries per entry of the level above: a power of two.
const FANOUT: usize = 1 << FANOUT_BITS;

const FANOUT_BITS: usize = 4;

/// A rank for each position, with the lowest and the highest rank of groups of positions.
///
/// ```text
///   levels[1]   of positions 0..256                      of 256..512        …
///   levels[0]   of 0..16   of 16..32   …   of 240..256   …
///   ranks       0 1 2 …
/// ```
///
/// A group without a rank in the requested range is skipped by reading one entry, so that finding the next of `n` positions
/// takes time logarithmic in `n`.
#[derive(Debug)]
pub(super) struct Ranks {
    ranks: Vec<u32>,
    /// The lowest and the highest rank of each group of `FANOUT` entries of the level below.
    levels: Vec<Vec<(u32, u32)>>,
}

impl Ranks {
    /// Creates an index of the rank of each position.
    pub(super) fn new(ranks: Vec<u32>) -> Self {
        let mut levels: Vec<Vec<(u32, u32)>> = Vec::new();
        if ranks.len() > FANOUT {
            let group = |ranks: &[u32]| (*ranks.iter().min().unwrap_or(&0), *ranks.iter().max().unwrap_or(&0));
            levels.push(ranks.chunks(FANOUT).map(group).collect());
        }
        while let Some(level) = levels.last()
            && level.len() > FANOUT
        {
            let group = |entries: &[(u32, u32)]| {
                entries.iter().fold((u32::MAX, 0), |(low, high), entry| (low.min(entry.0), high.max(entry.1)))
            };
            let above = level.chunks(FANOUT).map(group).collect();
            levels.push(above);
        }
        Self { ranks, levels }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.ranks[..]) + self.levels.iter().map(|level| size_of_val(&level[..])).sum::<usize>()
    }

    /// The first of `positions` with a rank in the range.
    pub(super) fn next(&self, positions: Range<u32>, ranks: &Range<u32>) -> Option<u32> {
        let (mut position, end) = (positions.start as usize, positions.end as usize);
        // At level 0 `position` is one position; at higher levels it starts a group of `FANOUT`^level positions.
        let mut level = 0;
        while level < self.levels.len() && begins_group(position, level + 1) {
            level += 1;
        }
        while position < end {
            let is_in = match level.checked_sub(1) {
                None => ranks.contains(&self.ranks[position]),
                Some(above) => {
                    let (low, high) = self.levels[above][position >> (FANOUT_BITS * level)];
                    low < ranks.end && high >= ranks.start
                }
            };
            if is_in {
                if level == 0 {
                    return Some(position as u32);
                }
                level -= 1;
            } else {
                position += 1 << (FANOUT_BITS * level);
                if level < self.levels.len() && begins_group(position, level + 1) {
                    level += 1;
                }
            }
        }
        None
    }
}

fn begins_group(position: usize, level: usize) -> bool {
    position.trailing_zeros() as usize >= FANOUT_BITS * level
}
