use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// Makes the test binary behave as another process of Overspill with this root.
const CHILD_ROOT: &str = "OVERSPILL_TEST_SPILL_ROOT";

fn entries(root: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A directory as a process that died would leave it.
fn abandoned(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    fs::create_dir_all(path.join("datafusion-x")).unwrap();
    fs::write(path.join("datafusion-x/spill"), "rows").unwrap();
    fs::write(path.join("loose"), "rows").unwrap();
    fs::write(path.join(LOCK_FILE), [MARKER, b"1\n"].concat()).unwrap();
    path
}

/// Another process that has opened the root.
struct OtherProcess {
    child: Child,
    path: PathBuf,
}

impl OtherProcess {
    fn start(root: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spill::directory::tests::other_process", "--nocapture"])
            .env(CHILD_ROOT, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let path = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .find_map(|line| line.unwrap().split_once("opened ").map(|(_, path)| PathBuf::from(path)))
            .expect("the other process opens the root");
        Self { child, path }
    }

    /// `kill -9`.
    fn kill(mut self) -> PathBuf {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.path
    }
}

/// Not a test by itself: the code that [`OtherProcess`] runs.
#[test]
fn other_process() {
    let Some(root) = std::env::var_os(CHILD_ROOT) else { return };
    let directory = SpillDirectory::open(Path::new(&root)).unwrap();
    fs::write(directory.path().join("spill"), "rows").unwrap();
    println!("opened {}", directory.path().display());
    // Until killed, or until the test that started it dies and its end of the pipe closes.
    _ = std::io::stdin().lines().count();
}

#[test]
fn the_directory_lives_as_long_as_its_value() {
    let root = tempfile::tempdir().unwrap();
    let directory = SpillDirectory::open(root.path()).unwrap();
    let name = directory.path().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(entries(root.path()), std::slice::from_ref(&name));
    assert!(name.starts_with(&format!("overspill-{}-", std::process::id())), "{name}");
    fs::create_dir(directory.path().join("nested")).unwrap();
    fs::write(directory.path().join("nested/spill"), "rows").unwrap();
    drop(directory);
    assert!(entries(root.path()).is_empty());
    assert!(root.path().exists(), "the root itself stays");
}

#[test]
fn a_missing_root_is_created() {
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("spill");
    let directory = SpillDirectory::open(&root).unwrap();
    assert!(directory.path().starts_with(fs::canonicalize(&root).unwrap()));
}

#[cfg(unix)]
#[test]
fn other_users_cannot_look_inside() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let directory = SpillDirectory::open(root.path()).unwrap();
    assert_eq!(fs::metadata(directory.path()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_killed_process_is_cleaned_up_after_and_a_live_one_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let live = OtherProcess::start(root.path());
    let killed = OtherProcess::start(root.path()).kill();
    assert!(killed.join("spill").exists(), "the killed process left its file");
    let own = SpillDirectory::open(root.path()).unwrap();
    assert!(!killed.exists());
    assert!(live.path.join("spill").exists());
    assert!(own.path().exists());
    let left = live.kill();
    assert!(left.exists());
    let second = SpillDirectory::open(root.path()).unwrap();
    assert!(!left.exists());
    assert!(own.path().exists(), "a second value in this process leaves the first alone");
    drop((own, second));
    assert!(entries(root.path()).is_empty());
}

#[test]
fn strangers_are_never_touched() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    fs::write(path.join("letter.txt"), "mine").unwrap();
    fs::write(path.join("overspill-1-0123456789abcdef"), "a file of our name").unwrap();
    fs::create_dir(path.join("overspill-2-0123456789abcdef")).unwrap();
    fs::write(path.join("overspill-2-0123456789abcdef/data"), "no lock file").unwrap();
    let other_marker = abandoned(path, "overspill-3-0123456789abcdef");
    fs::write(other_marker.join(LOCK_FILE), "somebody else's lock file, and long enough").unwrap();
    let empty_marker = abandoned(path, "overspill-4-0123456789abcdef");
    fs::write(empty_marker.join(LOCK_FILE), "").unwrap();
    abandoned(path, "overspill-old");
    abandoned(path, "overspill-x-0123456789abcdef");
    abandoned(path, "overspill-5-0123456789ABCDEF");
    abandoned(path, "overspill-5-0123456789abcde");
    abandoned(path, "my-overspill-5-0123456789abcdef");
    #[cfg(unix)]
    let elsewhere = {
        let elsewhere = tempfile::tempdir().unwrap();
        abandoned(elsewhere.path(), "target");
        std::os::unix::fs::symlink(elsewhere.path().join("target"), path.join("overspill-6-0123456789abcdef")).unwrap();
        elsewhere
    };
    let before = entries(path);
    drop(SpillDirectory::open(path).unwrap());
    assert_eq!(entries(path), before);
    assert!(path.join("overspill-5-0123456789abcde/datafusion-x/spill").exists());
    #[cfg(unix)]
    assert!(elsewhere.path().join("target/datafusion-x/spill").exists());
}

#[test]
fn abandoned_directories_go_whole() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..3 {
        abandoned(root.path(), &format!("overspill-{number}-0123456789abcdef"));
    }
    drop(SpillDirectory::open(root.path()).unwrap());
    assert!(entries(root.path()).is_empty());
}

#[test]
fn unfinished_directories_go_when_they_are_old() {
    let root = tempfile::tempdir().unwrap();
    let old = root.path().join(".overspill-1-0123456789abcdef");
    let young = root.path().join(".overspill-2-0123456789abcdef");
    for path in [&old, &young] {
        fs::create_dir(path).unwrap();
    }
    File::open(&old).unwrap().set_modified(SystemTime::now() - 2 * UNFINISHED_AGE).unwrap();
    drop(SpillDirectory::open(root.path()).unwrap());
    assert!(!old.exists());
    assert!(young.exists());
}

#[test]
fn processes_that_start_together_do_not_disturb_one_another() {
    let root = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let root = &root;
            scope.spawn(move || {
                for round in 0..20 {
                    abandoned(root.path(), &format!("overspill-{thread}-{round:016x}"));
                    let directory = SpillDirectory::open(root.path()).unwrap();
                    fs::write(directory.path().join("spill"), "rows").unwrap();
                    std::thread::yield_now();
                    assert_eq!(fs::read(directory.path().join("spill")).unwrap(), b"rows");
                }
            });
        }
    });
    drop(SpillDirectory::open(root.path()).unwrap());
    assert!(entries(root.path()).is_empty());
}

#[test]
fn a_root_that_is_a_file_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let message = SpillDirectory::open(file.path()).unwrap_err().to_string();
    assert!(message.contains("is a file") && message.contains("--temp-dir"), "{message}");
    let message = SpillDirectory::open(&file.path().join("below")).unwrap_err().to_string();
    assert!(message.contains("below") && message.contains("--temp-dir"), "{message}");
}

#[test]
fn a_root_without_a_parent_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let message = SpillDirectory::open(&parent.path().join("a/b")).unwrap_err().to_string();
    assert!(message.contains("a/b' cannot be created because") && message.contains("a' does not exist"), "{message}");
    assert!(entries(parent.path()).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_read_only_root_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o500)).unwrap();
    // The superuser may write anywhere but in the kernel's own file systems.
    let superuser = fs::write(root.path().join("probe"), "").is_ok();
    let read_only = if superuser { Path::new("/sys") } else { root.path() };
    let message = SpillDirectory::open(read_only).unwrap_err().to_string();
    assert!(message.contains("cannot be written to") && message.contains("--temp-dir"), "{message}");
}
