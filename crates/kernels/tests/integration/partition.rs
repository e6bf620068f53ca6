use overspill_kernels::{
    Algorithm, CountedKeys, HashFunction, Histogram, Input, Kernels, KeyWidth, Output, PartitionPlan, Partitioner,
    PayloadInput, Radix,
};
use overspill_machine::driver::Stream;
use overspill_machine::memory::{
    DeviceBuffer, HostBuffer, Layout, Mapping, PageSize, SpanningBuffer, SpanningLayout, UnifiedBuffer, View, ViewMut,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::test_gpu::{TestGpu, scaled, seeds};

const BUDGET: u64 = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    Device,
    Pinned,
    /// Pageable memory, on a link that reads it.
    Pageable,
    Unified,
    /// GPU and CPU pages in turn.
    Spanning,
}

/// Values in memory of a placement.
enum Memory {
    Device(DeviceBuffer),
    Host(HostBuffer),
    Unified(UnifiedBuffer),
    Spanning(SpanningBuffer),
}

impl Memory {
    fn new(kernels: &Kernels, stream: &Stream, placement: Placement, bytes: &[u8]) -> Self {
        match placement {
            Placement::Device => Self::Device(DeviceBuffer::from_slice(stream, bytes).unwrap()),
            Placement::Pinned | Placement::Pageable => {
                let mut buffer = match placement {
                    Placement::Pinned => HostBuffer::pinned(kernels.device(), bytes.len(), PageSize::Huge).unwrap(),
                    _ => HostBuffer::new(bytes.len(), PageSize::Small).unwrap(),
                };
                buffer.as_mut_slice::<u8>()[..bytes.len()].copy_from_slice(bytes);
                Self::Host(buffer)
            }
            Placement::Unified => {
                let mut buffer = UnifiedBuffer::new(kernels.device(), bytes.len().max(8) as u64).unwrap();
                buffer.as_mut_slice::<u8>().unwrap()[..bytes.len()].copy_from_slice(bytes);
                Self::Unified(buffer)
            }
            Placement::Spanning => {
                // Stripes of 2 MiB, of which every second one lies on the device.
                let layout = SpanningLayout {
                    layout: Layout::Interleaved,
                    bytes: bytes.len() as u64,
                    device_bytes: vec![(bytes.len() as u64 / 2).next_multiple_of(2 << 20)],
                    stripe_bytes: 2 << 20,
                    node: 0,
                };
                let device = std::slice::from_ref(kernels.device());
                let mut buffer = SpanningBuffer::new(device, &layout, Mapping::Contiguous).unwrap();
                buffer.write(stream, 0, bytes).unwrap();
                Self::Spanning(buffer)
            }
        }
    }

    fn view(&self, kernels: &Kernels) -> View<'_> {
        match self {
            Self::Device(buffer) => buffer.view(),
            Self::Host(buffer) => buffer.view(kernels.device()).unwrap(),
            Self::Unified(buffer) => buffer.view(),
            Self::Spanning(buffer) => buffer.view().unwrap(),
        }
    }

    fn view_mut(&mut self, kernels: &Kernels) -> ViewMut<'_> {
        match self {
            Self::Device(buffer) => buffer.view_mut(),
            Self::Host(buffer) => buffer.view_mut(kernels.device()).unwrap(),
            Self::Unified(buffer) => buffer.view_mut(),
            Self::Spanning(buffer) => buffer.view_mut().unwrap(),
        }
    }

    /// The values of a column of `width` bytes each.
    fn values(&mut self, stream: &Stream, width: u64) -> Vec<u64> {
        let bytes = match self {
            Self::Device(buffer) => buffer.read::<u8>(stream, buffer.bytes() as usize).unwrap(),
            Self::Host(buffer) => buffer.as_slice::<u8>().to_vec(),
            Self::Unified(buffer) => buffer.as_mut_slice::<u8>().unwrap().to_vec(),
            Self::Spanning(buffer) => buffer.read::<u8>(stream, 0, buffer.bytes() as usize).unwrap(),
        };
        bytes.chunks_exact(width as usize).map(number).collect()
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn column(values: &[u64], width: u64) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()[..width as usize].to_vec()).collect()
}

/// Who counts the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    Kernel,
    /// A kernel that copies the input to GPU memory meanwhile.
    Copying,
    /// The CPU, on so many threads.
    Cpu(usize),
}

/// One case: what is partitioned, and how.
struct Case {
    algorithm: Algorithm,
    key: KeyWidth,
    /// Widths of the payloads; the last are row ids if `row_ids` says so.
    payloads: Vec<u64>,
    row_ids: bool,
    radix: Radix,
    input: Placement,
    output: Placement,
    counting: Counting,
}

impl Case {
    fn new(algorithm: Algorithm, bits: u32) -> Self {
        Self {
            algorithm,
            key: KeyWidth::Eight,
            payloads: vec![8],
            row_ids: false,
            radix: Radix::new(bits, 0, HashFunction::MultiplyShift).unwrap(),
            input: Placement::Device,
            output: Placement::Pinned,
            counting: Counting::Kernel,
        }
    }

    /// Partitions the keys and checks that the result is a permutation of the tuples, grouped, where the offsets say.
    fn check(&self, kernels: &Kernels, keys: &[u64]) -> PartitionPlan {
        let stream = Stream::new(kernels.device()).unwrap();
        let tuples = keys.len() as u64;
        let mask = if self.key == KeyWidth::Four { u64::from(u32::MAX) } else { u64::MAX };
        let keys: Vec<u64> = keys.iter().map(|key| key & mask).collect();
        let plan =
            PartitionPlan::new(kernels, self.algorithm, self.key, &self.payloads, self.radix, tuples, BUDGET).unwrap();
        let name = format!(
            "{} {:?} {:?} row ids {} fanout {} {:?} to {:?}, counted by {:?}, {tuples} tuples",
            self.algorithm,
            self.key,
            self.payloads,
            self.row_ids,
            self.radix.fanout(),
            self.input,
            self.output,
            self.counting
        );
        // A payload's value tells which tuple and which column it came from.
        let payload_of = |row: u64, column: usize| match self.payloads[column] {
            4 => (row * 4 + column as u64) & u64::from(u32::MAX),
            _ => row * 4 + column as u64 + (7 << 40),
        };
        let from = Memory::new(kernels, &stream, self.input, &column(&keys, self.key.bytes()));
        let first_row = 1_000u64;
        let inputs: Vec<Option<Memory>> = (0..self.payloads.len())
            .map(|at| {
                let is_row_id = self.row_ids && at + 1 == self.payloads.len();
                let values: Vec<u64> = (0..tuples).map(|row| payload_of(row, at)).collect();
                (!is_row_id).then(|| Memory::new(kernels, &stream, self.input, &column(&values, self.payloads[at])))
            })
            .collect();
        let room = |width: u64| vec![0xEE; (plan.output_tuples() * width) as usize];
        let mut to = Memory::new(kernels, &stream, self.output, &room(self.key.bytes()));
        let mut outputs: Vec<Memory> =
            self.payloads.iter().map(|width| Memory::new(kernels, &stream, self.output, &room(*width))).collect();

        let input = Input {
            keys: from.view(kernels),
            payloads: inputs
                .iter()
                .map(|memory| {
                    memory
                        .as_ref()
                        .map_or(PayloadInput::RowIds(first_row), |memory| PayloadInput::Column(memory.view(kernels)))
                })
                .collect(),
        };
        let mut output = Output {
            keys: to.view_mut(kernels),
            payloads: outputs.iter_mut().map(|memory| memory.view_mut(kernels)).collect(),
        };
        let mut partitioner = Partitioner::new(kernels, plan.clone()).unwrap();
        let partitions = match self.counting {
            Counting::Kernel => partitioner.run(&stream, &input, &mut output),
            Counting::Cpu(threads) => {
                let Memory::Host(buffer) = &from else { panic!("{name}: the CPU counts what it reads") };
                let keys = CountedKeys::new(kernels.device(), &plan, buffer, threads).unwrap();
                assert_eq!(keys.count_bytes(), u64::from(self.radix.fanout()) * u64::from(plan.blocks()) * 8);
                partitioner.run_counted(&stream, &keys, input.payloads.clone(), &mut output)
            }
            Counting::Copying => {
                let buffer = |width: u64| DeviceBuffer::new(kernels.device(), tuples * width).unwrap();
                let mut copied_keys = buffer(self.key.bytes());
                let mut copied: Vec<DeviceBuffer> = self.payloads.iter().map(|width| buffer(*width)).collect();
                let mut copy = Output {
                    keys: copied_keys.view_mut(),
                    payloads: copied.iter_mut().map(DeviceBuffer::view_mut).collect(),
                };
                partitioner.run_copying(&stream, &input, &mut copy, &mut output)
            }
        }
        .unwrap_or_else(|error| panic!("{name}: {error}"));
        drop(output);

        let out_keys = to.values(&stream, self.key.bytes());
        let out_payloads: Vec<Vec<u64>> =
            outputs.iter_mut().zip(&self.payloads).map(|(memory, width)| memory.values(&stream, *width)).collect();
        // What the CPU counts says where the tuples of each block are, whoever counted them here.
        let histogram = match self.key {
            KeyWidth::Four => Histogram::of_plan(&plan, &keys.iter().map(|key| *key as u32).collect::<Vec<_>>(), 2),
            KeyWidth::Eight => Histogram::of_plan(&plan, &keys, 2),
        };
        let histogram = histogram.unwrap();
        let blocks = histogram.counts().chunks(plan.blocks() as usize);
        assert!(
            blocks.clone().map(|counts| counts.iter().sum::<u64>()).eq(partitions.iter().map(|(_, count)| *count)),
            "{name}: the CPU counts others"
        );
        let blocks_of = |counts: &[u64]| -> Vec<u64> {
            (0..).zip(counts).flat_map(|(block, count)| std::iter::repeat_n(block, *count as usize)).collect()
        };
        let mut seen = vec![false; keys.len()];
        let mut end_before = 0;
        let mut found = 0;
        for ((partition, (start, count)), counts) in partitions.iter().enumerate().zip(blocks) {
            let blocks = blocks_of(counts);
            assert!(*start >= end_before, "{name}: partition {partition} starts within the one before");
            assert_eq!(start % plan.alignment(), 0, "{name}: partition {partition} does not start on a line");
            end_before = start + count;
            found += count;
            for at in *start as usize..end_before as usize {
                let key = out_keys[at];
                assert_eq!(self.radix.partition(key) as usize, partition, "{name}: key {key:x} at {at}");
                if self.payloads.is_empty() {
                    continue;
                }
                // The first payload names the row; all others must agree with it.
                let row = if self.row_ids && self.payloads.len() == 1 {
                    out_payloads[0][at] - first_row
                } else {
                    let value =
                        if self.payloads[0] == 8 { out_payloads[0][at] - (7 << 40) } else { out_payloads[0][at] };
                    value / 4
                };
                assert!(
                    row < tuples && !std::mem::replace(&mut seen[row as usize], true),
                    "{name}: row {row} at {at} is there twice"
                );
                assert_eq!(keys[row as usize], key, "{name}: the key of row {row}");
                let block = blocks[at - *start as usize];
                assert_eq!(row / plan.chunk(), block, "{name}: row {row} is where the CPU counts those of a block");
                for (number, values) in out_payloads.iter().enumerate() {
                    let expected = if self.row_ids && number + 1 == self.payloads.len() {
                        row + first_row
                    } else {
                        payload_of(row, number)
                    };
                    assert_eq!(values[at], expected, "{name}: payload {number} of row {row}");
                }
            }
        }
        assert_eq!(found, tuples, "{name}");
        if self.payloads.is_empty() {
            let mut expected = keys.clone();
            let mut got: Vec<u64> = partitions
                .iter()
                .flat_map(|(start, count)| out_keys[*start as usize..(start + count) as usize].to_vec())
                .collect();
            expected.sort_unstable();
            got.sort_unstable();
            assert!(expected == got, "{name}: the keys are not those of the input");
        }
        plan
    }
}

fn uniform(tuples: u64, seed: u64) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..tuples).map(|_| random.random()).collect()
}

/// Four of five tuples have one of three keys.
fn skewed(tuples: u64, seed: u64) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..tuples).map(|_| if random.random_ratio(4, 5) { random.random_range(0..3) } else { random.random() }).collect()
}

#[test]
fn every_algorithm_and_fanout() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        for bits in 1..=12 {
            gpu.schedule(u64::from(bits));
            let mut case = Case::new(algorithm, bits);
            if bits == 12 {
                // 4096 buffers of 16-byte tuples do not fit a scratchpad: those of 8 bytes do.
                case.payloads = vec![4];
                case.key = KeyWidth::Four;
            }
            case.check(&kernels, &uniform(scaled(20_000), u64::from(bits)));
        }
    }
}

#[test]
fn every_schedule() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        for seed in seeds() {
            gpu.schedule(seed);
            Case::new(algorithm, 4).check(&kernels, &uniform(scaled(20_000), seed));
            Case::new(algorithm, 3).check(&kernels, &skewed(scaled(20_000), seed));
        }
    }
}

#[test]
fn every_schedule_of_the_second_level() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    // A scratchpad whose buffers are half as long as those of the second level, so that these fill and are swapped.
    gpu.configure("shared=6144");
    let kernels = gpu.kernels();
    for seed in seeds() {
        gpu.schedule(seed);
        Case::new(Algorithm::Hierarchical, 3).check(&kernels, &uniform(scaled(10_000), seed));
        Case::new(Algorithm::Hierarchical, 3).check(&kernels, &skewed(scaled(10_000), seed));
    }
}

#[test]
fn every_kernel_in_every_schedule() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        for key in [KeyWidth::Four, KeyWidth::Eight] {
            for payloads in [&[][..], &[8], &[4, 8], &[8, 4, 4], &[4, 8, 8, 4]] {
                for seed in seeds() {
                    gpu.schedule(seed);
                    let mut case = Case::new(algorithm, 2);
                    (case.key, case.payloads, case.row_ids) = (key, payloads.to_vec(), seed % 3 == 1);
                    case.counting = if algorithm == Algorithm::Linear { Counting::Copying } else { Counting::Kernel };
                    let tuples = scaled(2_000);
                    case.check(&kernels, &if seed % 2 == 0 { uniform(tuples, seed) } else { skewed(tuples, seed) });
                }
            }
        }
    }
}

#[test]
fn every_width_and_number_of_payloads() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        for key in [KeyWidth::Four, KeyWidth::Eight] {
            for (payloads, row_ids) in [
                (vec![], false),
                (vec![4], false),
                (vec![8], true),
                (vec![4], true),
                (vec![4, 8], true),
                (vec![8, 4], false),
                (vec![4, 8, 4], true),
                (vec![8, 8, 4, 8], true),
                (vec![4, 4, 4, 4], false),
            ] {
                let mut case = Case::new(algorithm, 5);
                (case.key, case.payloads, case.row_ids) = (key, payloads, row_ids);
                gpu.schedule(3);
                case.check(&kernels, &uniform(scaled(6_000), 9));
            }
        }
    }
}

#[test]
fn every_placement() {
    let gpu = TestGpu::start();
    gpu.schedule(5);
    let mut placements = vec![Placement::Device, Placement::Pinned, Placement::Unified];
    if gpu.set_coherent(true) {
        placements.push(Placement::Pageable);
    }
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        for &input in &placements {
            for &output in &placements {
                let mut case = Case::new(algorithm, 6);
                (case.input, case.output) = (input, output);
                case.check(&kernels, &uniform(scaled(10_000), 2));
            }
        }
    }
}

#[test]
fn input_and_output_over_gpu_and_cpu_pages() {
    let gpu = TestGpu::start();
    if !gpu.maps_host_pages() {
        return;
    }
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        let mut case = Case::new(algorithm, 6);
        (case.input, case.output) = (Placement::Spanning, Placement::Spanning);
        // Columns of more than a stripe.
        case.check(&kernels, &uniform(scaled(400_000), 9));
    }
}

#[test]
fn spilled_input_is_copied_as_it_is_counted() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for seed in seeds() {
        gpu.schedule(seed);
        for (key, payloads, row_ids) in [
            (KeyWidth::Eight, vec![8], false),
            (KeyWidth::Four, vec![], false),
            (KeyWidth::Four, vec![4, 8, 8, 4], true),
            (KeyWidth::Eight, vec![8], true),
        ] {
            let mut case = Case::new(Algorithm::Shared, 5);
            (case.key, case.payloads, case.row_ids) = (key, payloads, row_ids);
            (case.input, case.output) = (Placement::Pinned, Placement::Device);
            case.counting = Counting::Copying;
            case.check(&kernels, &uniform(scaled(5_000), seed));
        }
    }
}

#[test]
fn keys_that_the_cpu_has_counted_are_read_once() {
    let gpu = TestGpu::start();
    let is_coherent = gpu.set_coherent(true);
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        for (key, payloads, row_ids) in [
            (KeyWidth::Eight, vec![8], false),
            (KeyWidth::Four, vec![], false),
            (KeyWidth::Four, vec![4, 8], true),
            (KeyWidth::Eight, vec![4], true),
        ] {
            for (number, bits) in [1, 6, 9].into_iter().enumerate() {
                let mut case = Case::new(algorithm, bits);
                (case.key, case.payloads, case.row_ids) = (key, payloads.clone(), row_ids);
                case.input = if number == 1 && is_coherent { Placement::Pageable } else { Placement::Pinned };
                case.counting = Counting::Cpu([1, 3, 16][number]);
                for tuples in [0, 1, 33, scaled(20_000)] {
                    let launches = gpu.launches(|| {
                        case.check(&kernels, &uniform(tuples, 11));
                    });
                    // A GPU does not list its launches.
                    if let Some(launches) = launches {
                        let counting = launches.iter().find(|launch| launch.kernel.contains("histogram"));
                        assert!(counting.is_none() && launches.len() == 4, "{launches:?}");
                    }
                }
                case.check(&kernels, &skewed(scaled(5_000), 12));
            }
        }
    }
}

#[test]
fn what_was_counted_for_another_plan_is_refused() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let (device, stream) = (kernels.device(), Stream::new(kernels.device()).unwrap());
    let plan = |bits, tuples| {
        let radix = Radix::new(bits, 0, HashFunction::MultiplyShift).unwrap();
        PartitionPlan::new(&kernels, Algorithm::Shared, KeyWidth::Eight, &[], radix, tuples, BUDGET).unwrap()
    };
    let keys = HostBuffer::pinned(device, 8 * 100, PageSize::Small).unwrap();
    let mut room = DeviceBuffer::new(device, plan(3, 100).output_tuples() * 8).unwrap();
    let mut partitioner = Partitioner::new(&kernels, plan(3, 100)).unwrap();
    for (bits, tuples, fits) in [(3, 100, true), (2, 100, false), (3, 99, false)] {
        let counted = CountedKeys::new(device, &plan(bits, tuples), &keys, 1).unwrap();
        let mut output = Output { keys: room.view_mut(), payloads: vec![] };
        let partitioned = partitioner.run_counted(&stream, &counted, vec![], &mut output);
        assert_eq!(partitioned.is_ok(), fits, "{bits} bits, {tuples} tuples: {partitioned:?}");
        if let Err(error) = partitioned {
            assert!(error.to_string().contains("counted for one plan"), "{error}");
        }
    }
    let error = CountedKeys::new(device, &plan(3, 101), &keys, 1).unwrap_err();
    assert!(error.to_string().contains("808 bytes from 0 on do not lie within 800"), "{error}");
    let error = Histogram::of_plan(&plan(3, 100), &[0u32; 100], 1).unwrap_err();
    assert!(error.to_string().contains("100 keys of 4 bytes to count, planned for 100 of 8"), "{error}");
    if !gpu.set_coherent(false) {
        return;
    }
    let pageable = HostBuffer::new(8 * 100, PageSize::Small).unwrap();
    let error = CountedKeys::new(device, &plan(3, 100), &pageable, 1).unwrap_err();
    assert!(error.to_string().contains("cannot read pageable memory"), "{error}");
}

#[test]
fn small_and_skewed_inputs() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for algorithm in Algorithm::ALL {
        for tuples in [0, 1, 2, 31, 33, 127, 129, 1000] {
            for bits in [1, 7] {
                Case::new(algorithm, bits).check(&kernels, &uniform(tuples, 4));
            }
        }
        gpu.schedule(8);
        Case::new(algorithm, 8).check(&kernels, &skewed(scaled(30_000), 5));
        // All tuples in one partition.
        Case::new(algorithm, 8).check(&kernels, &vec![42; scaled(30_000) as usize]);
    }
}

#[test]
fn later_passes_look_at_later_bits() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for hash in [HashFunction::MultiplyShift, HashFunction::Murmur3] {
        for shift in [0, 9, 20] {
            let mut case = Case::new(Algorithm::Shared, 6);
            case.radix = Radix::new(6, shift, hash).unwrap();
            case.check(&kernels, &uniform(scaled(5_000), 6));
        }
    }
}

#[test]
fn combining_algorithms_write_whole_lines() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let kernels = gpu.kernels();
    for algorithm in [Algorithm::Shared, Algorithm::Hierarchical] {
        for (bits, key, payloads) in
            [(3, KeyWidth::Eight, vec![8]), (6, KeyWidth::Four, vec![4]), (5, KeyWidth::Four, vec![8, 4])]
        {
            let mut case = Case::new(algorithm, bits);
            (case.key, case.payloads) = (key, payloads);
            let before = gpu.statistics();
            let keys = uniform(scaled(200_000), 7);
            let plan = case.check(&kernels, &keys);
            let after = gpu.statistics();
            let columns = 1 + case.payloads.len() as u64;
            let partial = after.partial_lines - before.partial_lines;
            let allowed = 2 * u64::from(plan.blocks()) * u64::from(case.radix.fanout()) * columns;
            assert!(partial <= allowed, "{algorithm}: {partial} lines are not whole, {allowed} may be");
            let bytes =
                after.full_line_bytes + after.partial_line_bytes - before.full_line_bytes - before.partial_line_bytes;
            let tuple = key.bytes() + case.payloads.iter().sum::<u64>();
            assert_eq!(bytes, keys.len() as u64 * tuple, "{algorithm}: not everything went through the flush helper");
        }
    }
}

#[test]
fn hierarchical_leaves_in_lines_and_seldom() {
    if scaled(u64::MAX) != u64::MAX {
        // The figures are those of a size that instrumented kernels take too long for.
        return;
    }
    let Some(gpu) = TestGpu::stand_in() else { return };
    let kernels = gpu.kernels();
    let keys = uniform(1 << 20, 8);
    let mut flushes = Vec::new();
    for algorithm in [Algorithm::Shared, Algorithm::Hierarchical] {
        let before = gpu.statistics();
        Case::new(algorithm, 11).check(&kernels, &keys);
        let after = gpu.statistics();
        flushes.push(after.flushes - before.flushes);
        if algorithm == Algorithm::Hierarchical {
            let full = after.full_line_bytes - before.full_line_bytes;
            let share = full as f64 / (16u64 << 20) as f64;
            assert!(share >= 0.95, "{share:.3} of the bytes left in whole lines");
        }
    }
    assert!(flushes[1] * 8 <= flushes[0], "Hierarchical flushed {} times, Shared {}", flushes[1], flushes[0]);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let device = kernels.device();
    for bits in [0, 13] {
        let error = Radix::new(bits, 0, HashFunction::MultiplyShift).unwrap_err();
        assert!(error.to_string().contains("a fanout of 2 to 4096"), "{error}");
    }
    let radix = Radix::new(12, 0, HashFunction::MultiplyShift).unwrap();
    let plan = |algorithm, payloads: &[u64], budget| {
        PartitionPlan::new(&kernels, algorithm, KeyWidth::Eight, payloads, radix, 1000, budget)
    };
    let error = plan(Algorithm::Shared, &[8, 8, 8], BUDGET).unwrap_err();
    assert!(error.to_string().contains("scratchpad memory a block"), "{error}");
    let error = plan(Algorithm::Hierarchical, &[8], 1 << 20).unwrap_err();
    assert!(error.to_string().contains("second level of Hierarchical partitioning needs"), "{error}");
    assert!(plan(Algorithm::Standard, &[3], BUDGET).unwrap_err().to_string().contains("4 or 8 bytes"));
    assert!(plan(Algorithm::Standard, &[8; 5], BUDGET).is_err());

    // Columns that overlap, are too short, or lie askew.
    let stream = Stream::new(device).unwrap();
    let radix = Radix::new(2, 0, HashFunction::MultiplyShift).unwrap();
    let plan = PartitionPlan::new(&kernels, Algorithm::Shared, KeyWidth::Eight, &[], radix, 100, BUDGET).unwrap();
    let mut partitioner = Partitioner::new(&kernels, plan.clone()).unwrap();
    let keys = DeviceBuffer::from_slice(&stream, &[1u64; 101]).unwrap();
    let bytes = plan.output_tuples() * 8;
    let mut room = DeviceBuffer::new(device, bytes + 8).unwrap();
    let mut run = |input: View<'_>, output: ViewMut<'_>| {
        partitioner.run(
            &stream,
            &Input { keys: input, payloads: vec![] },
            &mut Output { keys: output, payloads: vec![] },
        )
    };
    let error = run(keys.view().slice(0, 792).unwrap(), room.view_mut()).unwrap_err();
    assert!(error.to_string().contains("have 792 bytes"), "{error}");
    let error = run(keys.view().slice(4, 800).unwrap(), room.view_mut()).unwrap_err();
    assert!(error.to_string().contains("not a multiple"), "{error}");
    assert!(run(keys.view(), room.view_mut().slice(0, bytes).unwrap()).is_ok());
    let mut both = DeviceBuffer::new(device, bytes).unwrap();
    both.fill(&stream, 0).unwrap();
    // A caller who lies about what he borrows is still told.
    let address = both.view();
    let input = Input { keys: address.slice(0, 800).unwrap(), payloads: vec![] };
    let overlapping = unsafe { std::mem::transmute::<View<'_>, View<'static>>(input.keys) };
    let error = run(overlapping, both.view_mut()).unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
}
