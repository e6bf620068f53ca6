//! Sections of a block, as arrays. All are validated: what a block says may be forged.

use arrow::array::{Array, ArrayData, ArrayDataBuilder, OffsetSizeTrait, UnionArray, make_array, make_view};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, UnionFields, UnionMode};

use super::layout::{IntegerType, Layout, MAX_INLINE, OffsetType};
use super::sections::Reader;
use crate::error::{Error, Result};

/// Lengths whose sum is not that of an array.
const TOO_LONG: Error = Error::Damaged("lengths add up to more than an array can have");

impl Reader<'_> {
    /// Reads an array of `rows` rows.
    ///
    /// # Errors
    /// If the sections are not those of such an array, or it is not valid.
    pub fn array(&mut self, data_type: &DataType, rows: usize) -> Result<ArrayData> {
        let layout = Layout::of(data_type);
        let nulls = if layout.has_nulls() { self.nulls(rows)? } else { None };
        let array = ArrayData::builder(data_type.clone()).len(rows).nulls(nulls);
        let array = match layout {
            Layout::Null => array,
            Layout::Bits => array.add_buffer(self.bits(rows)?),
            Layout::Integers(kind) => array.add_buffer(self.primitives(kind, rows)?),
            Layout::WideIntegers => array.add_buffer(self.wide_integers(rows)?),
            Layout::Fixed(width) => {
                let bytes = rows.checked_mul(width).ok_or(TOO_LONG)?;
                array.add_buffer(self.bytes(bytes)?)
            }
            Layout::Bytes(offsets) => {
                let (offsets, end) = self.offsets(offsets, rows)?;
                array.add_buffer(offsets).add_buffer(self.bytes(end)?)
            }
            Layout::Views => self.views(array, rows)?,
            Layout::Lists(offsets, values) => {
                let (offsets, end) = self.offsets(offsets, rows)?;
                array.add_buffer(offsets).add_child_data(self.array(values.data_type(), end)?)
            }
            Layout::FixedLists(values, length) => {
                let count = rows.checked_mul(length).ok_or(TOO_LONG)?;
                array.add_child_data(self.array(values.data_type(), count)?)
            }
            Layout::Struct(fields) => {
                let children = fields.iter().map(|field| self.array(field.data_type(), rows));
                array.child_data(children.collect::<Result<_>>()?)
            }
            Layout::Dictionary(codes, values) => {
                let array = array.add_buffer(self.primitives(codes, rows)?);
                let count = self.count()?;
                array.add_child_data(self.array(values, count)?)
            }
            Layout::ListViews(offsets, values) => {
                let (ends, end) = self.offsets(offsets, rows)?;
                let (begins, sizes) = match offsets {
                    OffsetType::I32 => begins_and_sizes::<i32>(&ends),
                    OffsetType::I64 => begins_and_sizes::<i64>(&ends),
                };
                array.add_buffers(vec![begins, sizes]).add_child_data(self.array(values.data_type(), end)?)
            }
            Layout::Runs(kind, values) => {
                let count = self.count()?;
                let ends = self.primitives(kind, count)?;
                let ends_type = match kind {
                    IntegerType::I16 => DataType::Int16,
                    IntegerType::I32 => DataType::Int32,
                    _ => DataType::Int64,
                };
                let ends = ArrayData::builder(ends_type).len(count).add_buffer(ends).build()?;
                array.child_data(vec![ends, self.array(values.data_type(), count)?])
            }
            Layout::Union(fields, mode) => return self.union(fields, mode, rows),
        };
        Ok(array.build()?)
    }

    fn nulls(&mut self, rows: usize) -> Result<Option<NullBuffer>> {
        if !self.flag()? {
            return Ok(None);
        }
        Ok(Some(NullBuffer::new(BooleanBuffer::new(self.bits(rows)?, 0, rows))))
    }

    fn bits(&mut self, rows: usize) -> Result<Buffer> {
        self.integers::<u8>(rows.div_ceil(8)).map(Buffer::from_vec)
    }

    fn primitives(&mut self, kind: IntegerType, rows: usize) -> Result<Buffer> {
        match kind {
            IntegerType::I8 => self.integers::<i8>(rows).map(Buffer::from_vec),
            IntegerType::I16 => self.integers::<i16>(rows).map(Buffer::from_vec),
            IntegerType::I32 => self.integers::<i32>(rows).map(Buffer::from_vec),
            IntegerType::I64 => self.integers::<i64>(rows).map(Buffer::from_vec),
            IntegerType::U8 => self.integers::<u8>(rows).map(Buffer::from_vec),
            IntegerType::U16 => self.integers::<u16>(rows).map(Buffer::from_vec),
            IntegerType::U32 => self.integers::<u32>(rows).map(Buffer::from_vec),
            IntegerType::U64 => self.integers::<u64>(rows).map(Buffer::from_vec),
        }
    }

    fn wide_integers(&mut self, rows: usize) -> Result<Buffer> {
        let values: Vec<i128> = if self.flag()? {
            let low = self.integers::<u64>(rows)?;
            let high = self.integers::<i64>(rows)?;
            low.into_iter().zip(high).map(|(low, high)| i128::from(high) << 64 | i128::from(low)).collect()
        } else {
            self.integers::<i64>(rows)?.into_iter().map(i128::from).collect()
        };
        Ok(Buffer::from_vec(values))
    }

    /// Offsets from lengths, and the last of them.
    fn offsets(&mut self, offsets: OffsetType, rows: usize) -> Result<(Buffer, usize)> {
        let has_wide = self.flag()?;
        match (offsets, has_wide) {
            (OffsetType::I32, false) => ends::<i32, u32>(self.integers(rows)?),
            (OffsetType::I32, true) => ends::<i32, u64>(self.integers(rows)?),
            (OffsetType::I64, false) => ends::<i64, u32>(self.integers(rows)?),
            (OffsetType::I64, true) => ends::<i64, u64>(self.integers(rows)?),
        }
    }

    fn views(&mut self, array: ArrayDataBuilder, rows: usize) -> Result<ArrayDataBuilder> {
        let lengths = self.integers::<u32>(rows)?;
        let short = self.counted_bytes()?;
        let long = self.counted_bytes()?;
        let (mut rest, mut views, mut buffers) = (&short[..], Vec::with_capacity(rows), vec![]);
        // Of the buffer that is being filled: its first byte, and that after its last.
        let (mut first, mut end) = (0, 0_usize);
        for length in lengths {
            let bytes = length as usize;
            if length <= MAX_INLINE {
                let (text, after) = rest.split_at_checked(bytes).ok_or(TOO_LONG)?;
                rest = after;
                views.push(make_view(text, 0, 0));
                continue;
            }
            // Offsets have 32 bits.
            if end - first + bytes > i32::MAX as usize {
                buffers.push(long.slice_with_length(first, end - first));
                first = end;
            }
            let text = long.get(end..end + bytes).ok_or(TOO_LONG)?;
            views.push(make_view(text, buffers.len() as u32, (end - first) as u32));
            end += bytes;
        }
        if !rest.is_empty() || end != long.len() {
            return Err(Error::Damaged("texts are longer than their lengths say"));
        }
        if end > first {
            buffers.push(long.slice_with_length(first, end - first));
        }
        Ok(array.add_buffer(Buffer::from_vec(views)).add_buffers(buffers))
    }

    /// Bytes, after a word with their number.
    fn counted_bytes(&mut self) -> Result<Buffer> {
        let bytes = self.count()?;
        self.bytes(bytes)
    }

    fn count(&mut self) -> Result<usize> {
        usize::try_from(self.word()?).map_err(|_| TOO_LONG)
    }

    fn union(&mut self, fields: &UnionFields, mode: UnionMode, rows: usize) -> Result<ArrayData> {
        let numbers = self.integers::<i8>(rows)?;
        let mut offsets = (mode == UnionMode::Dense).then(|| vec![0; rows]);
        let mut children = vec![];
        for (number, field) in fields.iter() {
            let count = if offsets.is_some() { self.count()? } else { rows };
            if let Some(offsets) = &mut offsets {
                let rows = numbers.iter().zip(offsets).filter(|(of_row, _)| **of_row == number);
                rows.zip(0..).for_each(|((_, offset), place)| *offset = place);
            }
            children.push(make_array(self.array(field.data_type(), count)?));
        }
        let offsets = offsets.map(Vec::into);
        Ok(UnionArray::try_new(fields.clone(), numbers.into(), offsets, children)?.into_data())
    }
}

/// The offsets of values with these lengths, and the last of them.
fn ends<O: OffsetSizeTrait, L: Into<u64>>(lengths: Vec<L>) -> Result<(Buffer, usize)> {
    let mut offsets: Vec<O> = Vec::with_capacity(lengths.len() + 1);
    let mut end = 0_u64;
    offsets.push(O::usize_as(0));
    for length in lengths {
        end = end.checked_add(length.into()).filter(|end| *end <= O::MAX_OFFSET as u64).ok_or(TOO_LONG)?;
        offsets.push(O::usize_as(end as usize));
    }
    Ok((Buffer::from_vec(offsets), end as usize))
}

/// The offsets and lengths of views of lists that follow one another.
fn begins_and_sizes<O: OffsetSizeTrait>(offsets: &Buffer) -> (Buffer, Buffer) {
    let ends = offsets.typed_data::<O>();
    let sizes: Vec<O> = ends.windows(2).map(|ends| ends[1] - ends[0]).collect();
    (offsets.slice_with_length(0, size_of_val(&sizes[..])), Buffer::from_vec(sizes))
}
