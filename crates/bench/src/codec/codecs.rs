//! Our codec, and those it is measured beside.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use arrow::buffer::MutableBuffer;
use arrow::datatypes::{ArrowNativeType, ArrowPrimitiveType, Int32Type, Int64Type, ToByteSlice};
use bytes::Bytes;
use datafusion::common::Result;
use overspill_codec::{Cascade, Integer, Stack};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Encoding;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use pco::ChunkConfig;
use pco::data_types::Number;

use crate::report::failed;

/// An integer that all codecs know.
pub(super) trait Value: Integer + Number + ArrowNativeType {
    /// Its type in Arrow.
    type Arrow: ArrowPrimitiveType<Native = Self>;
}

impl Value for i64 {
    type Arrow = Int64Type;
}

impl Value for i32 {
    type Arrow = Int32Type;
}

/// A codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Codec {
    Cascaded(Stack),
    /// The same on a GPU, which takes all buffers at once.
    Device(Stack),
    Lz4,
    /// At level 1.
    Zstd,
    /// A Parquet file with DELTA_BINARY_PACKED pages, without compression.
    DeltaPacking,
    /// At its default level.
    Pco,
}

impl Codec {
    /// Those beside ours.
    pub const OTHERS: [Self; 4] = [Self::Lz4, Self::Zstd, Self::DeltaPacking, Self::Pco];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cascaded(_) => "cascaded",
            Self::Device(_) => "cascaded, GPU",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd 1",
            Self::DeltaPacking => "delta packing",
            Self::Pco => "pco",
        }
    }

    /// The compressed bytes of a buffer.
    pub fn compress<T: Value>(self, cascade: &mut Cascade<T>, values: &[T], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        match self {
            Self::Cascaded(stack) | Self::Device(stack) => cascade.compress(values, stack, out).map_err(failed)?,
            Self::Lz4 => {
                out.resize(lz4_flex::block::get_maximum_output_size(size_of_val(values)), 0);
                let bytes = lz4_flex::block::compress_into(values.to_byte_slice(), out).map_err(failed)?;
                out.truncate(bytes);
            }
            Self::Zstd => *out = zstd::bulk::compress(values.to_byte_slice(), 1)?,
            Self::DeltaPacking => parquet_file(values, out)?,
            Self::Pco => *out = pco::standalone::simple_compress(values, &ChunkConfig::default()).map_err(failed)?,
        }
        Ok(())
    }

    /// The values of a buffer of `count`.
    pub fn decompress<T: Value>(
        self,
        cascade: &mut Cascade<T>,
        bytes: &[u8],
        count: usize,
        out: &mut Decompressed<T>,
    ) -> Result<()> {
        out.values.clear();
        match self {
            Self::Cascaded(_) | Self::Device(_) => cascade.decompress(bytes, &mut out.values).map_err(failed)?,
            Self::Lz4 => {
                out.bytes.resize(count * size_of::<T>(), 0);
                lz4_flex::block::decompress_into(bytes, out.bytes.as_slice_mut()).map_err(failed)?;
            }
            Self::Zstd => {
                out.bytes.resize(count * size_of::<T>(), 0);
                zstd::bulk::decompress_to_buffer(bytes, out.bytes.as_slice_mut())?;
            }
            Self::DeltaPacking => {
                let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::copy_from_slice(bytes))?;
                for batch in reader.with_batch_size(1 << 16).build()? {
                    out.values.extend_from_slice(batch?.column(0).as_primitive::<T::Arrow>().values());
                }
            }
            Self::Pco => out.values = pco::standalone::simple_decompress(bytes).map_err(failed)?,
        }
        Ok(())
    }
}

/// Where decompressed values are written: some codecs give bytes.
#[derive(Debug)]
pub(super) struct Decompressed<T> {
    values: Vec<T>,
    bytes: MutableBuffer,
}

impl<T: Value> Decompressed<T> {
    pub fn new() -> Self {
        Self { values: vec![], bytes: MutableBuffer::new(0) }
    }

    /// Whether what a codec has written last are these.
    pub fn are(&self, codec: Codec, values: &[T]) -> bool {
        match codec {
            Codec::Lz4 | Codec::Zstd => self.bytes.as_slice() == values.to_byte_slice(),
            _ => self.values == values,
        }
    }
}

fn parquet_file<T: Value>(values: &[T], out: &mut Vec<u8>) -> Result<()> {
    let array: ArrayRef = Arc::new(PrimitiveArray::<T::Arrow>::from_iter_values(values.iter().copied()));
    let batch = RecordBatch::try_from_iter([("v", array)])?;
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BINARY_PACKED)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let mut writer = ArrowWriter::try_new(out, batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_gives_back_what_it_took() {
        let values: Vec<i32> = (0..10_000).map(|value| value / 7 * 3 - 1000).collect();
        let (mut cascade, mut bytes, mut out) = (Cascade::new(), vec![], Decompressed::new());
        let ours = Codec::Cascaded(Stack::new(2, 1).unwrap());
        for codec in Codec::OTHERS.into_iter().chain([ours]) {
            codec.compress(&mut cascade, &values, &mut bytes).unwrap();
            assert!(bytes.len() < values.len() * 4, "{codec:?}");
            codec.decompress(&mut cascade, &bytes, values.len(), &mut out).unwrap();
            assert!(out.are(codec, &values) && !out.are(codec, &values[1..]), "{codec:?}");
        }
    }
}
