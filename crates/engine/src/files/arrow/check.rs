//! Checks the lengths in an Arrow file.
//!
//! Arrow 59's reader allocates what these lengths say, and a process that allocates more memory than there is ends. On other
//! damage the reader returns an error or panics; `caught` turns the panics into errors.

use std::hint::black_box;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use arrow::ipc::reader::read_footer_length;
use arrow::ipc::{Block, CompressionType, Message, MessageHeader, RecordBatch, root_as_footer, root_as_message};

/// The first bytes of a file with a footer.
const MAGIC: &[u8; 6] = b"ARROW1";

/// The length of the footer, and the magic bytes again.
const TAIL: u64 = 10;

/// Refuses a file if its footer, batches or buffers are not where the file says, or if their stated lengths are impossible.
///
/// Batches that begin outside `part` of a file with a footer are not checked. Only metadata is read.
///
/// # Errors
/// Returns the damage found, or the error of reading.
pub fn check(file: &mut (impl Read + Seek), part: Option<Range<u64>>) -> io::Result<()> {
    let size = file.seek(SeekFrom::End(0))?;
    let checked = if size >= TAIL && read_at(file, 0, MAGIC.len() as u64)? == MAGIC {
        check_file(file, size, part)
    } else {
        check_stream(file, size)
    };
    checked.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it is cut short"),
        _ => error,
    })
}

/// Maximum number of rows in a file, far beyond what files have. Sums over damaged files so stay within 64 bits.
const MOST_ROWS: u64 = 1 << 48;

/// Where a batch of a file is, and how many rows it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchPlace {
    /// The offset in the file, by which parts of files have batches.
    pub offset: u64,
    pub bytes: u64,
    pub rows: u64,
}

/// The places of the batches of a file with a footer, in their order. Reads the head of each.
///
/// # Errors
/// If the file has no footer, is damaged, or cannot be read.
pub(crate) fn batch_places(file: &mut (impl Read + Seek)) -> io::Result<Vec<BatchPlace>> {
    let size = file.seek(SeekFrom::End(0))?;
    if size < TAIL || read_at(file, 0, MAGIC.len() as u64)? != MAGIC {
        return Err(damaged("it is no Arrow file with a footer"));
    }
    let (footer, end) = footer_of(file, size)?;
    let footer = root_as_footer(&footer).map_err(|error| damaged(format!("its footer: {error}")))?;
    let mut left = MOST_ROWS;
    let place = |block: &Block| {
        let (bytes, body) = block_head(file, end, block)?;
        let batch = message(content(&bytes))?.header_as_record_batch();
        let rows = length(batch.ok_or_else(|| damaged("a batch is of another kind than its footer says"))?.length())?;
        left = left.checked_sub(rows).ok_or_else(|| damaged(format!("a batch is said to have {rows} rows")))?;
        let offset = length(block.offset())?;
        Ok(BatchPlace { offset, bytes: body.end - offset, rows })
    };
    footer.recordBatches().into_iter().flatten().map(place).collect()
}

/// The bytes of the footer, and where they begin.
fn footer_of(file: &mut (impl Read + Seek), size: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut tail = [0; TAIL as usize];
    file.seek(SeekFrom::Start(size - TAIL))?;
    file.read_exact(&mut tail)?;
    let length = read_footer_length(tail).map_err(|_| damaged("it does not end as an Arrow file does"))? as u64;
    let end = (size - TAIL).checked_sub(length).ok_or_else(|| damaged("its footer is longer than the file"))?;
    Ok((read_at(file, end, length)?, end))
}

fn check_file(file: &mut (impl Read + Seek), size: u64, part: Option<Range<u64>>) -> io::Result<()> {
    let (footer, end) = footer_of(file, size)?;
    let footer = root_as_footer(&footer).map_err(|error| damaged(format!("its footer: {error}")))?;
    for block in footer.dictionaries().into_iter().flatten() {
        check_block(file, end, block, MessageHeader::DictionaryBatch)?;
    }
    for block in footer.recordBatches().into_iter().flatten() {
        let begins = u64::try_from(block.offset()).unwrap_or_default();
        if part.as_ref().is_none_or(|part| part.contains(&begins)) {
            check_block(file, end, block, MessageHeader::RecordBatch)?;
        }
    }
    Ok(())
}

/// The head of a batch with its prefix, and where the body is.
fn block_head(file: &mut (impl Read + Seek), end: u64, block: &Block) -> io::Result<(Vec<u8>, Range<u64>)> {
    let start = length(block.offset())?;
    let body = Some(length(block.metaDataLength().into())?).and_then(|metadata| start.checked_add(metadata));
    let body = body.filter(|body| *body <= end).ok_or_else(|| damaged("a batch lies behind its end"))?;
    let body_length = length(block.bodyLength())?;
    if body_length > end - body {
        return Err(damaged("a batch lies behind its end"));
    }
    Ok((read_at(file, start, body - start)?, body..body + body_length))
}

/// The message of a head, behind its prefix.
fn content(head: &[u8]) -> &[u8] {
    let prefix = if head.starts_with(&[0xff; 4]) { 8 } else { 4 };
    head.get(prefix..).unwrap_or_default()
}

fn check_block(file: &mut (impl Read + Seek), end: u64, block: &Block, kind: MessageHeader) -> io::Result<()> {
    let (head, body) = block_head(file, end, block)?;
    let message = message(content(&head))?;
    // The reader would take a message without a header for the end.
    if message.header_type() != kind {
        return Err(damaged("a batch is of another kind than its footer says"));
    }
    check_message(file, message, body)
}

/// A stream of messages, which may end without an end marker.
fn check_stream(file: &mut (impl Read + Seek), size: u64) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let mut prefix = read_at(file, at, 4)?;
        at += 4;
        if prefix == [0xff; 4] {
            prefix = read_at(file, at, 4)?;
            at += 4;
        }
        let metadata = prefix.try_into().map_or(0, i32::from_le_bytes);
        if metadata == 0 {
            return Ok(());
        }
        let metadata = length(metadata.into())?;
        if metadata > size - at {
            return Err(damaged("it is no Arrow file, or it is cut short"));
        }
        let bytes = read_at(file, at, metadata)?;
        at += metadata;
        let message = message(&bytes)?;
        let body = length(message.bodyLength())?;
        if body > size - at {
            return Err(damaged("it is cut short, or a batch is longer than the file"));
        }
        check_message(file, message, at..at + body)?;
        at += body;
    }
    Ok(())
}

fn message(bytes: &[u8]) -> io::Result<Message<'_>> {
    root_as_message(bytes).map_err(|error| damaged(format!("a message: {error}")))
}

fn check_message(file: &mut (impl Read + Seek), message: Message<'_>, body: Range<u64>) -> io::Result<()> {
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|batch| batch.data()),
        _ => return Ok(()),
    };
    check_batch(file, batch.ok_or_else(|| damaged("a batch without content"))?, body)
}

fn check_batch(file: &mut (impl Read + Seek), batch: RecordBatch<'_>, body: Range<u64>) -> io::Result<()> {
    // If no column is read, the batch's length alone determines the number of rows.
    let rows = length(batch.length())?;
    if let Some(column) = batch.nodes().into_iter().flatten().next()
        && length(column.length())? != rows
    {
        return Err(damaged("a batch has another number of rows than its first column"));
    }
    for buffer in batch.buffers().into_iter().flatten() {
        let (offset, bytes) = (length(buffer.offset())?, length(buffer.length())?);
        if offset.checked_add(bytes).is_none_or(|end| end > body.end - body.start) {
            return Err(damaged("a column lies behind the end of its batch"));
        }
        if let Some(compression) = batch.compression()
            && bytes >= 8
        {
            let unpacked = read_at(file, body.start + offset, 8)?.try_into().map_or(0, i64::from_le_bytes);
            check_unpacked(compression.codec(), bytes, unpacked)?;
        }
    }
    Ok(())
}

/// Refuses an uncompressed length that `packed` bytes cannot have, or that memory cannot hold.
fn check_unpacked(codec: CompressionType, packed: u64, unpacked: i64) -> io::Result<()> {
    // -1 means that the bytes are not compressed; the reader refuses other negative lengths.
    let unpacked = u64::try_from(unpacked).unwrap_or_default();
    // Each byte of LZ4 encodes at most 255 bytes, and each four bytes of Zstandard at most a block of 128 KiB.
    let ratio = if codec == CompressionType::LZ4_FRAME { 255 } else { 32 << 10 };
    let is_too_long = unpacked > packed.saturating_mul(ratio).saturating_add(128 << 10);
    let mut memory = Vec::<u8>::new();
    let fits = usize::try_from(unpacked).is_ok_and(|length| memory.try_reserve_exact(length).is_ok());
    // Without a use, the compiler could remove the allocation.
    black_box(&mut memory);
    if is_too_long || !fits {
        return Err(damaged(format!("{packed} compressed bytes of a column are said to be {unpacked}")));
    }
    Ok(())
}

fn length(number: i64) -> io::Result<u64> {
    u64::try_from(number).map_err(|_| damaged("a length is negative"))
}

/// Reads bytes that must be within the file.
fn read_at(file: &mut (impl Read + Seek), offset: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn damaged(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringArray};
    use arrow::datatypes::Int32Type;
    use arrow::ipc::CompressionType;
    use arrow::ipc::reader::{FileReader, StreamReader};
    use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

    use super::{MOST_ROWS, batch_places, check};
    use crate::files::arrow::caught::caught;

    fn batch() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter((0..500).map(|row| (row % 7 > 0).then_some(row % 3))));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..500).map(|row| format!("text {}", row % 10))));
        let words: ArrayRef = Arc::new((0..500).map(|row| ["a", "b"][row % 2]).collect::<DictionaryArray<Int32Type>>());
        RecordBatch::try_from_iter([("n", numbers), ("t", texts), ("w", words)]).unwrap()
    }

    /// The batch as a compressed file or stream.
    fn bytes(with_footer: bool) -> Vec<u8> {
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
        let (batch, mut bytes) = (batch(), vec![]);
        if with_footer {
            let mut writer = FileWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
            (0..2).for_each(|_| writer.write(&batch).unwrap());
            writer.finish().unwrap();
        } else {
            let mut writer = StreamWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
            (0..2).for_each(|_| writer.write(&batch).unwrap());
            writer.finish().unwrap();
        }
        bytes
    }

    fn read(bytes: &[u8], with_footer: bool) {
        let reader = Cursor::new(bytes);
        if with_footer {
            FileReader::try_new(reader, None).into_iter().flatten().for_each(drop);
        } else {
            StreamReader::try_new(reader, None).into_iter().flatten().for_each(drop);
        }
    }

    /// Whatever passes the check is read, refused, or makes the reader panic; the process, and so the test, continues.
    #[test]
    fn no_byte_that_is_overwritten_ends_the_process() {
        for with_footer in [true, false] {
            let whole = bytes(with_footer);
            check(&mut Cursor::new(&whole), None).unwrap();
            let mut found = 0;
            for position in 0..whole.len() {
                for byte in [0x00, 0x7f, 0xff] {
                    let mut bytes = whole.clone();
                    bytes[position] = byte;
                    if let Ok(places) = batch_places(&mut Cursor::new(&bytes)) {
                        assert!(places.iter().map(|place| place.rows).sum::<u64>() <= MOST_ROWS);
                    }
                    match check(&mut Cursor::new(&bytes), None) {
                        Ok(()) => _ = caught(|| read(&bytes, with_footer)),
                        Err(_) => found += 1,
                    }
                }
            }
            assert!(found > 100, "{found} of {} bytes", whole.len());
        }
    }

    #[test]
    fn lengths_that_ask_for_too_much_memory_are_refused() {
        for with_footer in [true, false] {
            let mut bytes = bytes(with_footer);
            // The uncompressed length of 500 numbers. Offsets of texts are stored uncompressed, as they do not shrink.
            let length = (500_i64 * 8).to_le_bytes();
            let at = bytes.windows(8).position(|window| window == length).unwrap();
            for wrong in [1_i64 << 62, 1 << 45, 1 << 33] {
                bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
                let error = check(&mut Cursor::new(&bytes), None).unwrap_err().to_string();
                assert!(error.contains(&wrong.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn files_that_are_cut_short_are_refused() {
        for with_footer in [true, false] {
            let whole = bytes(with_footer);
            for length in (1..whole.len() - 8).step_by(7) {
                let cut = check(&mut Cursor::new(&whole[..length]), None);
                // A stream may end between two messages.
                assert!(cut.is_err() || !with_footer, "{length} of {}", whole.len());
            }
        }
    }

    #[test]
    fn places_of_batches_are_where_parts_of_files_begin() {
        let whole = bytes(true);
        let places = batch_places(&mut Cursor::new(&whole)).unwrap();
        assert_eq!(places.iter().map(|place| place.rows).collect::<Vec<_>>(), [500, 500]);
        let [first, second] = places[..] else { panic!("{places:?}") };
        assert_eq!(first.offset + first.bytes, second.offset);
        assert!(batch_places(&mut Cursor::new(bytes(false))).is_err());
        for length in (1..whole.len() - 8).step_by(7) {
            assert!(batch_places(&mut Cursor::new(&whole[..length])).is_err(), "{length} of {}", whole.len());
        }
    }
}
