//! Lookups in an index (paper 3).
//!
//! A lookup waits for the reads that caches do not have. The upper levels of an index are read by all lookups, and a cache keeps as many
//! of these lines as it holds:
//!
//! ```text
//! binary search  log2(lines of the keys) - log2(lines of the cache) + 1
//! B+tree         the same within the nodes of each level; a level that fits the cache costs nothing
//! Harmonia       both lines of a node of 256 bytes, though half of the lookups need one, and its first child
//! RadixSpline    an entry of the table, points of the spline, and a few lines of keys around the estimate
//!
//! GPU, as keys come  = max(reads / random reads, translations / read misses, bytes / link)
//! GPU, in windows    = the same without translations; two streams partition meanwhile
//! translations       = reads * (1 - reach of translation / bytes of the keys)
//! CPU                = max((reads + 0.4 * lines in the cache) * random read, lookup work)
//! ```

use super::cpu::Processors;
use super::launch;
use crate::index_join::{IndexJoin, IndexKind};
use crate::machine::{Cpu, Gpu, Translation};
use crate::prediction::{Bound, Cost, LinkBytes, Refusal};

const KEY: f64 = 8.0;

/// Bytes that a lane of a GPU reads over the link at least (paper 1, section 3.4.1).
const SECTOR: f64 = 32.0;
/// Bytes that the lanes of a warp read at once.
const GPU_LINE: f64 = 128.0;

/// The share of a cache that the lines of an index have; keys, results and page tables pass through the rest.
const SHARE_OF_CACHE: f64 = 0.5;

/// Keys of a node of each tree.
const PAGE_KEYS: f64 = 512.0;
const LINE_KEYS: f64 = 8.0;
const HARMONIA_KEYS: f64 = 32.0;

/// Uniform keys for each point of a spline with an error of 32 places.
const KEYS_OF_POINT: f64 = 1190.0;
/// Bytes of a point, and of the entries of the table for it: 1.5 on average.
const POINT: f64 = 16.0;
const ENTRIES_OF_POINT: f64 = 6.0;
/// Reads of the table and of points.
const TABLE_AND_POINTS: f64 = 2.0;
/// Reads of keys around an estimate: there, a line further, and between the two by halves.
const READS_NEAR: f64 = 4.0;
/// The same in lines of a CPU: there, where the slope says that the key is then, and the next.
const LINES_NEAR: f64 = 3.0;

/// The cost of reading a line from a CPU's last level of cache, as a share of a read of memory. It is fitted to lookups in 2^28 keys
/// (docs/benchmarks.md, "Indexes"). The model is within a factor of 1.6 of them, except for binary search, which is half as fast as
/// predicted: its steps are powers of two apart, and such lines share few sets of a cache.
const CACHED_LINE: f64 = 0.4;

/// Bytes of GPU memory to partition a key with its number: copied, counted, written in order, read.
const PARTITIONED_KEY: f64 = 48.0;
/// Bytes of a pair that is written.
const PAIR: f64 = 16.0;
/// Kernels of a window: copy and count, three for offsets, partition, look up.
const KERNELS_OF_WINDOW: f64 = 6.0;

/// What a lookup waits for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lookups {
    /// Reads of memory.
    pub(crate) reads: f64,
    /// Translations requested from the CPU.
    pub(crate) translations: f64,
}

/// A memory with a cache in front of it.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// Bytes of the smallest read.
    line: f64,
    /// Bytes of the cache.
    cache: f64,
}

impl Memory {
    /// The share of an array that the cache does not hold.
    fn uncached(self, bytes: f64) -> f64 {
        if bytes > self.cache { 1.0 - self.cache / bytes } else { 0.0 }
    }

    /// Lines of a binary search in `keys` keys, wherever they are.
    fn lines(self, keys: f64) -> f64 {
        (keys * KEY / self.line).log2().max(0.0) + 1.0
    }

    /// Reads of a binary search in each of `searches` arrays of `keys` keys, where each lookup goes to one of them. The first steps
    /// of all arrays are read most often.
    fn halving(self, searches: f64, keys: f64) -> f64 {
        let steps = (keys * KEY / self.line).log2().max(0.0);
        let all = searches * keys * KEY;
        let cached = (self.cache / self.line).log2();
        let uncached = ((all / self.line).log2() - cached).clamp(0.0, steps);
        uncached + self.uncached(all)
    }

    /// Reads of a lookup in a B+tree of nodes with `keys` keys.
    fn btree(self, rows: f64, keys: f64) -> f64 {
        levels(rows, keys).map(|nodes| self.halving(nodes, keys)).sum()
    }

    /// Reads of a RadixSpline's table and points.
    fn spline(self, rows: f64) -> f64 {
        let points = rows / KEYS_OF_POINT;
        TABLE_AND_POINTS * self.uncached(points * (POINT + ENTRIES_OF_POINT))
    }
}

/// The number of nodes of each level of a tree, from the leaves up.
fn levels(rows: f64, keys: f64) -> impl Iterator<Item = f64> {
    std::iter::successors(Some((rows / keys).max(1.0)), move |nodes| (*nodes > 1.0).then(|| (nodes / keys).max(1.0)))
}

pub(crate) fn cpu_lookups(cpu: &Cpu, kind: IndexKind, join: &IndexJoin) -> (Cost, Lookups) {
    let memory = Memory { line: cpu.cache_line as f64, cache: cpu.last_level_cache as f64 };
    let rows = join.indexed_rows.max(1) as f64;
    let tree = |keys| (memory.btree(rows, keys), levels(rows, keys).map(|_| memory.lines(keys)).sum());
    let (reads, lines): (f64, f64) = match kind {
        IndexKind::BinarySearch => (memory.halving(1.0, rows), memory.lines(rows)),
        IndexKind::BTree => tree(PAGE_KEYS),
        IndexKind::LineBTree => tree(LINE_KEYS),
        IndexKind::Harmonia => tree(HARMONIA_KEYS),
        IndexKind::RadixSpline => {
            (memory.spline(rows) + LINES_NEAR * memory.uncached(rows * KEY), TABLE_AND_POINTS + LINES_NEAR)
        }
    };
    let waits = reads + CACHED_LINE * (lines - reads).max(0.0);
    let processors = Processors::new(cpu, join.threads.unwrap_or(cpu.threads));
    let lookups = join.lookups as f64;
    // The instructions are taken to be as many as those of a lookup in a hash table.
    let parts = processors.lookups(KEY, f64::INFINITY).map(|(bound, seconds)| {
        let times = if bound == Bound::CpuRandomAccess { waits } else { 1.0 };
        (bound, lookups * times * seconds)
    });
    let mut cost = Cost::default();
    cost.phase("look up", &parts);
    (cost, Lookups { reads, translations: 0.0 })
}

pub(crate) fn gpu_lookups(
    gpu: &Gpu,
    kind: IndexKind,
    join: &IndexJoin,
    in_windows: bool,
) -> Result<(Cost, Lookups), Refusal> {
    let memory = Memory { line: SECTOR, cache: gpu.l2_bytes as f64 * SHARE_OF_CACHE };
    let rows = join.indexed_rows.max(1) as f64;
    // Reads of a sector by a lane each, and of lines by the lanes of a sub-warp.
    let (sectors, lines) = match kind {
        IndexKind::BinarySearch => (memory.halving(1.0, rows), 0.0),
        IndexKind::BTree => (memory.btree(rows, PAGE_KEYS), 0.0),
        IndexKind::LineBTree => (memory.btree(rows, LINE_KEYS), 0.0),
        IndexKind::Harmonia => {
            let node = HARMONIA_KEYS * KEY;
            let lines =
                levels(rows, HARMONIA_KEYS).map(|nodes| memory.uncached(nodes * node)).sum::<f64>() * node / GPU_LINE;
            // The leaves have no children.
            (levels(rows, HARMONIA_KEYS).skip(1).map(|nodes| memory.uncached(nodes * 4.0)).sum(), lines)
        }
        IndexKind::RadixSpline => (memory.spline(rows) + READS_NEAR * memory.uncached(rows * KEY), 0.0),
    };
    let reads = sectors + lines;
    let range = rows * KEY;
    let Translated { slowdown, translations, read_misses } = translated(gpu, range, reads, in_windows)?;
    let lookups = join.lookups as f64;
    let mut cost = Cost::default();
    let bytes = lookups * (KEY + sectors * SECTOR + lines * GPU_LINE);
    let mut worked = lookups * PAIR;
    if in_windows {
        worked += lookups * PARTITIONED_KEY;
        cost.launches((lookups / join.window.max(1) as f64).ceil() * KERNELS_OF_WINDOW, launch(gpu)?);
    }
    let random = (reads * slowdown / gpu.link.random_reads).max(translations / read_misses);
    let parts = [
        (Bound::LinkRandomAccess, lookups * random),
        (Bound::Transfer, bytes / gpu.link.read),
        (Bound::GpuWork, worked / gpu.bandwidth),
    ];
    cost.phase("look up", &parts);
    cost.link_bytes = LinkBytes { to_gpu: bytes, to_cpu: 0.0 };
    Ok((cost, Lookups { reads, translations }))
}

/// How address translation slows reads down.
struct Translated {
    slowdown: f64,
    /// Translations that a lookup requests from the CPU.
    translations: f64,
    /// How many of them there are a second.
    read_misses: f64,
}

fn translated(gpu: &Gpu, range: f64, reads: f64, in_windows: bool) -> Result<Translated, Refusal> {
    let at_full_speed = Translated { slowdown: 1.0, translations: 0.0, read_misses: f64::INFINITY };
    // Neighbouring threads look up keys of a few pages.
    let Some(Translation { near_bytes, far_slowdown, far_bytes, misses, read_misses }) =
        gpu.link.translation.filter(|_| !in_windows)
    else {
        return Ok(at_full_speed);
    };
    let far_share = |reach: f64| if range > reach { 1.0 - reach / range } else { 0.0 };
    let slowdown = 1.0 + far_share(near_bytes) * (far_slowdown - 1.0);
    let translations = reads * far_share(far_bytes);
    if translations == 0.0 {
        return Ok(Translated { slowdown, ..at_full_speed });
    }
    let read_misses = read_misses.or(misses).ok_or(Refusal::RandomRange { needed: range, known: far_bytes })?;
    Ok(Translated { slowdown, translations, read_misses })
}
