//! Columns as words of 64 bits.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use super::range::Range;
use crate::keys::bits_of;

/// The values of a column of a batch.
#[derive(Debug, Clone)]
pub struct NarrowColumn {
    pub(super) values: ScalarBuffer<i64>,
    /// `None` if no value is null.
    pub(super) nulls: Option<NullBuffer>,
    pub(super) range: Range,
}

/// Whether columns of this type may have values of 64 bits that this module computes with: integers but those of 64 bits without a sign, and decimals of 128 bits.
pub fn takes_type(data_type: &DataType) -> bool {
    match data_type {
        DataType::Decimal128(..) => true,
        other => other.is_integer() && *other != DataType::UInt64,
    }
}

impl NarrowColumn {
    /// `None` if a value needs more than 64 bits, and for types that [`takes_type`] rejects.
    pub fn of(column: &ArrayRef) -> Option<Self> {
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        let (values, range) = match column.data_type() {
            DataType::Decimal128(..) => narrowed::<i128>(column, nulls)?,
            DataType::Int64 => narrowed::<i64>(column, nulls)?,
            DataType::Int32 => narrowed::<i32>(column, nulls)?,
            DataType::Int16 => narrowed::<i16>(column, nulls)?,
            DataType::Int8 => narrowed::<i8>(column, nulls)?,
            DataType::UInt32 => narrowed::<u32>(column, nulls)?,
            DataType::UInt16 => narrowed::<u16>(column, nulls)?,
            DataType::UInt8 => narrowed::<u8>(column, nulls)?,
            _ => return None,
        };
        Some(Self { values, nulls: nulls.cloned(), range })
    }
}

/// A number type of columns.
trait Number: ArrowNativeType {
    /// Its lowest 64 bits, and whether these are all.
    fn word(self) -> (i64, bool);

    /// Values that are words already.
    fn words(_: &ScalarBuffer<Self>) -> Option<ScalarBuffer<i64>> {
        None
    }
}

impl Number for i128 {
    #[inline(always)]
    fn word(self) -> (i64, bool) {
        let word = self as i64;
        (word, Self::from(word) == self)
    }
}

impl Number for i64 {
    #[inline(always)]
    fn word(self) -> (i64, bool) {
        (self, true)
    }

    fn words(values: &ScalarBuffer<Self>) -> Option<ScalarBuffer<i64>> {
        Some(values.clone())
    }
}

macro_rules! short {
    ($($number:ty),+) => {
        $(impl Number for $number {
            #[inline(always)]
            fn word(self) -> (i64, bool) {
                (i64::from(self), true)
            }
        })+
    };
}
short!(i32, i16, i8, u32, u16, u8);

/// The values of a column and their range. Those of nulls are 0, which is in the range.
fn narrowed<T: Number>(column: &ArrayRef, nulls: Option<&NullBuffer>) -> Option<(ScalarBuffer<i64>, Range)> {
    let values = bits_of::<T>(column);
    let Some(nulls) = nulls else {
        let shared = T::words(&values);
        let mut words = vec![0; if shared.is_some() { 0 } else { values.len() }];
        let range = with_widest_vectors(Narrowing { values: &values, words: &mut words })?;
        return Some((shared.unwrap_or_else(|| words.into()), range));
    };
    let mut words = vec![0; values.len()];
    let (mut least, mut most) = (0, 0);
    for row in nulls.valid_indices() {
        let (word, fits) = values[row].word();
        if !fits {
            return None;
        }
        (least, most) = (word.min(least), word.max(most));
        words[row] = word;
    }
    Some((words.into(), Range { least, most }))
}

/// Finds the range of values without nulls, and writes their words, unless there is no room for any.
struct Narrowing<'a, T> {
    values: &'a [T],
    words: &'a mut [i64],
}

impl<T: Number> VectorLoop for Narrowing<'_, T> {
    type Output = Option<Range>;

    #[inline(always)]
    fn run(self, _: impl Vectors) -> Option<Range> {
        let Some(first) = self.values.first() else { return Some(Range::of(0)) };
        let (mut least, mut most, mut all_fit) = (first.word().0, first.word().0, true);
        if self.words.is_empty() {
            for value in self.values {
                let (word, fits) = value.word();
                (least, most, all_fit) = (least.min(word), most.max(word), all_fit & fits);
            }
        } else {
            for (value, place) in self.values.iter().zip(self.words) {
                let (word, fits) = value.word();
                (least, most, all_fit) = (least.min(word), most.max(word), all_fit & fits);
                *place = word;
            }
        }
        all_fit.then_some(Range { least, most })
    }
}
