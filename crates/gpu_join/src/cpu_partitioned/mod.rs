//! The CPU-partitioned join (paper 1, sections 3.1 and 6.2.4; Sioulas et al., 2019): the CPU cuts both sides into partitions
//! that fit GPU memory, and the GPU partitions them further and joins them.
//!
//! Rows cross the link once, and in order. Before that, the CPU must read and write each row, which takes as much memory
//! bandwidth as a link has. While the CPU partitions a probe chunk, the GPU fetches partitions of the build side and runs their
//! second pass; it keeps as many as fit GPU memory, for all chunks.

mod partitions;

use overspill_machine::{Error, Result};
use tracing::debug_span;

pub(crate) use partitions::HostPartitions;

use crate::device::{
    AggregatedPairs, BuildColumns, BuildValues, ColumnOf, DeviceCount, DeviceRequest, LinkColumn, ProbeKeys,
};
use crate::radix::{FirstPass, RadixBuild, RadixChunk, RadixPlan, RadixTable};

const BUILD: [ColumnOf; 2] = [ColumnOf::BuildKeys, ColumnOf::BuildValues];
const PROBE: [ColumnOf; 2] = [ColumnOf::ProbeKeys, ColumnOf::ProbeValues];

/// Partitions a build side with `threads` threads.
pub(crate) fn build(request: &DeviceRequest, columns: &mut BuildColumns, threads: usize) -> Result<RadixTable> {
    // What is decompressed, and for a moment as it was.
    let others = if request.compressor.is_on() { 2 } else { 0 };
    let plan = RadixPlan::new(&request.gpu, columns.rows, 1 + others)?;
    let rows = rows_of(columns.rows)?;
    let numbers: Vec<u64>;
    let values = match &mut columns.values {
        BuildValues::Numbers => None,
        BuildValues::Listed(listed) => {
            numbers = listed.as_mut_slice::<u32>()?[..rows].iter().map(|number| u64::from(*number)).collect();
            Some(&numbers[..])
        }
        BuildValues::Words { words, .. } => Some(&words.as_mut_slice::<u64>()?[..rows]),
    };
    let keys = &columns.keys.as_mut_slice()?[..rows];
    let relation = HostPartitions::new(keys, values, plan.first, threads, (&request.compressor, BUILD))?;
    Ok(RadixBuild::new(plan, relation, None).into())
}

/// Partitions a probe chunk, whose units have at most `most_pairs` pairs, with `threads` threads.
pub(crate) fn start(
    table: &RadixTable,
    request: &DeviceRequest,
    keys: &mut ProbeKeys,
    most_pairs: u64,
    aggregated: Option<AggregatedPairs>,
    threads: usize,
) -> Result<RadixChunk> {
    let words = keys.words.as_mut().map(LinkColumn::words_mut).transpose()?.map(|words| &*words);
    let keys = &*keys.keys.words_mut()?;
    let (relation, kept) = std::thread::scope(|scope| {
        let keeping = scope.spawn(|| {
            let _keeping = debug_span!("keep partitions on the GPU").entered();
            table.build.keep_what_fits(request)
        });
        let relation = HostPartitions::new(keys, words, table.build.plan.first, threads, (&request.compressor, PROBE));
        (relation, keeping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let relation = relation?;
    request.observer.add(DeviceCount::StateBytes, relation.bytes());
    request.observer.add(DeviceCount::SpilledBytes, relation.spilled_bytes());
    match kept {
        // A partition that is not kept is fetched when it is joined.
        Ok(()) | Err(Error::OverBudget { .. } | Error::TooSmall { .. } | Error::OutOfDeviceMemory { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(RadixChunk::new(table, relation, most_pairs, aggregated, None))
}

fn rows_of(rows: u64) -> Result<usize> {
    usize::try_from(rows).map_err(|_| Error::Invalid(format!("{rows} rows")))
}
