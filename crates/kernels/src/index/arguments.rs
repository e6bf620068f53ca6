//! Indexes in memory that kernels read, and kernel arguments with the layout of `index/arguments.cuh`.

use overspill_machine::memory::View;
use overspill_machine::{Error, Result};

/// Equals `kMaxIndexLevels`.
const MOST_LEVELS: usize = 16;
/// Keys of a node of Harmonia.
const HARMONIA_KEYS: u64 = 32;
/// Bytes of a spline point.
const POINT: u64 = 16;
/// Bytes of a line of sorted keys. Kernels read keys in pairs, so the last line must be whole.
const LINE: u64 = 64;

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct IndexArguments {
    keys: u64,
    length: u64,
    smallest: u64,
    largest: u64,
    rows: u64,
    nodes: u64,
    children: u64,
    points: u64,
    table: u64,
    shift: u32,
    levels: u32,
    node_keys: u32,
    padding: u32,
    level_starts: [u64; MOST_LEVELS],
}

/// What finds places in sorted keys.
#[derive(Debug, Clone, Copy)]
pub enum DeviceSearch<'a> {
    /// The keys alone.
    BinarySearch,
    /// A B+tree without pointers, whose leaves are the sorted keys.
    BTree {
        /// The keys of the inner nodes, 8 bytes each.
        nodes: View<'a>,
        /// The number of keys of a node.
        node_keys: u32,
        /// The first node of each level of inner nodes, from the root on.
        levels: &'a [usize],
    },
    /// A B+tree of nodes of 32 keys.
    Harmonia {
        /// The keys of the inner nodes, 8 bytes each, from the root on.
        key_region: View<'a>,
        /// The first child of each inner node, 4 bytes each; of the lowest level, a run of 32 sorted keys.
        child_region: View<'a>,
        /// The number of levels of inner nodes.
        levels: u32,
    },
    /// A spline through the sorted keys.
    RadixSpline {
        /// Keys with their places, 16 bytes each; the first is the smallest key, the last the largest.
        points: View<'a>,
        /// For each value of the upper bits of a key's distance from the smallest key, the first point with these or larger upper
        /// bits, 4 bytes each; and the number of points.
        table: View<'a>,
        /// Lower bits of a distance that the table ignores.
        shift: u32,
    },
}

impl DeviceSearch<'_> {
    /// The name of its kernels.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::BinarySearch => "binary_search",
            Self::BTree { .. } => "btree",
            Self::Harmonia { .. } => "harmonia",
            Self::RadixSpline { .. } => "radix_spline",
        }
    }
}

/// Sorted keys of 8 bytes with an index over them, in memory that kernels read.
#[derive(Debug, Clone, Copy)]
pub struct DeviceIndex<'a> {
    arguments: IndexArguments,
    search: DeviceSearch<'a>,
}

impl<'a> DeviceIndex<'a> {
    /// An index over sorted keys. `keys` holds them, 8 bytes each, and `length` is their number. `range` is the smallest and the largest
    /// key, or two zeros if there are no keys. `rows` holds the number of each key's row, 4 bytes each. Without `rows` the rows are in
    /// the order of the keys.
    ///
    /// # Errors
    /// If an array is too short or misaligned, or the tree has too many levels.
    ///
    /// # Safety
    /// The keys must be sorted, have this range, and followed by the largest number up to a multiple of 64 bytes, and the arrays of `search` must be an
    /// index over these keys: kernels read what nodes, points and tables refer to without a check.
    pub unsafe fn new(
        keys: View<'a>,
        length: u64,
        (smallest, largest): (u64, u64),
        rows: Option<View<'a>>,
        search: DeviceSearch<'a>,
    ) -> Result<Self> {
        let mut arguments = IndexArguments {
            keys: array("sorted keys", keys, 16, (length * 8).next_multiple_of(LINE))?,
            length,
            smallest,
            largest,
            ..IndexArguments::default()
        };
        if let Some(rows) = rows {
            arguments.rows = array("the row numbers of an index", rows, 4, length * 4)?;
        }
        match search {
            DeviceSearch::BinarySearch => {}
            DeviceSearch::BTree { nodes, node_keys, levels } => {
                let Some(starts) = arguments.level_starts.get_mut(..levels.len()) else {
                    return Err(too_many_levels(levels.len()));
                };
                starts.iter_mut().zip(levels).for_each(|(start, level)| *start = *level as u64);
                let fewest = levels.last().map_or(0, |last| *last as u64 + 1);
                arguments.nodes = array("nodes of a B+tree", nodes, 8, fewest * u64::from(node_keys) * 8)?;
                (arguments.levels, arguments.node_keys) = (levels.len() as u32, node_keys);
                if node_keys == 0 {
                    return Err(Error::Invalid("a B+tree whose nodes have no keys".to_owned()));
                }
            }
            DeviceSearch::Harmonia { key_region, child_region, levels } => {
                let nodes = child_region.bytes() / 4;
                if levels as usize > MOST_LEVELS {
                    return Err(too_many_levels(levels as usize));
                }
                let fewest = nodes.max(u64::from(levels));
                arguments.nodes = array("the key region of Harmonia", key_region, 16, fewest * HARMONIA_KEYS * 8)?;
                arguments.children = array("the child region of Harmonia", child_region, 4, u64::from(levels) * 4)?;
                arguments.levels = levels;
            }
            DeviceSearch::RadixSpline { points, table, shift } => {
                if shift >= u64::BITS || smallest > largest {
                    return Err(Error::Invalid(format!("a spline from {smallest} to {largest}, shifted by {shift}")));
                }
                let entries = ((largest - smallest) >> shift) + 2;
                let fewest = if length == 0 { 0 } else { entries * 4 };
                arguments.table = array("the table of a RadixSpline", table, 4, fewest)?;
                arguments.points = array("the points of a RadixSpline", points, 16, POINT * length.min(1))?;
                arguments.shift = shift;
            }
        }
        Ok(Self { arguments, search })
    }

    /// What finds places in the keys.
    pub fn search(&self) -> &DeviceSearch<'a> {
        &self.search
    }

    /// The smallest and the largest key.
    pub fn range(&self) -> (u64, u64) {
        (self.arguments.smallest, self.arguments.largest)
    }

    pub(super) fn arguments(&self) -> &IndexArguments {
        &self.arguments
    }
}

/// The address of an array, if it is aligned and long enough.
fn array(name: &str, view: View<'_>, alignment: u64, bytes: u64) -> Result<u64> {
    if view.bytes() < bytes {
        return Err(Error::Invalid(format!("{name} have {} bytes of {bytes}", view.bytes())));
    }
    if !view.address().is_multiple_of(alignment) {
        return Err(Error::Invalid(format!("{name} start at an address that is not a multiple of {alignment}")));
    }
    Ok(view.address())
}

fn too_many_levels(levels: usize) -> Error {
    Error::Invalid(format!("an index of {levels} levels: kernels take {MOST_LEVELS}"))
}
