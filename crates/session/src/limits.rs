//! The limits of a session. By default they are those of the machine, or of the process's control group.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::runtime_env::RuntimeEnv;

/// The resources that the queries of a session may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes in the temporary directory at a time; `None` for DataFusion's limit.
    pub temp: Option<usize>,
    /// The temporary directory; `None` for the system's.
    pub temp_dir: Option<PathBuf>,
    /// Threads, and partitions of a query. A session uses at most one for each 8 MB of memory.
    pub threads: usize,
}

impl Limits {
    /// 80 % of the memory of this machine, or of the control group of this process if that has less, and a thread for each
    /// processor.
    pub fn of_this_machine() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { memory: default_memory(), temp: None, temp_dir: None, threads }
    }
}

/// The bytes that a runtime environment limits its memory and its temporary directory to, where it does.
pub fn in_force(runtime: &RuntimeEnv) -> [Option<usize>; 2] {
    let memory = match runtime.memory_pool.memory_limit() {
        MemoryLimit::Finite(bytes) => Some(bytes),
        MemoryLimit::Infinite | MemoryLimit::Unknown => None,
    };
    [memory, usize::try_from(runtime.disk_manager.max_temp_directory_size()).ok()]
}

/// 80 % of the machine's memory or of its control group's, whichever is smaller. The rest is for memory that no query
/// reserves: the program, the allocator's slack and the pages being read.
fn default_memory() -> usize {
    let available = total_memory().into_iter().chain(control_group_limit(Path::new("/"))).min();
    // If the memory is unknown, the limit is small enough for a small machine.
    available.map_or(1 << 30, |bytes| bytes / 5 * 4)
}

fn total_memory() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The smallest limit of the process's control group and its ancestors, version 2 or 1.
fn control_group_limit(root: &Path) -> Option<usize> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let files = membership.lines().flat_map(|line| limit_files(root, line));
    files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// The files that may contain a limit for a line `ID:CONTROLLERS:PATH` of /proc/self/cgroup.
fn limit_files(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (mount, name) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        list if list.split(',').any(|controller| controller == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    // In a container the path is often the host's, while the limit is at the mount's root, which the ancestors include.
    let groups = Path::new(group.trim_start_matches('/')).ancestors();
    groups.map(|group| root.join(mount).join(group).join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_group_around_the_process_counts() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/user.slice/job\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "2000000\n"),
            ("sys/fs/cgroup/user.slice/job/memory.max", "max\n"),
        ]);
        assert_eq!(control_group_limit(root.path()), Some(2_000_000));
    }

    #[test]
    fn version_1_is_read_and_other_controllers_are_not() {
        let root = machine(&[
            ("proc/self/cgroup", "5:cpu:/a\n4:memory,hugetlb:/docker/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n"),
            ("sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n"),
        ]);
        assert_eq!(control_group_limit(root.path()), Some(3_000_000));
    }

    #[test]
    fn no_limit_is_found_where_none_is_set() {
        assert_eq!(control_group_limit(machine(&[]).path()), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(default_memory() > 64 << 20);
    }
}
