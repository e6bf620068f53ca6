//! Columns of tables, whose rows kernels partition and join.

use overspill_kernels::{KeyColumn, MovedColumn};
use overspill_machine::Result;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use rand::RngCore;
use rand_chacha::ChaCha8Rng;

/// A column of a table in CPU memory.
#[derive(Clone)]
pub struct Column {
    pub width: usize,
    pub bytes: Vec<u8>,
    /// Whether each value is there; nothing if all are.
    pub valid: Vec<bool>,
    pub is_float: bool,
}

impl Column {
    /// Values of `width` bytes, from the lowest of each number.
    pub fn new(width: usize, values: impl Iterator<Item = u128>) -> Self {
        let bytes = values.flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect();
        Self { width, bytes, valid: vec![], is_float: false }
    }

    pub fn random(random: &mut ChaCha8Rng, width: usize, rows: usize) -> Self {
        let mut bytes = vec![0; width * rows];
        random.fill_bytes(&mut bytes);
        Self { width, bytes, valid: vec![], is_float: false }
    }

    /// The bits by which a value is hashed and compared.
    pub fn value(&self, row: usize) -> u128 {
        let mut value = [0; 16];
        value[..self.width].copy_from_slice(&self.bytes[row * self.width..][..self.width]);
        let value = u128::from_le_bytes(value);
        if self.is_float && value == 1 << (self.width * 8 - 1) { 0 } else { value }
    }

    pub fn is_valid(&self, row: usize) -> bool {
        self.valid.is_empty() || self.valid[row]
    }

    /// The same column in GPU memory.
    pub fn on(&self, stream: &Stream) -> Result<DeviceColumn> {
        let bits = |valid: &[bool]| valid.iter().rev().fold(0, |word, valid| word << 1 | u32::from(*valid));
        let words: Vec<u32> = self.valid.chunks(32).map(bits).collect();
        let validity = (!words.is_empty()).then(|| DeviceBuffer::from_slice(stream, &words)).transpose()?;
        let values = DeviceBuffer::from_slice(stream, &self.bytes)?;
        Ok(DeviceColumn { values, validity, width: self.width as u64, is_float: self.is_float })
    }
}

/// A column in GPU memory.
pub struct DeviceColumn {
    pub values: DeviceBuffer,
    validity: Option<DeviceBuffer>,
    width: u64,
    is_float: bool,
}

impl DeviceColumn {
    pub fn key(&self) -> KeyColumn<'_> {
        KeyColumn {
            values: self.values.view(),
            width: self.width,
            is_float: self.is_float,
            validity: self.validity.as_ref().map(DeviceBuffer::view),
        }
    }

    pub fn moved<'a>(&'a self, to: &'a mut DeviceBuffer) -> MovedColumn<'a> {
        MovedColumn { from: self.values.view(), to: to.view_mut(), width: self.width }
    }
}

/// A buffer for `values` values, with bytes that no column has by chance.
pub fn room(stream: &Stream, width: usize, values: u64) -> Result<DeviceBuffer> {
    let mut buffer = DeviceBuffer::new(stream.device(), values * width as u64)?;
    buffer.fill(stream, 0xEE)?;
    Ok(buffer)
}
