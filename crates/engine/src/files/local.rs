//! Blocking reads of a file in an object store.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::object_store::{GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt};

/// The number of bytes per read.
pub const PIECE: usize = 256 << 10;

/// The name of a file in error messages.
pub fn name(object: &ObjectMeta) -> String {
    format!("/{}", object.location)
}

/// Adds the name of a file to an error.
pub fn in_file(object: &ObjectMeta, error: impl std::fmt::Display) -> DataFusionError {
    exec_datafusion_err!("cannot read {}: {error}", name(object))
}

/// A file of an object store.
pub enum Source {
    /// A file of this machine.
    File(File),
    /// The bytes of a remote file, all in memory.
    Bytes(Cursor<Vec<u8>>),
}

impl Source {
    pub async fn open(store: &dyn ObjectStore, object: &ObjectMeta) -> Result<Self> {
        let result = store.get(&object.location).await.map_err(|error| in_file(object, error))?;
        match result.payload {
            GetResultPayload::File(file, _) => Ok(Self::File(file)),
            GetResultPayload::Stream(_) => {
                let bytes = result.bytes().await.map_err(|error| in_file(object, error))?;
                Ok(Self::Bytes(Cursor::new(bytes.into())))
            }
        }
    }

    /// Reads from a byte offset to the end.
    pub fn from(mut self, offset: u64) -> io::Result<Self> {
        match &mut self {
            Self::File(file) => file.seek(SeekFrom::Start(offset))?,
            Self::Bytes(bytes) => bytes.seek(SeekFrom::Start(offset))?,
        };
        Ok(self)
    }

    /// The decompressed bytes.
    pub fn decompressed(self, compression: FileCompressionType) -> Result<Box<dyn Read + Send>> {
        if compression.is_compressed() { Ok(Box::new(compression.convert_read(self)?)) } else { Ok(Box::new(self)) }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Bytes(bytes) => bytes.read(buffer),
        }
    }
}

/// Fills a buffer until it is full or the input ends.
pub fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The first bytes of a text, and a reader of the rest.
///
/// A byte order mark is removed.
///
/// # Errors
///
/// Refuses a text in UTF-16 or UTF-32, and one that cannot be read.
pub fn text_head(reader: &mut impl Read, object: &ObjectMeta) -> Result<(Vec<u8>, usize)> {
    let mut head = vec![0; PIECE];
    let length = fill(reader, &mut head).map_err(|error| in_file(object, error))?;
    head.truncate(length);
    let wide = head.starts_with(&[0xff, 0xfe])
        || head.starts_with(&[0xfe, 0xff])
        || (head.len() >= 4 && head[..4].contains(&0));
    if wide {
        return Err(exec_datafusion_err!(
            "{} is not UTF-8 text: it looks like UTF-16. Convert it first, as with iconv -f UTF-16 -t UTF-8",
            name(object)
        ));
    }
    let mark = if head.starts_with(&[0xef, 0xbb, 0xbf]) { 3 } else { 0 };
    head.drain(..mark);
    Ok((head, mark))
}
