use std::fs;
use std::path::Path;

use super::*;

/// Writes files below a root.
fn lay_out(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Two sockets with two cores of two threads each, and a node with memory only.
fn server(root: &Path) {
    for thread in 0..8 {
        let (core, socket) = (thread % 4, thread % 4 / 2);
        let siblings = format!("{core},{}", core + 4);
        let package =
            format!("{},{}", if socket == 0 { "0-1" } else { "2-3" }, if socket == 0 { "4-5" } else { "6-7" });
        let folder = format!("sys/devices/system/cpu/cpu{thread}");
        let cache = |index: usize, level: &str, kind: &str, size: &str, shared: &str| {
            lay_out(
                root,
                &[
                    (&format!("{folder}/cache/index{index}/level"), level),
                    (&format!("{folder}/cache/index{index}/type"), kind),
                    (&format!("{folder}/cache/index{index}/size"), size),
                    (&format!("{folder}/cache/index{index}/shared_cpu_list"), shared),
                    (&format!("{folder}/cache/index{index}/coherency_line_size"), "64\n"),
                ],
            );
        };
        cache(0, "1", "Data\n", "48K\n", &siblings);
        cache(1, "1", "Instruction\n", "32K\n", &siblings);
        cache(2, "3", "Unified\n", "30M\n", &package);
        lay_out(
            root,
            &[
                (&format!("{folder}/topology/physical_package_id"), &socket.to_string()),
                (&format!("{folder}/topology/core_id"), &(core % 2).to_string()),
            ],
        );
    }
    lay_out(
        root,
        &[
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Imaginary 9000\n"),
            ("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1,4-5\n"),
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       512 kB\n"),
            ("sys/devices/system/node/node0/distance", "10 21 40\n"),
            ("sys/devices/system/node/node1/cpulist", "2-3,6-7\n"),
            ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       512 kB\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
            ("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:       0 kB\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "9\n"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0\n"),
        ],
    );
}

#[test]
fn sockets_cores_and_caches_are_counted_once() {
    let root = tempfile::tempdir().unwrap();
    server(root.path());
    let cpu = Topology::below(root.path()).cpu;
    assert_eq!(cpu.model.as_deref(), Some("Imaginary 9000"));
    assert_eq!((cpu.sockets, cpu.cores, cpu.threads), (2, 4, 8));
    let caches: Vec<_> = cpu
        .caches
        .iter()
        .map(|cache| (cache.level, cache.kind, cache.bytes, cache.shared_by, cache.instances))
        .collect();
    assert_eq!(
        caches,
        [
            (1, CacheKind::Data, 48 << 10, 2, 4),
            (1, CacheKind::Instruction, 32 << 10, 2, 4),
            (3, CacheKind::Unified, 30 << 20, 4, 2)
        ]
    );
}

#[test]
fn processors_that_are_offline_do_not_count() {
    let root = tempfile::tempdir().unwrap();
    server(root.path());
    lay_out(root.path(), &[("sys/devices/system/cpu/online", "0-1,4\n")]);
    let cpu = Topology::below(root.path()).cpu;
    assert_eq!((cpu.sockets, cpu.cores, cpu.threads), (1, 2, 3));
}

#[test]
fn nodes_and_pages() {
    let root = tempfile::tempdir().unwrap();
    server(root.path());
    let memory = Topology::below(root.path()).memory;
    assert_eq!(memory.bytes, Some(1 << 20));
    assert_eq!(memory.transparent_huge_pages, Some(TransparentHugePages::Madvise));
    assert_eq!(memory.huge_page_pools, [HugePagePool { page: 2 << 20, pages: 16, free: 9 }]);
    let nodes: Vec<_> = memory.nodes.iter().map(|node| (node.number, node.bytes, node.processors.len())).collect();
    assert_eq!(nodes, [(0, Some(512 << 10), 4), (1, Some(512 << 10), 4), (2, None, 0)]);
    assert_eq!(memory.nodes[0].distances, [10, 21, 40]);
}

#[test]
fn a_machine_that_tells_nothing_still_has_a_processor() {
    let root = tempfile::tempdir().unwrap();
    lay_out(root.path(), &[("sys/devices/system/cpu/cpu0/cache/index0/size", "lots")]);
    let topology = Topology::below(root.path());
    assert_eq!((topology.cpu.sockets, topology.cpu.cores, topology.cpu.threads), (1, 1, 1));
    assert_eq!(topology.cpu.caches, []);
    assert_eq!(topology.memory.bytes, None);
    assert_eq!(topology.memory.transparent_huge_pages, None);
}

#[test]
fn this_machine_has_memory_and_processors() {
    let topology = Topology::of_this_machine();
    assert!(topology.cpu.threads >= std::thread::available_parallelism().map_or(1, usize::from));
    assert!(topology.cpu.threads >= topology.cpu.cores && topology.cpu.cores >= topology.cpu.sockets);
    assert!(topology.memory.bytes.is_some_and(|bytes| bytes > 64 << 20));
    assert!(topology.memory.page.is_power_of_two());
}

#[test]
fn lists_of_numbers() {
    assert_eq!(numbers("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
    assert_eq!(numbers(""), [0usize; 0]);
    assert_eq!(numbers("5"), [5]);
}

#[test]
fn the_link_of_a_gpu() {
    let root = tempfile::tempdir().unwrap();
    let folder = "sys/bus/pci/devices/0000:0b:00.0";
    lay_out(
        root.path(),
        &[
            (&format!("{folder}/max_link_speed"), "32.0 GT/s PCIe\n"),
            (&format!("{folder}/max_link_width"), "16\n"),
            (&format!("{folder}/current_link_width"), "8\n"),
            (&format!("{folder}/numa_node"), "1\n"),
        ],
    );
    assert_eq!(gpu::read_node(root.path(), "0000:0B:00.0"), Some(1));
    assert_eq!(gpu::read_node(root.path(), "0000:0C:00.0"), None);
    lay_out(root.path(), &[("sys/bus/pci/devices/0000:0d:00.0/numa_node", "-1\n")]);
    assert_eq!(gpu::read_node(root.path(), "0000:0D:00.0"), None);
    let link = gpu::read_link(root.path(), "0000:0B:00.0").unwrap();
    assert_eq!(link, Link { generation: Some(5), gigatransfers: 32.0, lanes: 8 });
    assert_eq!(gpu::read_link(root.path(), "0000:0C:00.0"), None);
}
