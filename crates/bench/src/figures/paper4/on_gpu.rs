//! The repartitioned join among ranks with a GPU each: rows and pairs lie in its memory.

use std::time::Instant;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, Schema, SchemaRef};
use datafusion::common::{Result, exec_err};
use futures::executor::block_on;
use overspill_advisor::Shuffle;
use overspill_exchange::{
    Columns, DeviceJoinSide, DeviceJoinSpec, DeviceTable, ExchangeMetrics, GpuPath, Levels, Work,
};
use overspill_experiments::{DeviceArgs, Gpu};

use super::data::{RankRows, Tables};
use super::measured::{Run, STEPS, agree, in_turn};
use crate::figures::cluster::Cluster;
use crate::member::Member;
use crate::operator::Answer;
use crate::rank_gpu::gpu_of;
use crate::report::failed;

/// Why ranks do not join on GPUs; `None` if each of `ranks` ranks has one. All ranks have the same answer.
///
/// # Errors
/// If a rank fails.
pub(super) fn refused(cluster: &Cluster, device: &DeviceArgs, ranks: usize) -> Result<Option<String>> {
    cluster.on_each(ranks, |member| {
        let gpu = gpu_of(device, member.endpoint());
        let have_one = member.gather(&[u64::from(gpu.is_ok())])?;
        let without = have_one.iter().position(|words| words[0] == 0);
        Ok(without.map(|rank| match gpu {
            Err(reason) => reason,
            Ok(_) => format!("rank {rank} has none"),
        }))
    })
}

/// Runs the join of `ranks` ranks on each way, as [`super::measured::measure`] does on CPUs. Each rank must have a GPU, and no way compresses.
///
/// # Errors
/// If memory runs out, a rank fails, or the join finds other pairs than there are.
pub(super) fn measure(
    cluster: &Cluster,
    device: &DeviceArgs,
    tables: &Tables,
    ranks: usize,
    ways: &[Shuffle],
    runs: usize,
) -> Result<Vec<Vec<Run>>> {
    cluster.on_each(ranks, |member| {
        let gpu = match gpu_of(device, member.endpoint()) {
            Ok(gpu) => gpu,
            Err(reason) => return exec_err!("A rank no longer has a GPU: {reason}."),
        };
        let rows = tables.of_rank(member.endpoint().rank(), ranks)?;
        in_turn(ways, runs, |way| run(member, &gpu, &rows, way.levels))
    })
}

/// Joins once, when all ranks have their rows in GPU memory. All have the outcome.
fn run(member: &mut Member, gpu: &Gpu, rows: &RankRows, levels: Levels) -> Result<Run> {
    let schemas = [0, 1].map(|side| rows.sides[side][0].schema());
    let upload = |side: usize| DeviceTable::upload(&gpu.stream, &schemas[side], &rows.sides[side]).map_err(failed);
    let (build, probe) = (upload(0)?, upload(1)?);
    // Pairs have the payloads of both sides, and not the key.
    let side = |schema: &SchemaRef| DeviceJoinSide { keys: vec![0], output: (1..schema.fields().len()).collect() };
    let [build_side, probe_side] = schemas.each_ref().map(side);
    let spec = DeviceJoinSpec { number: 0, build: build_side, probe: probe_side, levels, path: GpuPath::Direct };
    member.gather(&[])?;
    let job = member.job();
    let begin = Instant::now();
    let joined = block_on(spec.run(&job, &gpu.kernels, &gpu.stream, build, probe)).map_err(failed)?;
    let seconds = begin.elapsed().as_secs_f64();
    let work = joined.metrics.iter().map(ExchangeMetrics::work).fold(Work::default(), |sum, work| sum + work);
    let [partition, shuffle, build] =
        [work.partitioning, joined.shuffle_time, joined.build_time].map(|time| time.as_secs_f64());
    // Nothing is compressed. The probe side's step has the pairs.
    let steps: [f64; STEPS.len()] = [partition, 0.0, shuffle - partition, 0.0, build, seconds - shuffle - build];
    let sent = joined.metrics.iter().map(ExchangeMetrics::exchanged);
    let [across, within] =
        sent.fold([Columns::default(); 2], |[across, within], level| [across + level.across, within + level.within]);
    let payloads = schemas.iter().flat_map(|schema| schema.fields().iter().skip(1)).cloned();
    let payloads = Schema::new(payloads.collect::<Vec<_>>()).into();
    let answer = answer(&joined.table.download(&gpu.stream, &payloads).map_err(failed)?)?;
    let rows_here = rows.sides.iter().flatten().map(|batch| batch.num_rows() as u64).sum();
    agree(member, Run { seconds, steps, rows: rows_here, across, within }, answer, rows.expected)
}

/// The number of pairs, and the sum of all payloads in them.
fn answer(pairs: &RecordBatch) -> Result<Answer> {
    let mut sum = 0_i64;
    for column in pairs.columns() {
        let column = cast(column, &DataType::Int64)?;
        sum = column.as_primitive::<Int64Type>().values().iter().fold(sum, |sum, value| sum.wrapping_add(*value));
    }
    Ok((pairs.num_rows(), sum))
}
