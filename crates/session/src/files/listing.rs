//! Lists the files that a path, a folder or a pattern names.
//!
//! Only folders that can contain matches are read. If such a folder is not readable, that is an error.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use datafusion::object_store::{self, ObjectMeta};
use glob::Pattern;
use url::Url;

use super::format::NamedFormat;
use crate::error::io_reason;

/// The `key=value` pairs of folders, outermost first.
type Keys = Vec<(String, String)>;

/// A listed file.
#[derive(Debug, Clone)]
pub struct Found {
    pub path: PathBuf,
    pub object: ObjectMeta,
    /// Those of its folders below the named path.
    pub keys: Keys,
}

/// The files that a path names, in path order.
///
/// A folder stands for the files in it and in the folders `key=value` below. `*`, `?` and `[…]` match within a name, and `**`
/// matches any folders. An existing name is not a pattern. Names that begin with a dot are skipped, and so are names that
/// begin with an underscore unless they are spelled out.
///
/// # Errors
///
/// Returns a sentence if the pattern is invalid, or if a folder or file that could match is not readable or has a name that
/// is not UTF-8.
pub fn files(path: &str) -> Result<Vec<Found>, String> {
    let is_pattern = path.contains(['*', '?', '[']);
    let mut walk = Walk { pattern: path, found: vec![] };
    if is_pattern && !Path::new(path).exists() {
        let (base, rest) = match path.strip_prefix('/') {
            Some(rest) => (PathBuf::from("/"), rest),
            None => (PathBuf::new(), path),
        };
        let components: Vec<_> = rest.split('/').filter(|component| !component.is_empty()).collect();
        walk.components(&base, &components, &mut vec![])?;
    } else {
        let metadata = fs::metadata(path).map_err(|error| refusal(path, Path::new(path), &error))?;
        if metadata.is_dir() {
            let mut keys: Vec<_> =
                Path::new(path).components().filter_map(|part| key(part.as_os_str().to_str()?)).collect();
            walk.folder(Path::new(path), &mut keys)?;
        } else if path.ends_with('/') {
            return Err(format!("'{path}' is a file, not a folder"));
        } else {
            walk.file(PathBuf::from(path), &metadata, &[])?;
        }
    }
    walk.found.sort_by(|a, b| a.path.cmp(&b.path));
    walk.found.dedup_by(|a, b| a.path == b.path);
    Ok(walk.found)
}

struct Walk<'a> {
    pattern: &'a str,
    found: Vec<Found>,
}

impl Walk<'_> {
    /// Matches the components of a pattern below a folder.
    fn components(&mut self, base: &Path, components: &[&str], keys: &mut Keys) -> Result<(), String> {
        let Some((component, rest)) = components.split_first() else { return Ok(()) };
        if *component == "**" {
            // `**` matches no folder, or one more.
            self.components(base, if rest.is_empty() { &["*"] } else { rest }, keys)?;
            for (name, path, is_link) in self.entries(base)? {
                // A link to a parent folder would recurse forever.
                if !is_link && !is_hidden(&name) && path.is_dir() {
                    self.within(&name, keys, |walk, keys| walk.components(&path, components, keys))?;
                }
            }
            return Ok(());
        }
        if !component.contains(['*', '?', '[']) || base.join(component).exists() {
            return self.matched(component, base.join(component), rest, keys);
        }
        let pattern = Pattern::new(component).map_err(|error| format!("'{component}' is no pattern: {error}"))?;
        for (name, path, _) in self.entries(base)? {
            let spelled_out = !component.starts_with(['*', '?', '[']);
            if pattern.matches(&name) && (spelled_out || !is_hidden(&name)) {
                self.matched(&name, path, rest, keys)?;
            }
        }
        Ok(())
    }

    /// Handles a match of a component: a file at the end of the pattern, a folder before.
    fn matched(&mut self, name: &str, path: PathBuf, rest: &[&str], keys: &mut Keys) -> Result<(), String> {
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(refusal(self.pattern, &path, &error));
            }
            // A dangling link, a deleted file, or a folder that does not contain the name.
            Err(_) => return Ok(()),
        };
        if !rest.is_empty() {
            if metadata.is_dir() {
                self.within(name, keys, |walk, keys| walk.components(&path, rest, keys))?;
            }
            return Ok(());
        }
        if metadata.is_file() { self.file(path, &metadata, keys) } else { Ok(()) }
    }

    fn folder(&mut self, folder: &Path, keys: &mut Keys) -> Result<(), String> {
        for (name, path, _) in self.entries(folder)? {
            if is_hidden(&name) {
                continue;
            }
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(refusal(self.pattern, &path, &error)),
            };
            if metadata.is_dir() && key(&name).is_some() {
                self.within(&name, keys, |walk, keys| walk.folder(&path, keys))?;
            } else if metadata.is_file() && (path.to_str().is_some() || NamedFormat::of(&name).is_some()) {
                self.file(path, &metadata, keys)?;
            }
        }
        Ok(())
    }

    fn within(
        &mut self,
        name: &str,
        keys: &mut Keys,
        visit: impl FnOnce(&mut Self, &mut Keys) -> Result<(), String>,
    ) -> Result<(), String> {
        let outer = keys.len();
        keys.extend(key(name));
        let visited = visit(self, keys);
        keys.truncate(outer);
        visited
    }

    fn file(&mut self, path: PathBuf, metadata: &Metadata, keys: &[(String, String)]) -> Result<(), String> {
        let absolute = std::path::absolute(&path).map_err(|error| refusal(self.pattern, &path, &error))?;
        if absolute.to_str().is_none() {
            return Err(format!(
                "cannot read {}, which '{}' names: its path is not UTF-8 text. Rename it first",
                path.display(),
                self.pattern
            ));
        }
        let location = object_store::path::Path::from_absolute_path(without_dots(&absolute))
            .map_err(|error| format!("{} is not a usable path: {error}", path.display()))?;
        let last_modified = metadata.modified().map_err(|error| refusal(self.pattern, &path, &error))?.into();
        let object = ObjectMeta { location, last_modified, size: metadata.len(), e_tag: None, version: None };
        self.found.push(Found { path, object, keys: keys.to_vec() });
        Ok(())
    }

    /// The names in a folder, their paths, and whether they are links. A path that is not a folder has no names. Parts of a
    /// name that are not UTF-8 are replaced in the name but not in the path.
    fn entries(&self, folder: &Path) -> Result<Vec<(String, PathBuf, bool)>, String> {
        let shown = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let entries = match fs::read_dir(shown) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(vec![]);
            }
            Err(error) => return Err(refusal(self.pattern, shown, &error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| refusal(self.pattern, shown, &error))?;
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let name = entry.file_name();
            names.push((name.to_string_lossy().into_owned(), folder.join(&name), is_link));
        }
        names.sort();
        Ok(names)
    }
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

/// The key and value in a folder's name.
fn key(name: &str) -> Option<(String, String)> {
    let (key, value) = name.split_once('=')?;
    (!key.is_empty()).then(|| (key.to_string(), value.to_string()))
}

fn refusal(pattern: &str, path: &Path, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        return format!("the file '{pattern}' does not exist");
    }
    format!("cannot read {}, which '{pattern}' names: {}", path.display(), io_reason(error))
}

/// The URL of a literal path; `ListingTableUrl::parse` would take `*`, `?` and `[` for a pattern.
pub fn literal_url(path: &Path) -> Option<Url> {
    let absolute = without_dots(&std::path::absolute(path).ok()?);
    let url = if path.is_dir() { Url::from_directory_path(absolute) } else { Url::from_file_path(absolute) };
    url.ok()
}

/// An absolute path without `.` and `..`, which object stores do not support.
fn without_dots(path: &Path) -> PathBuf {
    // With links, `..` may differ from the preceding folder.
    if path.components().any(|part| matches!(part, std::path::Component::ParentDir))
        && let Ok(path) = fs::canonicalize(path)
    {
        return path;
    }
    path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        folder
    }

    fn found(folder: &tempfile::TempDir, pattern: &str) -> Vec<String> {
        let files = files(&format!("{}/{pattern}", folder.path().display())).unwrap();
        let name = |file: Found| file.path.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_string();
        files.into_iter().map(name).collect()
    }

    #[test]
    fn patterns_match_name_by_name() {
        let folder = folder(&["a.csv", "b.csv", ".c.csv", "_d.csv", "x/e.csv", "x/y/f.csv", "x/y=1/g.csv"]);
        assert_eq!(found(&folder, "*.csv"), ["a.csv", "b.csv"]);
        assert_eq!(found(&folder, "[bc].csv"), ["b.csv"]);
        assert_eq!(found(&folder, "*/*.csv"), ["x/e.csv"]);
        assert_eq!(found(&folder, "**/*.csv"), ["a.csv", "b.csv", "x/e.csv", "x/y/f.csv", "x/y=1/g.csv"]);
        assert_eq!(found(&folder, "x"), ["x/e.csv", "x/y=1/g.csv"]);
        assert_eq!(found(&folder, "x/y/"), ["x/y/f.csv"]);
        assert_eq!(found(&folder, "_d.csv"), ["_d.csv"]);
        assert_eq!(found(&folder, "z*/*.csv"), Vec::<String>::new());
    }

    #[test]
    fn keys_are_those_of_the_folders_that_were_named() {
        let folder = folder(&["t/year=2020/month=1/a.csv"]);
        let keys = |pattern: &str| files(&format!("{}/{pattern}", folder.path().display())).unwrap()[0].keys.clone();
        let both = [("year".to_string(), "2020".to_string()), ("month".to_string(), "1".to_string())];
        for pattern in ["t", "t/*/*/*.csv", "**/*.csv", "t/year=2020/*/a.csv", "t/year=2020/"] {
            assert_eq!(keys(pattern), both, "{pattern}");
        }
        assert_eq!(keys("t/year=2020/month=1/a.csv"), []);
    }

    #[test]
    fn a_name_that_exists_is_no_pattern() {
        let folder = folder(&["a[1]/x.csv", "a1/y.csv", "b?.csv", "bc.csv"]);
        assert_eq!(found(&folder, "a[1]"), ["a[1]/x.csv"]);
        assert_eq!(found(&folder, "a[1]/*.csv"), ["a[1]/x.csv"]);
        assert_eq!(found(&folder, "b?.csv"), ["b?.csv"]);
        assert_eq!(found(&folder, "a[12]"), Vec::<String>::new());
    }

    #[test]
    fn a_link_to_a_folder_above_has_an_end() {
        let folder = folder(&["x/a.csv"]);
        symlink(folder.path(), folder.path().join("x/up")).unwrap();
        assert_eq!(found(&folder, "**/*.csv"), ["x/a.csv"]);
    }

    #[test]
    fn only_folders_that_can_match_are_read() {
        let folder = folder(&["a.csv", "locked/b.csv"]);
        let locked = folder.path().join("locked");
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(found(&folder, "*.csv"), ["a.csv"]);
        // The superuser may read everything.
        if fs::read_dir(&locked).is_err() {
            let error = files(&format!("{}/*/*.csv", folder.path().display())).unwrap_err();
            assert!(error.contains("locked") && error.contains("permission denied"), "{error}");
        }
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o700)).unwrap();
    }
}
