//! Arrays, as sections of a block. `docs/codec.md` says which sections an array of each type has.

use std::borrow::Cow;
use std::ops::Range;

use arrow::array::cast::AsArray;
use arrow::array::{
    Array, ArrayData, ArrayRef, ByteView, GenericByteViewArray, GenericListViewArray, OffsetSizeTrait, RunArray,
    UInt64Array, UnionArray, make_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{ByteViewType, DataType, Int16Type, Int32Type, Int64Type, RunEndIndexType, UnionFields};
use arrow_select::dictionary::garbage_collect_any_dictionary;
use arrow_select::take::take;

use super::layout::{IntegerType, Layout, MAX_INLINE, OffsetType};
use super::sections::{Stored, Writer};
use crate::error::Result;

/// The values of a dictionary with 8-bit codes, at most.
const FEW_VALUES: usize = 256;

impl Writer {
    /// Writes an array.
    ///
    /// # Errors
    /// If there are more integers than the format can describe.
    pub fn array(&mut self, array: &dyn Array) -> Result<()> {
        let data_type = array.data_type();
        let layout = Layout::of(data_type);
        if layout.has_nulls() {
            self.nulls(array.nulls())?;
        }
        let data = || array.to_data();
        match layout {
            Layout::Null => Ok(()),
            Layout::Bits => {
                let values = array.as_boolean().values();
                self.bits(&filled_bits(values, array.nulls()))
            }
            Layout::Integers(kind) => self.primitives(kind, &data()),
            Layout::WideIntegers => self.wide_integers(&data()),
            Layout::Fixed(width) => {
                self.fixed(&data(), width);
                Ok(())
            }
            Layout::Bytes(OffsetType::I32) => self.lengths_and_bytes::<i32>(&data()),
            Layout::Bytes(OffsetType::I64) => self.lengths_and_bytes::<i64>(&data()),
            Layout::Views => match data_type {
                DataType::Utf8View => self.views(array.as_string_view()),
                _ => self.views(array.as_binary_view()),
            },
            Layout::Lists(OffsetType::I32, _) => self.lists::<i32>(&data()),
            Layout::Lists(OffsetType::I64, _) => self.lists::<i64>(&data()),
            Layout::FixedLists(_, length) => {
                let values = array.as_fixed_size_list();
                let first = values.value_offset(0) as usize;
                self.array(&values.values().slice(first, length * array.len()))
            }
            Layout::Struct(_) => array.as_struct().columns().iter().try_for_each(|column| self.array(column)),
            Layout::Dictionary(codes, _) => self.dictionary(codes, array),
            Layout::ListViews(OffsetType::I32, _) => self.list_views(array.as_list_view::<i32>()),
            Layout::ListViews(OffsetType::I64, _) => self.list_views(array.as_list_view::<i64>()),
            Layout::Runs(IntegerType::I16, _) => self.runs(array.as_run::<Int16Type>()),
            Layout::Runs(IntegerType::I32, _) => self.runs(array.as_run::<Int32Type>()),
            Layout::Runs(..) => self.runs(array.as_run::<Int64Type>()),
            Layout::Union(fields, _) => self.union(fields, array.as_union()),
        }
    }

    fn nulls(&mut self, nulls: Option<&NullBuffer>) -> Result<()> {
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        self.flag(nulls.is_some());
        nulls.map_or(Ok(()), |nulls| self.bits(nulls.inner()))
    }

    fn bits(&mut self, bits: &BooleanBuffer) -> Result<()> {
        let bytes = bits.sliced();
        let mut bytes = Cow::from(&bytes[..bits.len().div_ceil(8)]);
        // Bits after the last are not shown.
        let unused = bytes.len() * 8 - bits.len();
        if unused > 0 && bytes[bytes.len() - 1] >> (8 - unused) != 0 {
            let last = bytes.len() - 1;
            bytes.to_mut()[last] &= 0xFF >> unused;
        }
        self.integers(&bytes)
    }

    fn primitives(&mut self, kind: IntegerType, data: &ArrayData) -> Result<()> {
        match kind {
            IntegerType::I8 => self.filled_integers::<i8>(data),
            IntegerType::I16 => self.filled_integers::<i16>(data),
            IntegerType::I32 => self.filled_integers::<i32>(data),
            IntegerType::I64 => self.filled_integers::<i64>(data),
            IntegerType::U8 => self.filled_integers::<u8>(data),
            IntegerType::U16 => self.filled_integers::<u16>(data),
            IntegerType::U32 => self.filled_integers::<u32>(data),
            IntegerType::U64 => self.filled_integers::<u64>(data),
        }
    }

    fn filled_integers<I: Stored>(&mut self, data: &ArrayData) -> Result<()> {
        self.integers(&filled(&data.buffer::<I>(0)[..data.len()], data.nulls()))
    }

    /// Integers of 16 bytes: one word if it has them all, or two.
    fn wide_integers(&mut self, data: &ArrayData) -> Result<()> {
        let values = filled(&data.buffer::<i128>(0)[..data.len()], data.nulls());
        let low: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        if values.iter().zip(&low).all(|(value, low)| *value == i128::from(*low)) {
            self.flag(false);
            return self.integers(&low);
        }
        self.flag(true);
        let low: Vec<u64> = low.into_iter().map(|low| low as u64).collect();
        let high: Vec<i64> = values.iter().map(|value| (value >> 64) as i64).collect();
        self.integers(&low)?;
        self.integers(&high)
    }

    fn fixed(&mut self, data: &ArrayData, width: usize) {
        let values = &data.buffers()[0][data.offset() * width..][..data.len() * width];
        match first_valid(data.nulls()) {
            None => self.bytes(values),
            Some((nulls, first)) => {
                let mut filled = Vec::with_capacity(values.len());
                let mut last = &values[first * width..][..width];
                for (row, is_valid) in nulls.iter().enumerate() {
                    if is_valid {
                        last = &values[row * width..][..width];
                    }
                    filled.extend_from_slice(last);
                }
                self.bytes(&filled);
            }
        }
    }

    /// Texts between offsets. Those under nulls are empty.
    fn lengths_and_bytes<O: OffsetSizeTrait>(&mut self, data: &ArrayData) -> Result<()> {
        let (offsets, nulls) = (offsets::<O>(data), data.nulls());
        let texts = offsets.windows(2).enumerate().map(|(row, ends)| {
            let (begin, end) = (ends[0].as_usize(), ends[1].as_usize());
            if nulls.is_some_and(|nulls| nulls.is_null(row)) { begin..begin } else { begin..end }
        });
        self.lengths(texts.clone().map(|text| text.len()))?;
        let (bytes, all) = (data.buffers()[1].as_slice(), span(offsets));
        let length = texts.clone().map(|text| text.len()).sum();
        if length == all.len() {
            self.bytes(&bytes[all]);
        } else {
            let mut shown = Vec::with_capacity(length);
            texts.for_each(|text| shown.extend_from_slice(&bytes[text]));
            self.bytes(&shown);
        }
        Ok(())
    }

    /// Lengths of texts or lists: of 32 bits, unless one has more.
    fn lengths(&mut self, lengths: impl Iterator<Item = usize> + Clone) -> Result<()> {
        let has_wide = lengths.clone().any(|length| u32::try_from(length).is_err());
        self.flag(has_wide);
        if has_wide {
            self.integers(&lengths.map(|length| length as u64).collect::<Vec<_>>())
        } else {
            self.integers(&lengths.map(|length| length as u32).collect::<Vec<_>>())
        }
    }

    /// Texts behind views: those that views hold themselves, then the others.
    fn views<T: ByteViewType + ?Sized>(&mut self, array: &GenericByteViewArray<T>) -> Result<()> {
        let (mut short, mut long) = (vec![], vec![]);
        let lengths = array.views().iter().enumerate().map(|(row, view)| {
            if array.is_null(row) {
                return 0;
            }
            let length = *view as u32;
            if length <= MAX_INLINE {
                short.extend_from_slice(&view.to_le_bytes()[4..4 + length as usize]);
            } else {
                let view = ByteView::from(*view);
                let buffer = &array.data_buffers()[view.buffer_index as usize];
                long.extend_from_slice(&buffer[view.offset as usize..][..length as usize]);
            }
            length
        });
        let lengths: Vec<u32> = lengths.collect();
        self.integers(&lengths)?;
        self.word(short.len() as u64);
        self.bytes(&short);
        self.word(long.len() as u64);
        self.bytes(&long);
        Ok(())
    }

    fn lists<O: OffsetSizeTrait>(&mut self, data: &ArrayData) -> Result<()> {
        let offsets = offsets::<O>(data);
        self.lengths(offsets.windows(2).map(|ends| (ends[1] - ends[0]).as_usize()))?;
        let (values, shown) = (make_array(data.child_data()[0].clone()), span(offsets));
        self.array(&values.slice(shown.start, shown.len()))
    }

    /// Codes and values. Values that no code names are left out, unless they are few: then batches keep a dictionary that they share.
    fn dictionary(&mut self, codes: IntegerType, array: &dyn Array) -> Result<()> {
        let dictionary = array.as_any_dictionary();
        let kept: ArrayRef;
        let dictionary = if dictionary.values().len() > FEW_VALUES.max(array.len() / 4) {
            kept = garbage_collect_any_dictionary(dictionary)?;
            kept.as_any_dictionary()
        } else {
            dictionary
        };
        self.primitives(codes, &dictionary.keys().to_data())?;
        self.word(dictionary.values().len() as u64);
        self.array(dictionary.values().as_ref())
    }

    /// Lists anywhere. They are written one after the other; those under nulls are empty.
    fn list_views<O: OffsetSizeTrait>(&mut self, array: &GenericListViewArray<O>) -> Result<()> {
        let rows = (0..array.len()).map(|row| {
            let begin = array.offsets()[row].as_usize();
            if array.is_null(row) { begin..begin } else { begin..begin + array.sizes()[row].as_usize() }
        });
        self.lengths(rows.clone().map(|values| values.len()))?;
        let places = UInt64Array::from_iter_values(rows.flatten().map(|place| place as u64));
        self.array(&take(array.values(), &places, None)?)
    }

    fn runs<R: RunEndIndexType<Native: Stored>>(&mut self, array: &RunArray<R>) -> Result<()> {
        let ends: Vec<_> = if array.is_empty() { vec![] } else { array.run_ends().sliced_values().collect() };
        self.word(ends.len() as u64);
        self.integers(&ends)?;
        let first = if ends.is_empty() { 0 } else { array.get_start_physical_index() };
        self.array(&array.values().slice(first, ends.len()))
    }

    /// The number of each row's child, and the children: all rows of a sparse union, and of a dense one those that have the child.
    fn union(&mut self, fields: &UnionFields, array: &UnionArray) -> Result<()> {
        self.integers(&array.type_ids()[..])?;
        for (number, _) in fields.iter() {
            let child = array.child(number);
            let Some(offsets) = array.offsets() else {
                self.array(child)?;
                continue;
            };
            let rows = array.type_ids().iter().zip(offsets).filter(|(of_row, _)| **of_row == number);
            let places = UInt64Array::from_iter_values(rows.map(|(_, offset)| *offset as u64));
            self.word(places.len() as u64);
            self.array(&take(child, &places, None)?)?;
        }
        Ok(())
    }
}

/// The offsets of an array: one more than rows, or none.
fn offsets<O: OffsetSizeTrait>(data: &ArrayData) -> &[O] {
    if data.is_empty() { &[] } else { &data.buffer(0)[..=data.len()] }
}

/// What lies between the first offset and the last.
fn span<O: OffsetSizeTrait>(offsets: &[O]) -> Range<usize> {
    match offsets {
        [first, .., last] => first.as_usize()..last.as_usize(),
        _ => 0..0,
    }
}

/// The nulls, and the first row that is none; `None` without nulls or without others.
fn first_valid(nulls: Option<&NullBuffer>) -> Option<(&NullBuffer, usize)> {
    let nulls = nulls.filter(|nulls| nulls.null_count() > 0)?;
    nulls.valid_indices().next().map(|first| (nulls, first))
}

/// Values, where each null has the value before it, or at the beginning the first.
fn filled<'a, T: Copy>(values: &'a [T], nulls: Option<&NullBuffer>) -> Cow<'a, [T]> {
    let Some((nulls, first)) = first_valid(nulls) else { return values.into() };
    let mut last = values[first];
    let filled = nulls.iter().zip(values).map(|(is_valid, value)| {
        if is_valid {
            last = *value;
        }
        last
    });
    filled.collect()
}

/// The same for bits.
fn filled_bits(values: &BooleanBuffer, nulls: Option<&NullBuffer>) -> BooleanBuffer {
    let Some((nulls, first)) = first_valid(nulls) else { return values.clone() };
    let mut last = values.value(first);
    BooleanBuffer::collect_bool(values.len(), |row| {
        if nulls.is_valid(row) {
            last = values.value(row);
        }
        last
    })
}
