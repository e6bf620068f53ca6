//! The bytes that copies of single rows take, however unevenly they are distributed over the rows of a batch.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, GenericListViewArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::DataType;

/// Maximum bytes of the rows that are copied for one output batch, unless a single row or pair takes more. No grant pays for
/// the copies.
pub const MAX_COPY_BYTES: usize = 4 << 20;

/// Views refer to a buffer for texts longer than this many bytes.
const INLINE: usize = 12;

/// Bytes that copies of the rows of a batch take.
///
/// A text that a view refers to counts as if it were copied, because the join's condition and the operators above the join do
/// copy it. The values of a dictionary do not count.
#[derive(Debug)]
pub struct RowSizes {
    rows: usize,
    /// Bytes of a row in the fixed-width columns.
    fixed: usize,
    /// The columns with values of different sizes.
    variable: Vec<ArrayRef>,
    /// Maximum bytes of a row.
    largest: usize,
}

impl RowSizes {
    /// The sizes of rows of these columns of a batch; a column that is copied twice counts twice.
    pub fn new(batch: &RecordBatch, columns: impl Iterator<Item = usize>) -> Self {
        let (mut fixed, mut variable) = (0, Vec::new());
        for column in columns.map(|index| batch.column(index)) {
            match fixed_width(column.data_type()) {
                Some(width) => fixed += width,
                None => variable.push(ArrayRef::clone(column)),
            }
        }
        let largest = variable.iter().fold(fixed, |bytes, column| bytes.saturating_add(largest_value(column)));
        Self { rows: batch.num_rows(), fixed, variable, largest }
    }

    /// Average bytes of a row, at least 1.
    pub(crate) fn average(&self) -> usize {
        (self.of(0..self.rows) / self.rows.max(1)).max(1)
    }

    /// Bytes of consecutive rows.
    pub(crate) fn of(&self, rows: Range<usize>) -> usize {
        let variable = self.variable.iter().map(|column| value_bytes(column, rows.clone()));
        variable.fold(self.fixed.saturating_mul(rows.len()), usize::saturating_add)
    }

    /// The end of the longest range of rows from `start` on with at most `most` rows and `bytes` bytes. The range has at least
    /// one row, if there is one, even if it takes more bytes.
    pub fn end_of_rows(&self, start: usize, most: usize, bytes: usize) -> usize {
        let end = self.rows.min(start.saturating_add(most));
        if (end - start).saturating_mul(self.largest) <= bytes {
            return end;
        }
        // Sums grow with the number of rows, so this bisects: `fit` rows fit, and `too_many` do not.
        let (mut fit, mut too_many) = (start, end + 1);
        while fit + 1 < too_many {
            let middle = fit + (too_many - fit) / 2;
            if self.of(start..middle) <= bytes {
                fit = middle;
            } else {
                too_many = middle;
            }
        }
        fit.max(end.min(start + 1))
    }
}

/// Bytes that a copy of all rows of a batch takes, counted like [`RowSizes`].
pub fn copied_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| value_bytes(column, 0..batch.num_rows())).sum()
}

/// Bytes that copies of one side of pairs take.
#[derive(Clone, Copy)]
pub(crate) enum SideSizes<'a> {
    /// Rows with these numbers.
    Rows(&'a RowSizes, &'a [u32]),
    /// This number of bytes for each row.
    Fixed(usize),
}

impl SideSizes<'_> {
    /// Maximum bytes of one row.
    fn largest(&self) -> usize {
        match self {
            Self::Rows(sizes, _) => sizes.largest,
            Self::Fixed(bytes) => *bytes,
        }
    }

    fn of(&self, pairs: Range<usize>) -> usize {
        match self {
            Self::Rows(sizes, rows) => {
                let variable = sizes.variable.iter().map(|column| bytes_of_rows(column, &rows[pairs.clone()]));
                variable.fold(sizes.fixed.saturating_mul(pairs.len()), usize::saturating_add)
            }
            Self::Fixed(bytes) => bytes.saturating_mul(pairs.len()),
        }
    }
}

/// Pairs that are summed at once; at most this many are summed in vain.
const SUMMED_PAIRS: usize = 256;

/// How many of the first pairs take at most `bytes` bytes together; at least one.
pub(crate) fn fitting_pairs(pairs: usize, bytes: usize, sides: [SideSizes<'_>; 2]) -> usize {
    let [left, right] = sides;
    let largest = left.largest().saturating_add(right.largest());
    if pairs.saturating_mul(largest) <= bytes {
        return pairs;
    }
    let of = |pairs: Range<usize>| left.of(pairs.clone()).saturating_add(right.of(pairs));
    let (mut fitting, mut left_over) = (0, bytes);
    while fitting < pairs {
        let end = pairs.min(fitting + SUMMED_PAIRS);
        match left_over.checked_sub(of(fitting..end)) {
            Some(less) => (fitting, left_over) = (end, less),
            None => {
                while fitting < end
                    && let Some(less) = left_over.checked_sub(of(fitting..fitting + 1))
                {
                    (fitting, left_over) = (fitting + 1, less);
                }
                return fitting.max(1);
            }
        }
    }
    pairs
}

/// Bytes of each value of a type, if all values have the same size.
fn fixed_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Null => Some(0),
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(width) => Some(*width as usize),
        DataType::Dictionary(key, _) => key.primitive_width(),
        DataType::Struct(fields) => fields.iter().map(|field| fixed_width(field.data_type())).sum(),
        DataType::FixedSizeList(field, length) => Some(fixed_width(field.data_type())? * *length as usize),
        _ => data_type.primitive_width(),
    }
}

/// Bytes of a range of values.
fn value_bytes(array: &ArrayRef, rows: Range<usize>) -> usize {
    let count = rows.len();
    if let Some(width) = fixed_width(array.data_type()) {
        return width * count;
    }
    match array.data_type() {
        DataType::Utf8 => between(array.as_string::<i32>().value_offsets(), rows).1,
        DataType::LargeUtf8 => between(array.as_string::<i64>().value_offsets(), rows).1,
        DataType::Binary => between(array.as_binary::<i32>().value_offsets(), rows).1,
        DataType::LargeBinary => between(array.as_binary::<i64>().value_offsets(), rows).1,
        DataType::Utf8View => array.as_string_view().views()[rows].iter().map(view_bytes).sum(),
        DataType::BinaryView => array.as_binary_view().views()[rows].iter().map(view_bytes).sum(),
        DataType::List(_) => list_bytes(array.as_list::<i32>().values(), array.as_list::<i32>().value_offsets(), rows),
        DataType::LargeList(_) => {
            list_bytes(array.as_list::<i64>().values(), array.as_list::<i64>().value_offsets(), rows)
        }
        DataType::Map(_, _) => {
            let map = array.as_map();
            let (entries, offsets) = between(map.value_offsets(), rows);
            map.entries().columns().iter().fold(offsets, |bytes, column| bytes + value_bytes(column, entries.clone()))
        }
        DataType::ListView(_) => list_view_bytes(array.as_list_view::<i32>(), rows),
        DataType::LargeListView(_) => list_view_bytes(array.as_list_view::<i64>(), rows),
        DataType::FixedSizeList(_, length) => {
            let (list, length) = (array.as_fixed_size_list(), *length as usize);
            value_bytes(list.values(), rows.start * length..rows.end * length)
        }
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| value_bytes(column, rows.clone())).sum(),
        // Unions and runs are rare: assumes that all their values have the same size.
        _ => {
            let data = array.to_data();
            let bytes = data.get_slice_memory_size().unwrap_or_else(|_| data.get_buffer_memory_size());
            bytes.div_ceil(array.len().max(1)) * count
        }
    }
}

/// The elements of a range of values, and their bytes including offsets if each element is a byte.
fn between<O: OffsetSizeTrait>(offsets: &[O], rows: Range<usize>) -> (Range<usize>, usize) {
    let elements = offsets[rows.start].as_usize()..offsets[rows.end].as_usize();
    let bytes = elements.len() + size_of::<O>() * rows.len();
    (elements, bytes)
}

fn list_bytes<O: OffsetSizeTrait>(values: &ArrayRef, offsets: &[O], rows: Range<usize>) -> usize {
    let own = size_of::<O>() * rows.len();
    own + value_bytes(values, between(offsets, rows).0)
}

fn list_view_bytes<O: OffsetSizeTrait>(list: &GenericListViewArray<O>, rows: Range<usize>) -> usize {
    let of_row = |row: usize| {
        let start = list.value_offset(row).as_usize();
        2 * size_of::<O>() + value_bytes(list.values(), start..start + list.value_size(row).as_usize())
    };
    rows.map(of_row).sum()
}

fn view_bytes(view: &u128) -> usize {
    let length = *view as u32 as usize;
    size_of::<u128>() + if length > INLINE { length } else { 0 }
}

/// Bytes of the values with these numbers; the most common types take no call per value.
fn bytes_of_rows(array: &ArrayRef, rows: &[u32]) -> usize {
    fn lengths<O: OffsetSizeTrait>(offsets: &[O], rows: &[u32]) -> usize {
        let length = |row: &u32| (offsets[*row as usize + 1] - offsets[*row as usize]).as_usize() + size_of::<O>();
        rows.iter().map(length).sum()
    }
    let views = |views: &[u128]| rows.iter().map(|row| view_bytes(&views[*row as usize])).sum();
    match array.data_type() {
        DataType::Utf8 => lengths(array.as_string::<i32>().value_offsets(), rows),
        DataType::LargeUtf8 => lengths(array.as_string::<i64>().value_offsets(), rows),
        DataType::Binary => lengths(array.as_binary::<i32>().value_offsets(), rows),
        DataType::LargeBinary => lengths(array.as_binary::<i64>().value_offsets(), rows),
        DataType::Utf8View => views(array.as_string_view().views()),
        DataType::BinaryView => views(array.as_binary_view().views()),
        _ => rows.iter().map(|row| value_bytes(array, *row as usize..*row as usize + 1)).sum(),
    }
}

/// Maximum bytes of a value of a column; the most common types take no call per value.
fn largest_value(array: &ArrayRef) -> usize {
    fn longest<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
        let lengths = offsets.windows(2).map(|pair| pair[1] - pair[0]);
        lengths.max().map_or(0, |length| length.as_usize()) + size_of::<O>()
    }
    match array.data_type() {
        DataType::Utf8 => longest(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => longest(array.as_string::<i64>().value_offsets()),
        DataType::Binary => longest(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => longest(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => array.as_string_view().views().iter().map(view_bytes).max().unwrap_or(0),
        DataType::BinaryView => array.as_binary_view().views().iter().map(view_bytes).max().unwrap_or(0),
        _ => (0..array.len()).map(|row| value_bytes(array, row..row + 1)).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        DictionaryArray, FixedSizeListArray, Int64Array, LargeStringArray, ListArray, MapBuilder, StringArray,
        StringBuilder, StringViewArray, StructArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, Int32Type};

    use super::*;

    const LONG: usize = 100_000;

    /// 40 texts; only the 18th is long.
    fn texts() -> Vec<String> {
        (0..40).map(|row| "x".repeat(if row == 17 { LONG } else { row % 5 })).collect()
    }

    fn lists(values: ArrayRef, length: usize) -> ArrayRef {
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths(vec![length; values.len() / length]);
        Arc::new(ListArray::new(field, offsets, values, None))
    }

    #[test]
    fn one_large_value_of_any_type_counts_for_its_row_alone() {
        let strings: ArrayRef = Arc::new(StringArray::from_iter_values(texts()));
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts()));
        let field = |array: &ArrayRef| Arc::new(Field::new_list_field(array.data_type().clone(), true));
        let fixed = FixedSizeListArray::new(field(&views), 2, Arc::clone(&views), None);
        let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for text in texts() {
            map.keys().append_value("key");
            map.values().append_value(text);
            map.append(true).unwrap();
        }
        let columns: Vec<(ArrayRef, usize)> = vec![
            (Arc::clone(&strings), 17),
            (Arc::new(LargeStringArray::from_iter_values(texts())), 17),
            (Arc::clone(&views), 17),
            (lists(Arc::clone(&strings), 2), 8),
            (lists(Arc::clone(&views), 4), 4),
            (lists(lists(Arc::clone(&strings), 2), 2), 4),
            (Arc::new(StructArray::from(vec![(field(&views), Arc::clone(&views))])), 17),
            (Arc::new(fixed), 8),
            (Arc::new(map.finish()), 17),
            (strings.slice(10, 20), 7),
            (lists(strings, 2).slice(5, 10), 3),
        ];
        for (column, large) in columns {
            let kind = column.data_type().clone();
            let rows = column.len();
            let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
            let sizes = RowSizes::new(&batch, [0].into_iter());
            for row in 0..rows {
                let bytes = sizes.of(row..row + 1);
                assert_eq!(bytes >= LONG, row == large, "{kind}: row {row} takes {bytes} bytes");
                assert!(bytes < LONG + 200 && bytes <= sizes.largest, "{kind}: row {row} takes {bytes} bytes");
            }
            assert_eq!((0..rows).map(|row| sizes.of(row..row + 1)).sum::<usize>(), sizes.of(0..rows), "{kind}");
            // The rows before the large one, the large one alone, and the rows after it.
            let mut ends = vec![];
            while ends.last() != Some(&rows) {
                let start = ends.last().copied().unwrap_or(0);
                ends.push(sizes.end_of_rows(start, usize::MAX, LONG / 2));
            }
            assert_eq!(ends, [large, large + 1, rows], "{kind}");
            assert_eq!(sizes.end_of_rows(0, 2, LONG / 2), 2, "{kind}");
        }
    }

    #[test]
    fn shared_values_do_not_count() {
        let texts = texts();
        let shared: DictionaryArray<Int32Type> = texts.iter().map(|text| Some(text.as_str())).collect();
        let numbers = Int64Array::from_iter_values(0..40);
        let columns: [(&str, ArrayRef); 2] = [("d", Arc::new(shared)), ("n", Arc::new(numbers))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        assert_eq!(RowSizes::new(&batch, 0..2).largest, 12);
        assert_eq!(RowSizes::new(&batch, 0..0).end_of_rows(3, 50, 0), 40);
    }

    #[test]
    fn pairs_fit_by_the_sum_of_their_sizes() {
        for column in [
            Arc::new(StringArray::from_iter_values(texts())) as ArrayRef,
            Arc::new(StringViewArray::from_iter_values(texts())),
            lists(Arc::new(StringArray::from_iter_values(texts())), 1),
        ] {
            let kind = column.data_type().clone();
            let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
            let sizes = RowSizes::new(&batch, 0..1);
            let fitting = |rows: &[u32], bytes| {
                fitting_pairs(rows.len(), bytes, [SideSizes::Rows(&sizes, rows), SideSizes::Fixed(1_000)])
            };
            assert_eq!(fitting(&[1, 2, 17, 4, 5], 10_000), 2, "{kind}");
            assert_eq!(fitting(&[17, 4, 5], 10_000), 1, "{kind}");
            assert_eq!(fitting(&[4, 5, 4, 5], 10_000), 4, "{kind}");
            assert_eq!(fitting(&[17, 4, 17, 5, 17], 3 * LONG), 4, "{kind}");
            assert_eq!(fitting(&[17, 4, 17, 5, 17], 4 * LONG), 5, "{kind}");
            assert_eq!(fitting(&[3; 20], 10_000), 9, "{kind}");
        }
    }
}
