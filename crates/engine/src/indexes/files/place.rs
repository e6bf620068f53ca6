//! Where indexes of files are.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use datafusion::common::{Result, exec_datafusion_err, exec_err};

/// The folder for indexes beside data. Readers of data leave out what begins with a dot.
const FOLDER: &str = ".overspill";

/// The ending of an index file, which is that of no data.
const ENDING: &str = ".overspill-index";

/// The folder that the table of a file is: that of the file or, for `key=value` folders, the first above them.
fn root(file: &Path) -> Option<&Path> {
    let is_key = |folder: &Path| folder.file_name().is_some_and(|name| name.to_string_lossy().contains('='));
    file.ancestors().skip(1).find(|folder| !is_key(folder))
}

/// The folders of the tables of these files, each once.
fn roots<'a>(files: impl Iterator<Item = &'a Path>) -> Vec<&'a Path> {
    let mut roots: Vec<_> = files.filter_map(root).collect();
    roots.sort_unstable();
    roots.dedup();
    roots
}

/// The folder where a new index of these files belongs.
///
/// # Errors
/// If the files are in several folders, and there is no folder for all indexes.
pub(crate) fn folder_for<'a>(files: impl Iterator<Item = &'a Path>, index_dir: &str) -> Result<PathBuf> {
    if !index_dir.is_empty() {
        return absolute(index_dir);
    }
    match roots(files)[..] {
        [root] => Ok(root.join(FOLDER)),
        [one, other, ..] => exec_err!(
            "The files are in several folders, as '{}' and '{}', and the index would be beside none of them: name a folder for all \
             indexes with SET overspill.index_dir",
            one.display(),
            other.display()
        ),
        [] => exec_err!("There is no file to index"),
    }
}

/// The folders where indexes of these files may be.
pub(crate) fn folders_of<'a>(files: impl Iterator<Item = &'a Path>, index_dir: &str) -> Vec<PathBuf> {
    let of_all = (!index_dir.is_empty()).then(|| absolute(index_dir).ok()).flatten();
    of_all.into_iter().chain(roots(files).into_iter().map(|root| root.join(FOLDER))).collect()
}

fn absolute(index_dir: &str) -> Result<PathBuf> {
    std::path::absolute(index_dir)
        .map_err(|error| exec_datafusion_err!("overspill.index_dir '{index_dir}' cannot be used: {error}"))
}

/// The folder that relative paths in an index file begin at: the one that `.overspill` is in.
pub(super) fn base(index: &Path) -> Option<&Path> {
    let folder = index.parent()?;
    if folder.file_name()? == FOLDER { folder.parent() } else { None }
}

/// The path of the index of this name in a folder. Bytes that not all file systems take are written as `%XX`.
pub(crate) fn path_in(folder: &Path, name: &str) -> PathBuf {
    let mut file = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => file.push(char::from(byte)),
            _ => _ = write!(file, "%{byte:02X}"),
        }
    }
    folder.join(file + ENDING)
}

/// The index files in a folder, in the order of their names. There are none in a folder that is not there.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn files_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(vec![]),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>()?;
    let is_index = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ENDING));
    let mut files: Vec<_> = paths.into_iter().filter(is_index).collect();
    files.sort_unstable();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_beside_the_table_of_its_files() {
        let folder = |files: &[&str]| folder_for(files.iter().map(Path::new), "");
        assert_eq!(folder(&["/d/a.parquet", "/d/b.parquet"]).unwrap(), Path::new("/d/.overspill"));
        assert_eq!(folder(&["/d/y=1/m=2/a.parquet", "/d/y=2/m=1/b.parquet"]).unwrap(), Path::new("/d/.overspill"));
        let error = folder(&["/d/a.parquet", "/e/b.parquet"]).unwrap_err().to_string();
        assert!(error.contains("'/d' and '/e'") && error.contains("overspill.index_dir"), "{error}");
        assert_eq!(folder_for([Path::new("/d/a.parquet")].into_iter(), "/i").unwrap(), Path::new("/i"));
        assert_eq!(base(Path::new("/d/.overspill/i.overspill-index")), Some(Path::new("/d")));
        assert_eq!(base(Path::new("/i/i.overspill-index")), None);
    }

    #[test]
    fn any_name_is_a_file_name() {
        let name = |name| path_in(Path::new("/d"), name);
        assert_eq!(name("by_Key-1"), Path::new("/d/by_Key-1.overspill-index"));
        assert_eq!(name("../a b"), Path::new("/d/%2E%2E%2Fa%20b.overspill-index"));
        assert_eq!(name("ä"), Path::new("/d/%C3%A4.overspill-index"));
    }
}
