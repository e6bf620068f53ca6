//! Finds the indexes of files.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_datafusion_err};
use overspill_index::{IndexedFile, StoredDescription, read_description};

use super::scan::FileScan;
use super::{place, state};

/// An index of files, as its file describes it.
#[derive(Debug)]
pub(crate) struct FileIndex {
    /// The path of the index file.
    pub path: PathBuf,
    pub description: StoredDescription,
    /// The number of each indexed file by its path.
    numbers: HashMap<PathBuf, usize>,
}

impl FileIndex {
    /// Reads the description of an index.
    ///
    /// # Errors
    /// Why the file is of no use, as a part of a sentence about the index.
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let file = File::open(&path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        let description = read_description(&file).map_err(|error| format!("{}: {error}", path.display()))?;
        let base = place::base(&path).map(Path::to_owned).unwrap_or_default();
        let numbers = description.files.iter().enumerate().map(|(number, file)| (base.join(&file.path), number));
        Ok(Self { numbers: numbers.collect(), path, description })
    }

    /// An indexed file, and its number.
    pub fn file(&self, path: &Path) -> Option<(usize, &IndexedFile)> {
        let number = *self.numbers.get(path)?;
        Some((number, &self.description.files[number]))
    }

    /// Why the index is not of the state of these files; `None` if it is. Of files that it does not have at all it is no index, and
    /// that is an error.
    pub fn staleness(&self, files: &[PathBuf]) -> Result<Option<String>, ()> {
        let known: Vec<_> = files.iter().map(|path| (path, self.file(path))).collect();
        if known.iter().all(|(_, file)| file.is_none()) {
            return Err(());
        }
        Ok(known.into_iter().find_map(|(path, file)| match (file, std::fs::metadata(path)) {
            (None, _) => Some(format!("{} is not in it", path.display())),
            (Some((_, file)), Ok(metadata)) if state::is_unchanged(file, &metadata) => None,
            _ => Some(format!("{} was changed", path.display())),
        }))
    }

    /// Why the index is not of the state of all its files; `None` if it is.
    pub fn change(&self) -> Option<String> {
        let mut files: Vec<_> = self.numbers.iter().collect();
        files.sort_unstable();
        files.into_iter().find_map(|(path, number)| state::change(&self.description.files[*number], path))
    }

    /// Whether the words of a column of this type are those of the index.
    pub fn fits(&self, data_type: &DataType) -> bool {
        type_name(data_type) == self.description.data_type
    }
}

/// The name of a type in an index. Words of all texts are alike, however they lie in memory.
pub(super) fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "Utf8".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "Binary".to_owned(),
        other => other.to_string(),
    }
}

/// The indexes in a folder, or why one cannot be used, each with the path of its file.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn indexes_in(folder: &Path) -> Result<Vec<(PathBuf, Result<FileIndex, String>)>> {
    let files = place::files_in(folder)
        .map_err(|error| exec_datafusion_err!("The indexes in {} cannot be listed: {error}", folder.display()))?;
    Ok(files.into_iter().map(|path| (path.clone(), FileIndex::open(path))).collect())
}

/// The indexes in the folders where those of a scan would be, and why others there cannot be used.
pub(crate) fn indexes_of(scan: &FileScan<'_>, index_dir: &str) -> Vec<Result<FileIndex, String>> {
    let files = scan.files();
    let folders = place::folders_of(files.iter().map(PathBuf::as_path), index_dir);
    // Without indexes the query goes on as if there were none.
    folders.iter().flat_map(|folder| indexes_in(folder).unwrap_or_default()).map(|(_, index)| index).collect()
}
