//! Whether batches are compressed to blocks before they are written.

use std::time::Duration;

use parking_lot::Mutex;

use crate::config::{BlockCompression, Choice};

/// How batches stand in a spill file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// As Arrow IPC, compressed as DataFusion's setting says.
    Batches,
    /// As compressed blocks.
    Blocks,
}

/// What writing a batch took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub format: Format,
    /// Bytes of the batch in memory.
    pub bytes: usize,
    /// Bytes by which the file grew.
    pub file_bytes: u64,
    /// Compressing it to a block.
    pub compressing: Duration,
    /// Writing the batch or the block.
    pub writing: Duration,
}

/// The format of the files of one side.
#[derive(Debug)]
pub(super) enum FormatChoice {
    Fixed(Format),
    /// The faster one: a few batches are written in each.
    Measured(Mutex<Measured>),
}

/// Batches of each format that are measured.
const TRIAL: usize = 12;

/// Bytes of files after which the choice is made again.
const WINDOW: u64 = 32 << 20;

/// How much faster the other format must be for a change. Threads that share a processor seem to slow the disk down.
const GAIN: f64 = 1.25;

/// Time that reading takes, beside writing; and decompressing beside compressing (`docs/codec.md` has figures).
const READING: f64 = 0.5;

/// What batches took, per byte in memory.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    compressing: f64,
    writing: f64,
    file_bytes: f64,
}

#[derive(Debug, Default)]
pub(super) struct Measured {
    batches: Vec<Cost>,
    blocks: Vec<Cost>,
    chosen: Option<Format>,
    /// Files created before the choice.
    files: usize,
    /// Since the last choice.
    file_bytes: u64,
    writing: Duration,
}

impl FormatChoice {
    pub fn new(setting: Choice<BlockCompression>) -> Self {
        match setting.0 {
            None => Self::Measured(Mutex::default()),
            Some(BlockCompression::Cascaded) => Self::Fixed(Format::Blocks),
            Some(BlockCompression::Off) => Self::Fixed(Format::Batches),
        }
    }

    /// The format of a new file.
    pub fn of_new_file(&self) -> Format {
        match self {
            Self::Fixed(format) => *format,
            Self::Measured(measured) => measured.lock().of_new_file(),
        }
    }

    /// The format of the next batch of a file in this format.
    pub fn next(&self, format: Format) -> Format {
        match self {
            Self::Fixed(format) => *format,
            Self::Measured(measured) => measured.lock().next(format),
        }
    }

    pub fn note(&self, written: Written) {
        if let Self::Measured(measured) = self {
            measured.lock().note(written);
        }
    }
}

impl Measured {
    fn of_new_file(&mut self) -> Format {
        self.chosen.unwrap_or_else(|| {
            self.files += 1;
            if self.files.is_multiple_of(2) { Format::Batches } else { Format::Blocks }
        })
    }

    fn next(&self, format: Format) -> Format {
        match self.chosen {
            Some(chosen) => chosen,
            None if self.costs(format).len() >= TRIAL => format.other(),
            None => format,
        }
    }

    fn costs(&self, format: Format) -> &Vec<Cost> {
        match format {
            Format::Batches => &self.batches,
            Format::Blocks => &self.blocks,
        }
    }

    fn note(&mut self, written: Written) {
        if let Some(chosen) = self.chosen {
            self.file_bytes += written.file_bytes;
            self.writing += written.writing;
            if self.file_bytes >= WINDOW {
                self.choose_again(chosen);
            }
            return;
        }
        let bytes = written.bytes.max(1) as f64;
        let cost = Cost {
            compressing: written.compressing.as_secs_f64() / bytes,
            writing: written.writing.as_secs_f64() / bytes,
            file_bytes: written.file_bytes as f64 / bytes,
        };
        match written.format {
            Format::Batches => self.batches.push(cost),
            Format::Blocks => self.blocks.push(cost),
        }
        if self.batches.len() >= TRIAL && self.blocks.len() >= TRIAL {
            let is_faster = self.seconds(Format::Blocks, 0.0) < self.seconds(Format::Batches, 0.0);
            self.chosen = Some(if is_faster { Format::Blocks } else { Format::Batches });
        }
    }

    /// A disk may be slower than the memory that holds what was written to it first.
    fn choose_again(&mut self, chosen: Format) {
        let now = self.writing.as_secs_f64() / self.file_bytes as f64;
        let before = self.cost(chosen);
        let delay = (now - before.writing / before.file_bytes).max(0.0);
        if self.seconds(chosen.other(), delay) * GAIN < self.seconds(chosen, delay) {
            self.chosen = Some(chosen.other());
        }
        (self.file_bytes, self.writing) = (0, Duration::ZERO);
    }

    /// Seconds of writing and reading a byte, where each byte of a file takes `delay` longer than when the format was measured.
    fn seconds(&self, format: Format, delay: f64) -> f64 {
        let cost = self.cost(format);
        (1.0 + READING) * (cost.compressing + cost.writing + delay * cost.file_bytes)
    }

    /// The median of the costs, which other threads disturb.
    fn cost(&self, format: Format) -> Cost {
        let median = |part: fn(&Cost) -> f64| {
            let mut values: Vec<f64> = self.costs(format).iter().map(part).collect();
            let middle = values.len() / 2;
            if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(middle, f64::total_cmp).1 }
        };
        Cost {
            compressing: median(|cost| cost.compressing),
            writing: median(|cost| cost.writing),
            file_bytes: median(|cost| cost.file_bytes),
        }
    }
}

impl Format {
    fn other(self) -> Self {
        match self {
            Self::Batches => Self::Blocks,
            Self::Blocks => Self::Batches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each of some batches of 40 KB becomes a block, if they are written to 16 files. Blocks are `ratio` times smaller after
    /// `compressing` seconds a byte; `disk` is the seconds of a byte of a file, after as many bytes.
    fn blocks_of(batches: usize, ratio: f64, compressing: f64, disk: impl Fn(u64) -> f64) -> Vec<bool> {
        const BYTES: usize = 40_000;
        let choice = FormatChoice::new(Choice::AUTO);
        let mut files: Vec<_> = (0..16).map(|_| choice.of_new_file()).collect();
        let mut written = 0;
        let one = |batch: usize| {
            let file = &mut files[batch % 16];
            *file = choice.next(*file);
            let is_block = *file == Format::Blocks;
            let file_bytes = if is_block { (BYTES as f64 / ratio) as u64 } else { BYTES as u64 };
            // Other threads take the processor now and then.
            let pause = if batch.is_multiple_of(1000) { 0.004 } else { 0.0 };
            let compressing = if is_block { BYTES as f64 * compressing } else { 0.0 };
            let writing = file_bytes as f64 * disk(written) + pause;
            written += file_bytes;
            let (compressing, writing) = (Duration::from_secs_f64(compressing), Duration::from_secs_f64(writing));
            choice.note(Written { format: *file, bytes: BYTES, file_bytes, compressing, writing });
            is_block
        };
        (0..batches).map(one).collect()
    }

    #[test]
    fn the_faster_format_is_found_after_a_few_batches() {
        // A disk of 1 GB/s, blocks half as large at 4 GB/s, or hardly smaller at 1 GB/s.
        let smaller = blocks_of(200, 2.0, 0.25e-9, |_| 1e-9);
        assert!(smaller[..40].contains(&false) && smaller[40..].iter().all(|is_block| *is_block), "{smaller:?}");
        let larger = blocks_of(200, 1.05, 1e-9, |_| 1e-9);
        assert!(larger[..40].contains(&true) && larger[40..].iter().all(|is_block| !is_block), "{larger:?}");
    }

    #[test]
    fn a_disk_that_slows_down_is_noticed() {
        // Memory holds the first 100 MB at 4 GB/s, then the disk writes 200 MB/s.
        let formats = blocks_of(8000, 2.0, 1e-9, |written| if written < 100_000_000 { 0.25e-9 } else { 5e-9 });
        assert!(formats[40..1000].iter().all(|is_block| !is_block));
        assert!(formats[7000..].iter().all(|is_block| *is_block));
    }

    #[test]
    fn a_single_file_is_measured_in_both_formats() {
        let choice = FormatChoice::new(Choice::AUTO);
        let mut format = choice.of_new_file();
        let mut formats = vec![];
        for _ in 0..2 * TRIAL + 1 {
            format = choice.next(format);
            formats.push(format);
            let compressing = Duration::from_micros(if format == Format::Blocks { 5 } else { 0 });
            let writing = Duration::from_micros(if format == Format::Blocks { 10 } else { 20 });
            choice.note(Written { format, bytes: 40_000, file_bytes: 20_000, compressing, writing });
        }
        assert_eq!(formats.windows(2).filter(|two| two[0] != two[1]).count(), 2, "{formats:?}");
        assert_eq!(formats.last(), Some(&Format::Blocks));
        for (setting, format) in
            [(BlockCompression::Cascaded, Format::Blocks), (BlockCompression::Off, Format::Batches)]
        {
            let fixed = FormatChoice::new(setting.into());
            assert_eq!((fixed.of_new_file(), fixed.next(format)), (format, format));
        }
    }
}
