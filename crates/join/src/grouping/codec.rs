//! Packs the key columns of groups into words or rows, and unpacks them.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::DataType;

use super::numbers::Numbers;
use super::row_keys::RowKeys;
use super::texts::Texts;
use crate::error::Result;
use crate::keys::{Packed, bits_of};

/// The most bits of keys in words.
const MOST_BITS: usize = 192;

/// How key columns lie in a key.
///
/// In words, the first column has the highest bits. A column that may have nulls is followed by a bit, which is set for a null. A key of one column has no
/// such bit: [`GroupCodec::nulls`] gives its nulls. The columns take as few bits as the values that have been seen need, so that most keys fit one word;
/// [`GroupCodec::widened`] gives a codec for more values. Keys with long texts, and others that take more than 192 bits, are rows of bytes.
#[derive(Debug)]
pub(super) struct GroupCodec {
    columns: Vec<Column>,
    /// Bits of a key; `None` if it does not fit words.
    bits: Option<usize>,
}

#[derive(Debug, Clone)]
struct Column {
    values: Values,
    has_null_bit: bool,
    /// The number of lower bits in the word, which are those of its null bit and of later columns.
    below: usize,
}

#[derive(Debug, Clone)]
enum Values {
    Numbers(Numbers),
    Texts(Texts),
}

impl GroupCodec {
    pub fn try_new(columns: &[(DataType, bool)]) -> Option<Self> {
        let is_only = columns.len() == 1;
        let column = |(data_type, may_be_null): &(DataType, bool)| {
            let numbers = Numbers::try_new(data_type).map(Values::Numbers);
            let values = numbers.or_else(|| Texts::try_new(data_type).map(Values::Texts))?;
            Some(Column { values, has_null_bit: *may_be_null && !is_only, below: 0 })
        };
        let mut columns = columns.iter().map(column).collect::<Option<Vec<_>>>()?;
        // Ranges are worth their work if they save a word.
        let bits = columns.iter().map(Column::most_bits).sum::<Option<usize>>();
        if bits.is_some_and(|bits| bits <= 64) {
            columns.iter_mut().for_each(Column::take_all);
        }
        (!columns.is_empty()).then(|| Self::of(columns))
    }

    fn of(mut columns: Vec<Column>) -> Self {
        let mut below = Some(0);
        for column in columns.iter_mut().rev() {
            let null_bit = usize::from(column.has_null_bit);
            column.below = below.unwrap_or(0) + null_bit;
            below = below.zip(column.values.bits()).map(|(below, bits)| below + null_bit + bits);
        }
        Self { columns, bits: below.filter(|bits| *bits <= MOST_BITS) }
    }

    /// Bits of a key; `None` if it does not fit words.
    pub fn bits(&self) -> Option<usize> {
        self.bits
    }

    /// A codec for the keys of these rows too; `None` if this one is.
    pub fn widened(&self, columns: &[ArrayRef]) -> Option<Self> {
        // Rows take all values.
        self.bits?;
        let mut widened = None;
        for (number, (column, values)) in self.columns.iter().zip(columns).enumerate() {
            if let Some(values) = column.values.widened(values) {
                widened.get_or_insert_with(|| self.columns.clone())[number].values = values;
            }
        }
        widened.map(Self::of)
    }

    /// The rows that are no key: those of an only column that are null. Rows of bytes have all.
    pub fn nulls(&self, columns: &[ArrayRef]) -> Option<NullBuffer> {
        let [column] = columns else { return None };
        column.nulls().filter(|nulls| nulls.null_count() > 0).cloned()
    }

    /// The keys of each row, of at most 64 bits. The values of an only column of 64 bits are not copied.
    pub fn words(&self, columns: &[ArrayRef]) -> ScalarBuffer<u64> {
        match (columns, &self.columns[0].values) {
            ([column], Values::Numbers(numbers)) if numbers.width() == 64 => bits_of(column),
            _ => self.pack::<u64>(columns).into(),
        }
    }

    /// The keys of each row.
    pub fn pack<W: Packed>(&self, columns: &[ArrayRef]) -> Vec<W> {
        let mut words = vec![W::default(); columns.first().map_or(0, |column| column.len())];
        for (column, values) in self.columns.iter().zip(columns) {
            match &column.values {
                Values::Numbers(numbers) => numbers.append(&mut words, values),
                Values::Texts(texts) => texts.append(&mut words, values),
            }
            if !column.has_null_bit {
                continue;
            }
            match values.nulls().filter(|nulls| nulls.null_count() > 0) {
                None => words.iter_mut().for_each(|word| *word = word.append(0, 1)),
                Some(nulls) => {
                    for (word, is_valid) in words.iter_mut().zip(nulls) {
                        *word = word.append(u128::from(!is_valid), 1);
                    }
                }
            }
        }
        words
    }

    /// The columns of `keys`. The key with the number `null` stands for the rows whose only column is null.
    pub fn unpack<W: Packed>(&self, keys: &[W], null: Option<usize>) -> Result<Vec<ArrayRef>> {
        let unpack = |column: &Column| {
            let is_valid = |key: &W| key.bits_at(column.below - 1, 1) == 0;
            let nulls = some_null(match null {
                Some(null) => Some((0..keys.len()).map(|number| number != null).collect()),
                None => column.has_null_bit.then(|| keys.iter().map(is_valid).collect()),
            });
            match &column.values {
                Values::Numbers(numbers) => numbers.unpack(keys, column.below, nulls),
                Values::Texts(texts) => texts.unpack(keys, column.below, nulls),
            }
        };
        self.columns.iter().map(unpack).collect()
    }

    /// The keys of each row, as bytes: those of each value, and a byte that tells whether a number is null.
    pub fn rows(&self, columns: &[ArrayRef]) -> RowKeys {
        let fixed = self.columns.iter().map(Column::row_bytes).sum();
        let mut lengths = vec![fixed; columns.first().map_or(0, |column| column.len())];
        for (column, values) in self.columns.iter().zip(columns) {
            if matches!(column.values, Values::Texts(_)) {
                Texts::add_lengths(values, &mut lengths);
            }
        }
        let mut rows = RowKeys::zeroed(&lengths);
        let mut places = rows.starts();
        for (column, values) in self.columns.iter().zip(columns) {
            match &column.values {
                Values::Texts(_) => Texts::write(values, &mut rows, &mut places),
                Values::Numbers(numbers) => {
                    numbers.write(values, &mut rows, &mut places);
                    if column.has_null_bit {
                        for (row, place) in places.iter_mut().enumerate() {
                            rows.bytes_mut()[*place] = u8::from(values.is_null(row));
                            *place += 1;
                        }
                    }
                }
            }
        }
        rows
    }

    /// The columns of `keys`.
    pub fn columns_of(&self, keys: &RowKeys) -> Result<Vec<ArrayRef>> {
        let mut places = keys.starts();
        let column = |column: &Column| match &column.values {
            Values::Texts(texts) => texts.read(keys, &mut places),
            Values::Numbers(numbers) => {
                let length = numbers.row_bytes();
                let is_valid = |place: &usize| keys.bytes()[place + length] == 0;
                let nulls = column.has_null_bit.then(|| places.iter().map(is_valid).collect());
                let values = numbers.read(keys, &mut places, some_null(nulls))?;
                if column.has_null_bit {
                    places.iter_mut().for_each(|place| *place += 1);
                }
                Ok(values)
            }
        };
        self.columns.iter().map(column).collect()
    }
}

fn some_null(valid: Option<BooleanBuffer>) -> Option<NullBuffer> {
    valid.map(NullBuffer::new).filter(|nulls| nulls.null_count() > 0)
}

impl Values {
    /// Bits of a value; `None` if it does not fit a word.
    fn bits(&self) -> Option<usize> {
        match self {
            Self::Numbers(numbers) => Some(numbers.bits()),
            Self::Texts(texts) => texts.bits(),
        }
    }

    fn widened(&self, values: &ArrayRef) -> Option<Self> {
        match self {
            Self::Numbers(numbers) => numbers.widened(values).map(Self::Numbers),
            Self::Texts(texts) => texts.widened(values).map(Self::Texts),
        }
    }
}

impl Column {
    /// The most bits that it takes; `None` for texts.
    fn most_bits(&self) -> Option<usize> {
        match &self.values {
            Values::Numbers(numbers) => Some(numbers.width() + usize::from(self.has_null_bit)),
            Values::Texts(_) => None,
        }
    }

    fn take_all(&mut self) {
        if let Values::Numbers(numbers) = &mut self.values {
            numbers.take_all();
        }
    }

    /// Bytes in a row; only those of numbers are the same in each.
    fn row_bytes(&self) -> usize {
        match &self.values {
            Values::Numbers(numbers) => numbers.row_bytes() + usize::from(self.has_null_bit),
            Values::Texts(_) => 0,
        }
    }
}
