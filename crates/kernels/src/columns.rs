//! Columns of fixed width, as kernels take them, with the layouts of `key_columns.cuh` and `columns.cuh`.

use std::ops::Range;

use overspill_machine::memory::{View, ViewMut};
use overspill_machine::{Error, Result};

/// The widths of values in bytes.
const WIDTHS: [u64; 5] = [1, 2, 4, 8, 16];
/// Equals `kMaxKeyColumns`.
const MOST_KEY_COLUMNS: usize = 16;

/// A column of keys. Signed and unsigned values are the same to kernels.
#[derive(Debug, Clone, Copy)]
pub struct KeyColumn<'a> {
    /// The values.
    pub values: View<'a>,
    /// Bytes of a value: 1, 2, 4, 8 or 16.
    pub width: u64,
    /// Whether the values are floats, of 2, 4 or 8 bytes. Of these, -0.0 and 0.0 are equal, and NaNs are if their bits are.
    pub is_float: bool,
    /// A bit for each row, from the lowest of a word of 4 bytes on, that says whether the value is not null. Without bits none is.
    pub validity: Option<View<'a>>,
}

/// A column whose rows a kernel copies in another order, as they are.
#[derive(Debug)]
pub struct MovedColumn<'a> {
    /// The values.
    pub from: View<'a>,
    /// Where they go.
    pub to: ViewMut<'a>,
    /// Bytes of a value: 1, 2, 4, 8 or 16.
    pub width: u64,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct KeyColumnArguments {
    values: u64,
    validity: u64,
    width: u32,
    is_float: u32,
}

/// The layout of `KeyColumns`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct KeyArguments {
    column: [KeyColumnArguments; MOST_KEY_COLUMNS],
    columns: u32,
    bits: u32,
}

/// The layout of `MovedColumn`: where the values are, where they go, and their width.
pub(crate) type MovedColumnArguments = [u64; 3];

impl KeyArguments {
    /// Checks the key columns of `rows` rows.
    ///
    /// # Errors
    /// If there are none or more than 16, or one is too short, misaligned, or of another width.
    pub(crate) fn new(keys: &[KeyColumn<'_>], rows: u64) -> Result<Self> {
        if keys.is_empty() || keys.len() > MOST_KEY_COLUMNS {
            return Err(Error::Invalid(format!(
                "a key of {} columns: kernels take 1 to {MOST_KEY_COLUMNS}",
                keys.len()
            )));
        }
        let mut arguments = Self { columns: keys.len() as u32, ..Self::default() };
        for (number, (key, place)) in keys.iter().zip(&mut arguments.column).enumerate() {
            check_width(key.width)?;
            if key.is_float && ![2, 4, 8].contains(&key.width) {
                return Err(Error::Invalid(format!("floats of {} bytes as a key: they have 2, 4 or 8", key.width)));
            }
            check_column(&format!("the values of key column {number}"), key.values, key.width, rows)?;
            if let Some(validity) = key.validity {
                check_column(&format!("the validity bits of key column {number}"), validity, 4, rows.div_ceil(32))?;
            }
            *place = KeyColumnArguments {
                values: key.values.address(),
                validity: key.validity.map_or(0, |validity| validity.address()),
                width: key.width as u32,
                is_float: u32::from(key.is_float),
            };
            arguments.bits += key.width as u32 * 8;
        }
        Ok(arguments)
    }

    /// The bits of all columns of a key.
    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }
}

/// Checks columns of which `rows_read` rows are read and `rows_written` are written, and that what is written overlaps neither what is
/// read nor each other nor `keys`.
pub(crate) fn moved_columns(
    columns: &[MovedColumn<'_>],
    rows_read: u64,
    rows_written: u64,
    keys: &[KeyColumn<'_>],
) -> Result<Vec<MovedColumnArguments>> {
    let mut read: Vec<Range<u64>> =
        keys.iter().flat_map(|key| [Some(key.values), key.validity]).flatten().map(range_of).collect();
    let mut written = vec![];
    for (number, column) in columns.iter().enumerate() {
        check_width(column.width)?;
        read.push(check_column(&format!("the values of column {number}"), column.from, column.width, rows_read)?);
        let to = column.to.as_view();
        written.push(check_column(&format!("the places of column {number}"), to, column.width, rows_written)?);
    }
    check_disjoint(&read, &written)?;
    Ok(columns.iter().map(|column| [column.from.address(), column.to.address(), column.width]).collect())
}

fn check_width(width: u64) -> Result<()> {
    if WIDTHS.contains(&width) {
        return Ok(());
    }
    Err(Error::Invalid(format!("values of {width} bytes: kernels move and compare those of 1, 2, 4, 8 or 16")))
}

fn range_of(view: View<'_>) -> Range<u64> {
    view.address()..view.address() + view.bytes()
}

/// The address range of a column, if it is aligned and long enough.
pub(crate) fn check_column(name: &str, view: View<'_>, width: u64, tuples: u64) -> Result<Range<u64>> {
    let needed = tuples.saturating_mul(width);
    if view.bytes() < needed {
        return Err(Error::Invalid(format!(
            "{name} have {} bytes, and {tuples} tuples of {width} bytes are {needed}",
            view.bytes()
        )));
    }
    if view.address() % width != 0 {
        return Err(Error::Invalid(format!(
            "{name} start at an address that is not a multiple of their {width} bytes"
        )));
    }
    Ok(view.address()..view.address() + needed)
}

/// Checks that no column that is written overlaps another. `O(n log n)`.
///
/// # Errors
/// If one does.
pub(crate) fn check_disjoint(read: &[Range<u64>], written: &[Range<u64>]) -> Result<()> {
    let all = read.iter().map(|range| (range, false)).chain(written.iter().map(|range| (range, true)));
    let mut all: Vec<_> = all.filter(|(range, _)| !range.is_empty()).collect();
    all.sort_by_key(|(range, _)| range.start);
    // The ends of the columns so far, and of those of them that are written.
    let (mut end, mut written_end) = (0, 0);
    for (range, is_written) in all {
        if range.start < if is_written { end } else { written_end } {
            return Err(Error::Invalid(
                "the columns that are written overlap each other or those that are read".to_owned(),
            ));
        }
        end = end.max(range.end);
        if is_written {
            written_end = written_end.max(range.end);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_are_written_overlap_no_other() {
        let is_disjoint = |read: &[(u64, u64)], written: &[(u64, u64)]| {
            let ranges = |ends: &[(u64, u64)]| ends.iter().map(|(start, end)| *start..*end).collect::<Vec<_>>();
            check_disjoint(&ranges(read), &ranges(written)).is_ok()
        };
        assert!(is_disjoint(&[(0, 10), (5, 20), (30, 40)], &[(20, 30), (40, 50)]));
        // What is only read may overlap, and what is empty overlaps nothing.
        assert!(is_disjoint(&[(0, 10), (0, 10), (25, 25)], &[(20, 30), (15, 15)]));
        assert!(!is_disjoint(&[(0, 10)], &[(9, 12)]));
        assert!(!is_disjoint(&[(9, 12)], &[(0, 10)]));
        assert!(!is_disjoint(&[], &[(0, 10), (9, 12)]));
        // Behind a longer one that is read, and within one that is written.
        assert!(!is_disjoint(&[(0, 100), (10, 20)], &[(50, 60)]));
        assert!(!is_disjoint(&[(50, 60)], &[(0, 100), (200, 300)]));
    }
}
