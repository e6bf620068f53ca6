//! What queries cost on this machine, alone and beside each other (paper 5, sections 2.3, 4.2 and 5).

mod fit;
mod workload;

use datafusion::common::Result;
use overspill_machine::DeviceKind;
use overspill_machine::measure::{GpuQueries, QueryWork};

use self::fit::{Sample, fitted};
use self::workload::{AGGREGATE, JOIN, QUERIES, Workload};
use crate::config::{Choice, OverspillConfig};
use crate::runtime::OverspillRuntime;
use crate::scheduler::{ByKind, work};

/// Rows of the largest table for each thread. Its queries take some tens of milliseconds. With fewer rows threads would be idle for most of
/// that time, as they are not in queries of any size.
pub const MEASURED_ROWS: usize = 1 << 19;

/// The most queries that run at the same time.
const MOST: usize = 8;

/// Measures queries of `threads` threads each on tables of `rows` rows for each thread: fits the cost of a row to their times, operator by
/// operator, and runs 1 to 8 of a kind together on the CPU, and on `gpu` if there is one. Takes some seconds with [`MEASURED_ROWS`]. The machine
/// should do nothing else meanwhile. What the GPU takes is compared with what the rates that `runtime` knows of the machine say.
///
/// # Errors
/// If a query fails.
pub async fn measure_queries(
    runtime: &OverspillRuntime,
    gpu: Option<DeviceKind>,
    threads: usize,
    rows: usize,
) -> Result<QueryWork> {
    let workload = Workload::new(runtime, threads, rows * threads).await?;
    let operators = operators(&workload, runtime, threads).await?;
    let cpu = Together::measure(&workload, DeviceKind::Cpu).await?;
    let gpu = match gpu {
        Some(device) => {
            let together = Together::measure(&workload, device).await?;
            let cost = async |query, seconds: f64| -> Result<f64> {
                let plan = workload.session(device).await?.sql(query).await?.create_physical_plan().await?;
                let config = OverspillConfig { device: Choice(Some(device)), ..OverspillConfig::default() };
                let (work, _) = work(plan.as_ref(), &config, runtime, threads);
                Ok(work.gpu_cost(&operators, seconds * 1e9))
            };
            let (join_cost, aggregate_cost) =
                (cost(JOIN, together.joins[0]).await?, cost(AGGREGATE, together.aggregates[0]).await?);
            Some(GpuQueries { join_cost, aggregate_cost, ..together.beside(&cpu) })
        }
        None => None,
    };
    Ok(QueryWork { operators: operators.names(), overlap: cpu.overlap(), gpu })
}

/// The cost of a row, by operator.
async fn operators(workload: &Workload, runtime: &OverspillRuntime, threads: usize) -> Result<ByKind> {
    let session = workload.session(DeviceKind::Cpu).await?;
    let mut samples = vec![];
    for query in QUERIES {
        let plan = session.sql(query).await?.create_physical_plan().await?;
        let (work, _) = work(plan.as_ref(), &OverspillConfig::default(), runtime, threads);
        let took = workload.together(DeviceKind::Cpu, &[query]).await? * 1e9;
        samples.push(Sample { rows: work.rows, start: work.start(), took });
    }
    Ok(fitted(&samples))
}

/// Seconds of 1 to [`MOST`] queries at the same time, by what they do.
struct Together {
    joins: Vec<f64>,
    aggregates: Vec<f64>,
    /// One half does one, and one the other.
    both: Vec<f64>,
}

impl Together {
    async fn measure(workload: &Workload, device: DeviceKind) -> Result<Self> {
        let of = async |kinds: [&'static str; 2]| -> Result<Vec<f64>> {
            let queries: Vec<_> = kinds.into_iter().cycle().take(MOST).collect();
            let mut times = vec![];
            for count in 1..=MOST {
                times.push(workload.together(device, &queries[..count]).await?);
            }
            Ok(times)
        };
        let (joins, aggregates) = (of([JOIN; 2]).await?, of([AGGREGATE; 2]).await?);
        Ok(Self { joins, aggregates, both: of([JOIN, AGGREGATE]).await? })
    }

    /// How many times as much several do at the same time as one alone.
    fn overlap(&self) -> f64 {
        let of = |times: &[f64]| gains(times).collect::<Vec<_>>();
        median([of(&self.joins), of(&self.aggregates)].concat()).max(1.0)
    }

    /// What these, on a GPU, lose to each other, and how many of them are as fast as on the CPU.
    fn beside(&self, cpu: &Self) -> GpuQueries {
        // Of `n` queries, all but one slow each other.
        let loss = |times: &[f64]| {
            let losses = gains(times).zip(1..).map(|(gain, others)| (1.0 / gain - 1.0) / f64::from(others));
            median(losses.collect()).max(0.0)
        };
        // One at a time is allowed in any case: the policy knows what it takes.
        let most = |gpu: &[f64], cpu: &[f64]| gpu.iter().zip(cpu).take_while(|(gpu, cpu)| gpu <= cpu).count().max(1);
        GpuQueries {
            join_cost: 1.0,
            aggregate_cost: 1.0,
            join_loss: loss(&self.joins),
            aggregate_loss: loss(&self.aggregates),
            joins: most(&self.joins, &cpu.joins),
            aggregates: most(&self.aggregates, &cpu.aggregates),
            both: most(&self.both, &cpu.both),
        }
    }
}

/// How many times as much 2, 3 and more queries at the same time do as one alone.
fn gains(times: &[f64]) -> impl Iterator<Item = f64> {
    let alone = times[0];
    times.iter().zip(1..).skip(1).map(move |(time, count)| f64::from(count) * alone / time)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_losses_follow_from_times() {
        let linear = |alone: f64, loss: f64| {
            (1..=MOST).map(move |count| {
                let others = (count - 1) as f64;
                alone * count as f64 * (1.0 + others * loss)
            })
        };
        let cpu = Together {
            joins: linear(4.0, 0.0).collect(),
            aggregates: linear(1.5, 0.0).collect(),
            both: linear(2.0, 0.0).collect(),
        };
        let gpu = Together {
            joins: linear(1.0, 0.0).collect(),
            aggregates: linear(1.0, 0.2).collect(),
            both: linear(3.0, 0.1).collect(),
        };
        let found = gpu.beside(&cpu);
        assert!(found.join_loss.abs() < 1e-9 && (found.aggregate_loss - 0.2).abs() < 1e-9, "{found:?}");
        // Three aggregates take 3 (1 + 0.4), and 4.5 on the CPU. Even one of both is slower there.
        assert_eq!((found.joins, found.aggregates, found.both), (MOST, 3, 1));
        assert!((cpu.overlap() - 1.0).abs() < 1e-9);
    }
}
