//! Runs a partition plan.

use overspill_machine::driver::{Arguments, Function, LaunchShape, Stream};
use overspill_machine::memory::{DeviceBuffer, View, ViewMut};
use overspill_machine::{Error, Result};

use super::extents::Extents;
use super::histogram::{CountedKeys, Histogram};
use super::plan::{Algorithm, KeyWidth, MAX_PAYLOADS, PartitionPlan, kernel_name};
use crate::Kernels;
use crate::columns::{check_column, check_disjoint};

/// The layout of `partition/arguments.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Column {
    input: u64,
    output: u64,
    width: u64,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct PartitionArguments {
    tuples: u64,
    chunk: u64,
    first_row_id: u64,
    keys: u64,
    partitioned_keys: u64,
    offsets: u64,
    payloads: [Column; MAX_PAYLOADS],
    second_level: u64,
    smallest_key: u64,
    radix_bits: u32,
    radix_shift: u32,
    hash_function: u32,
    buffer_tuples: u32,
    second_level_tuples: u32,
    padding: u32,
}

/// The source of a payload's values.
#[derive(Debug, Clone, Copy)]
pub enum PayloadInput<'a> {
    /// A column of values.
    Column(View<'a>),
    /// The tuple's number, starting at this one. The pass generates it, so that a join can find the rest of the row later
    /// (paper 1, section 6.2.10).
    RowIds(u64),
}

/// The input columns, in the order of the plan.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The keys.
    pub keys: View<'a>,
    /// The payloads, in the order of the plan.
    pub payloads: Vec<PayloadInput<'a>>,
}

/// The output columns. Each has room for [`PartitionPlan::output_tuples`].
#[derive(Debug)]
pub struct Output<'a> {
    /// The keys.
    pub keys: ViewMut<'a>,
    /// The payloads, in the order of the plan.
    pub payloads: Vec<ViewMut<'a>>,
}

/// The content of output columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Columns {
    /// The partitions.
    Partitioned,
    /// A copy of the input in input order. Row ids are not copied but generated later.
    Copied,
}

/// The processor that counts the keys of each block's chunk by partition.
enum Counting<'a> {
    /// The GPU, by a kernel with these arguments.
    ByKernel(Function, Box<PartitionArguments>),
    /// The CPU, which has already counted.
    ByCpu(&'a Histogram),
}

/// Threads per block of the kernels that turn counts into offsets.
const OFFSET_THREADS: u32 = 256;

/// A plan with its kernels and memory. It may run repeatedly.
#[derive(Debug)]
pub struct Partitioner {
    plan: PartitionPlan,
    histogram: Function,
    histogram_copy: Function,
    totals_of: Function,
    starts_of: Function,
    offsets_of: Function,
    partition: Function,
    /// Counts, later offsets, of each partition and block.
    offsets: DeviceBuffer,
    second_level: DeviceBuffer,
}

impl Partitioner {
    /// # Errors
    /// If 8 bytes per block and partition, or the memory of the second level, are not available.
    pub fn new(kernels: &Kernels, plan: PartitionPlan) -> Result<Self> {
        let device = kernels.device();
        let key_bits = plan.key.bytes() * 8;
        let fanout = u64::from(plan.radix.fanout());
        let payloads = plan.payloads.len();
        let partition = kernel_name(plan.algorithm, plan.key, payloads);
        Ok(Self {
            histogram: kernels.function(&format!("histogram_u{key_bits}"))?,
            histogram_copy: kernels.function(&format!("histogram_copy_u{key_bits}_{payloads}"))?,
            totals_of: kernels.function("offsets_totals")?,
            starts_of: kernels.function("offsets_starts")?,
            offsets_of: kernels.function("offsets_blocks")?,
            partition: kernels.function(&partition)?,
            offsets: DeviceBuffer::new(device, fanout * u64::from(plan.blocks) * 8)?,
            second_level: DeviceBuffer::new(device, plan.second_level_bytes())?,
            plan,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &PartitionPlan {
        &self.plan
    }

    /// Partitions the input and waits for completion. Returns the start and the number of tuples of each partition.
    ///
    /// Reads keys twice and payloads once, and writes every column once.
    ///
    /// # Errors
    /// If columns are too short, misaligned, overlapping, or differ in number from the plan, or the device fails.
    pub fn run(&mut self, stream: &Stream, input: &Input<'_>, output: &mut Output<'_>) -> Result<Vec<(u64, u64)>> {
        let arguments = self.arguments(input, output, Columns::Partitioned)?;
        // SAFETY: the columns were checked against the plan, for which the buffers were made; the borrows outlive the
        // stream's work, which `launch` waits for.
        unsafe { self.launch(stream, Counting::ByKernel(self.histogram.clone(), Box::new(arguments)), &arguments) }
    }

    /// As [`Partitioner::run`], for keys in CPU memory that the CPU has counted. Kernels read them once (paper 1, section
    /// 6.2.8).
    ///
    /// # Errors
    /// As [`Partitioner::run`], or if the keys were counted for another plan or device.
    pub fn run_counted(
        &mut self,
        stream: &Stream,
        keys: &CountedKeys<'_>,
        payloads: Vec<PayloadInput<'_>>,
        output: &mut Output<'_>,
    ) -> Result<Vec<(u64, u64)>> {
        if keys.plan != self.plan || keys.device != stream.device().ordinal() {
            let reason = "keys that were counted for one plan or device are partitioned by another";
            return Err(Error::Invalid(reason.to_owned()));
        }
        let arguments = self.arguments(&Input { keys: keys.keys, payloads }, output, Columns::Partitioned)?;
        // SAFETY: as above; and the counts belong to these keys and to the chunks of this plan.
        unsafe { self.launch(stream, Counting::ByCpu(&keys.histogram), &arguments) }
    }

    /// As [`Partitioner::run`], for input that was spilled to CPU memory. While kernels count the keys, they copy the input
    /// to `copy` in GPU memory, and then partition the copy. The input so crosses the link once (paper 1, section 6.2.3). The
    /// copy's columns have room for the plan's tuples; the copy's column for row ids is unused. The output may overwrite the
    /// input.
    ///
    /// # Errors
    /// As [`Partitioner::run`].
    pub fn run_copying(
        &mut self,
        stream: &Stream,
        input: &Input<'_>,
        copy: &mut Output<'_>,
        output: &mut Output<'_>,
    ) -> Result<Vec<(u64, u64)>> {
        let (counting, partitioning) = self.arguments_to_copy(input, copy, output)?;
        // SAFETY: as above, for both sets of columns.
        unsafe { self.launch(stream, counting, &partitioning) }
    }

    /// Queues the pass without a wait.
    ///
    /// # Errors
    /// As [`Partitioner::run`]. Nothing is queued any more.
    ///
    /// # Safety
    /// The columns, the copy's columns if there is one, and this value must live until the stream has done the work.
    pub(super) unsafe fn queue(
        &mut self,
        stream: &Stream,
        input: &Input<'_>,
        copy: Option<&mut Output<'_>>,
        output: &mut Output<'_>,
    ) -> Result<Extents> {
        let extents = self.extents(stream)?;
        // SAFETY: the caller promises the same. The extents are returned, or nothing writes them any more.
        unsafe { self.queue_with(stream, input, copy, output, &extents) }.map(|()| extents)
    }

    /// As [`Partitioner::queue`], with room for the extents from [`Partitioner::extents`].
    ///
    /// # Errors
    /// As [`Partitioner::run`]. Nothing is queued any more.
    ///
    /// # Safety
    /// As [`Partitioner::queue`], and so must the extents.
    pub(crate) unsafe fn queue_with(
        &mut self,
        stream: &Stream,
        input: &Input<'_>,
        copy: Option<&mut Output<'_>>,
        output: &mut Output<'_>,
        extents: &Extents,
    ) -> Result<()> {
        let (counting, partitioning) = match copy {
            Some(copy) => self.arguments_to_copy(input, copy, output)?,
            None => {
                let arguments = self.arguments(input, output, Columns::Partitioned)?;
                (Counting::ByKernel(self.histogram.clone(), Box::new(arguments)), arguments)
            }
        };
        // SAFETY: the columns were checked against the plan, for which the buffers were made; the caller promises the rest.
        let queued = unsafe { self.enqueue(stream, counting, &partitioning, extents) };
        // A part of the work may have been queued, and writes the extents.
        queued.or_else(|error| stream.synchronize().and(Err(error)))
    }

    /// Room for where the partitions are.
    pub(crate) fn extents(&self, stream: &Stream) -> Result<Extents> {
        Extents::unwritten(stream, self.plan.radix.fanout(), self.plan.output_tuples())
    }

    /// The arguments of the kernel that copies and counts, and of the one that partitions the copy.
    fn arguments_to_copy<'a>(
        &mut self,
        input: &Input<'_>,
        copy: &mut Output<'_>,
        output: &mut Output<'_>,
    ) -> Result<(Counting<'a>, PartitionArguments)> {
        let counting = self.arguments(input, copy, Columns::Copied)?;
        let copied = Input {
            keys: copy.keys.as_view(),
            payloads: input
                .payloads
                .iter()
                .zip(&copy.payloads)
                .map(|(payload, copy)| match payload {
                    PayloadInput::Column(_) => PayloadInput::Column(copy.as_view()),
                    PayloadInput::RowIds(first) => PayloadInput::RowIds(*first),
                })
                .collect(),
        };
        let partitioning = self.arguments(&copied, output, Columns::Partitioned)?;
        Ok((Counting::ByKernel(self.histogram_copy.clone(), Box::new(counting)), partitioning))
    }

    /// Launches the kernels, and waits for the stream, also after an error. Returns the start and the number of tuples of each
    /// partition.
    ///
    /// # Safety
    /// As for [`Partitioner::enqueue`].
    unsafe fn launch(
        &mut self,
        stream: &Stream,
        counting: Counting<'_>,
        partitioning: &PartitionArguments,
    ) -> Result<Vec<(u64, u64)>> {
        let extents = self.extents(stream)?;
        // SAFETY: the caller promises the same.
        let launched = unsafe { self.enqueue(stream, counting, partitioning, &extents) };
        stream.finish(launched, || extents.read(stream))
    }

    /// # Safety
    /// The arguments refer to columns of the plan's sizes, valid until the stream has done its work. A histogram from the CPU
    /// was counted from the keys that are partitioned.
    unsafe fn enqueue(
        &mut self,
        stream: &Stream,
        counting: Counting<'_>,
        partitioning: &PartitionArguments,
        extents: &Extents,
    ) -> Result<()> {
        if let Counting::ByCpu(histogram) = &counting {
            self.offsets.write(stream, histogram.counts())?;
        }
        let plan = &self.plan;
        let (fanout, blocks) = (plan.radix.fanout(), u64::from(plan.blocks));
        let counts = self.offsets.view_mut().address();
        let (totals, starts) = (extents.counts().address(), extents.starts_address());
        let alignment = plan.alignment();
        let each_block =
            |scratchpad| LaunchShape { blocks: plan.blocks, ..plan.share.shape(1, plan.threads, scratchpad) };
        let each_partition = plan.share.shape(fanout, OFFSET_THREADS, 0);
        let single = plan.share.shape(1, OFFSET_THREADS, 0);
        // SAFETY: the parameters match the kernels; the caller promises the rest.
        unsafe {
            if let Counting::ByKernel(histogram, arguments) = &counting {
                let counters = u64::from(fanout) * 4;
                histogram.launch(
                    stream,
                    each_block(counters),
                    Arguments::default().with(&**arguments).with(&counts),
                )?;
            }
            self.totals_of.launch(
                stream,
                each_partition,
                Arguments::default().with(&counts).with(&blocks).with(&fanout).with(&totals),
            )?;
            self.starts_of.launch(
                stream,
                single,
                Arguments::default().with(&totals).with(&fanout).with(&alignment).with(&starts),
            )?;
            self.offsets_of.launch(
                stream,
                each_partition,
                Arguments::default().with(&counts).with(&starts).with(&blocks).with(&fanout).with(&counts),
            )?;
            self.partition.launch(stream, each_block(plan.scratchpad), Arguments::default().with(partitioning))
        }
    }

    fn arguments(
        &mut self,
        input: &Input<'_>,
        output: &mut Output<'_>,
        columns: Columns,
    ) -> Result<PartitionArguments> {
        let plan = &self.plan;
        let room = match columns {
            Columns::Partitioned => plan.output_tuples(),
            Columns::Copied => plan.tuples,
        };
        if input.payloads.len() != plan.payloads.len() || output.payloads.len() != plan.payloads.len() {
            return Err(Error::Invalid(format!(
                "{} payload columns in and {} out, planned for {}",
                input.payloads.len(),
                output.payloads.len(),
                plan.payloads.len()
            )));
        }
        let mut read = vec![check_column("the keys", input.keys, plan.key.bytes(), plan.tuples)?];
        let mut written =
            vec![check_column("the keys that are written", output.keys.as_view(), plan.key.bytes(), room)?];
        let mut arguments = PartitionArguments {
            tuples: plan.tuples,
            chunk: plan.chunk,
            keys: input.keys.address(),
            partitioned_keys: output.keys.address(),
            offsets: self.offsets.view_mut().address(),
            second_level: self.second_level.view_mut().address(),
            smallest_key: plan.radix.smallest(),
            radix_bits: plan.radix.bits(),
            radix_shift: plan.radix.shift(),
            hash_function: plan.radix.hash_function() as u32,
            buffer_tuples: narrow(plan.buffer_tuples)?,
            second_level_tuples: narrow(plan.second_level_tuples)?,
            ..PartitionArguments::default()
        };
        for (column, width) in plan.payloads.iter().enumerate() {
            let to = output.payloads[column].as_view();
            if columns == Columns::Partitioned || matches!(input.payloads[column], PayloadInput::Column(_)) {
                written.push(check_column("a payload that is written", to, *width, room)?);
            }
            let from = match input.payloads[column] {
                PayloadInput::Column(view) => {
                    read.push(check_column("a payload", view, *width, plan.tuples)?);
                    view.address()
                }
                PayloadInput::RowIds(first) => {
                    if *width == 4 && first + plan.tuples > u64::from(u32::MAX) + 1 {
                        return Err(Error::Invalid(format!(
                            "row ids up to {} do not fit 4 bytes",
                            first + plan.tuples
                        )));
                    }
                    arguments.first_row_id = first;
                    0
                }
            };
            arguments.payloads[column] = Column { input: from, output: to.address(), width: *width };
        }
        check_disjoint(&read, &written)?;
        Ok(arguments)
    }
}

fn narrow(tuples: u64) -> Result<u32> {
    u32::try_from(tuples).map_err(|_| Error::Invalid(format!("a buffer of {tuples} tuples")))
}

impl KeyWidth {
    /// The width of a key type.
    ///
    /// # Errors
    /// If the type is neither 4 nor 8 bytes wide.
    pub fn of<Key>() -> Result<Self> {
        match size_of::<Key>() {
            4 => Ok(Self::Four),
            8 => Ok(Self::Eight),
            other => Err(Error::Invalid(format!("keys of {other} bytes: the kernels take 4 and 8"))),
        }
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}
