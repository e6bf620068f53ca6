//! Figures of paper 5: Takahashi and Yamada, on scheduling queries between GPU and CPU by contention, for PostgreSQL with PG-Strom, six
//! cores and a Quadro K5000.
//!
//! The paper names neither the columns that its queries return nor the environment's limits of memory. Here a join looks values up in a
//! table of 100,000 rows and sums the ids of both sides, and an aggregation selects half of the rows and sums them, in one group: kernels
//! have no others yet. What it calls Default is a session on the CPU, and what it calls PG-Strom one on the GPU, without a scheduler.

mod environment;
mod tables;

use std::cell::RefCell;
use std::collections::HashMap;

use datafusion::common::Result;
use overspill::DeviceKind;
use overspill_experiments::{Axis, Figure, SeriesSource};
use overspill_schedule::Place;
use tokio::runtime::{Builder, Runtime};

use self::environment::{Ended, Environment, Query, answer_of, session};
use self::tables::{ROW_BYTES, SIZES, Tables};
use super::bench::Bench;
use super::outcome::Outcome;
use crate::report::tell;
use crate::tpch;

/// The sets of six queries (table 3): two each of the small, the middle and the large table.
const SETS: [&str; 6] = ["JJJ", "JJA", "JAA", "AAA", "AAJ", "AJJ"];

/// The queries of TPC-H, and its scale factor (section 6.4.1).
const TPCH: [usize; 4] = [12, 13, 14, 16];
const SCALE_FACTOR: f64 = 20.0;

/// The approximate rows and bytes of all tables of TPC-H at scale factor 1.
const TPCH_ROWS: u64 = 8_700_000;
const TPCH_BYTES: u64 = 1 << 30;

/// The query of the paper's remark on another engine, Ocelot (section 2.3), and how many run at once.
const REMARK: usize = 18;
const AT_ONCE: [usize; 4] = [1, 2, 3, 4];

/// A figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paper5 {
    /// Figure 1: one and four queries at once, each place.
    Contention,
    /// Figure 4: six joins and aggregations at once.
    Micro,
    /// Figure 5: four queries of TPC-H at once.
    Tpch,
}

/// Queries at once, over tables.
struct Runs<'a> {
    bench: &'a Bench,
    runtime: Runtime,
    tables: Tables,
    /// The limit of GPU memory, or why there is no GPU.
    gpu_memory: Result<u64, String>,
    /// The answers of queries that have run alone.
    answers: RefCell<HashMap<String, Vec<String>>>,
    /// For each environment with a GPU, in how many queries kernels took part.
    kernels: RefCell<Vec<String>>,
}

impl Paper5 {
    /// # Errors
    /// If memory runs out, a device fails, or an answer is wrong.
    pub(super) fn run(self, bench: &Bench) -> Result<Outcome> {
        match self {
            Self::Contention => {
                let below = contention_of_remark(bench)?;
                contention(bench).map(|figure| figure.beside("TPC-H query 18", below))
            }
            Self::Micro => micro(bench),
            Self::Tpch => tpch(bench),
        }
    }
}

fn micro_scale(bench: &Bench) -> f64 {
    let rows = SIZES.iter().map(|(_, rows)| rows).sum::<u64>();
    bench.scale_for(rows, rows * ROW_BYTES)
}

fn tpch_scale(bench: &Bench) -> f64 {
    let (rows, bytes) = (TPCH_ROWS * SCALE_FACTOR as u64, TPCH_BYTES * SCALE_FACTOR as u64);
    bench.scale_for(rows, bytes)
}

fn join(table: &str) -> String {
    format!("SELECT count(*), sum(t.id), sum(s.id) FROM {table} t JOIN t100k s ON t.value = s.value")
}

fn aggregation(table: &str) -> String {
    format!("SELECT count(*), sum(id), min(value), max(value) FROM {table} WHERE value BETWEEN 1 AND 5000000")
}

/// Figure 1: the large table's join and aggregation, one and four at once.
fn contention(bench: &Bench) -> Result<Outcome> {
    let scale = micro_scale(bench);
    let runs = Runs::new(bench, scale, Tables::values(scale, bench.threads)?)?;
    let (large, _) = SIZES[SIZES.len() - 1];
    let subjects = [["1 join", "4 joins"], ["1 aggregation", "4 aggregations"]];
    let mixes = subjects.into_iter().zip([join(large), aggregation(large)]);
    let mixes = mixes.flat_map(|([one, four], sql)| [(one, vec![sql.clone()]), (four, vec![sql; 4])]);
    let mixes: Vec<_> = mixes.map(|(name, sqls)| (name.to_owned(), sqls)).collect();
    let figure = Figure {
        name: "paper5-1",
        title: "One and four queries at once",
        paper: "paper 5, figure 1",
        notes: vec![
            "the paper: joins are faster on the GPU, alone and four at once; an aggregation is 1.5 times as fast there alone, and four at \
             once take 3 times as long as on the CPU"
                .to_owned(),
        ],
        ..runs.figure(scale)
    };
    runs.each_place(figure, &mixes)
}

/// The remark of section 2.3: TPC-H query 18, one to four at once.
fn contention_of_remark(bench: &Bench) -> Result<Outcome> {
    let scale = tpch_scale(bench);
    let runs = Runs::new(bench, scale, Tables::tpch(SCALE_FACTOR * scale)?)?;
    let sql = tpch::SUITE.query_text(REMARK)?;
    let mixes: Vec<_> = AT_ONCE.map(|count| (count.to_string(), vec![sql.clone(); count])).into();
    let figure = Figure {
        name: "paper5-1",
        title: "TPC-H query 18, several at once",
        paper: "paper 5, section 2.3",
        notes: vec![
            "the paper, of Ocelot: from three at once the GPU takes longer than the CPU, though alone it is faster"
                .to_owned(),
        ],
        ..runs.figure(scale)
    };
    runs.each_place(figure, &mixes)
}

/// Figure 4: overall times, those at each place, and means.
fn micro(bench: &Bench) -> Result<Outcome> {
    let scale = micro_scale(bench);
    let runs = Runs::new(bench, scale, Tables::values(scale, bench.threads)?)?;
    let mixes: Vec<(String, Vec<String>)> = { SETS.iter() }
        .map(|set| {
            let sqls = set.chars().zip(SIZES).flat_map(|(kind, (table, _))| {
                let sql = if kind == 'J' { join(table) } else { aggregation(table) };
                [sql.clone(), sql]
            });
            ((*set).to_owned(), sqls.collect())
        })
        .collect();
    let environments = [
        ("Default", Environment::At(Place::Cpu)),
        ("PG-Strom", Environment::At(Place::Gpu)),
        ("Custom (paper5)", Environment::paper5()),
        ("overspill", Environment::overspill()),
    ];
    let figure = Figure {
        name: "paper5-4",
        title: "Six queries at once",
        paper: "paper 5, figure 4",
        notes: vec![
            "the paper: Custom takes as long as Default for JJA, JAA and AAA, where PG-Strom takes up to 3 times as long, and is the \
             shortest for JJJ, AAJ and AJJ"
                .to_owned(),
        ],
        ..runs.figure(scale)
    };
    let results = runs.all(&environments, &mixes)?;
    runs.panels(figure, &mixes, &results)
}

/// Figure 5: the time of each of four queries of TPC-H, and of all.
fn tpch(bench: &Bench) -> Result<Outcome> {
    let scale = tpch_scale(bench);
    let runs = Runs::new(bench, scale, Tables::tpch(SCALE_FACTOR * scale)?)?;
    let sqls = TPCH.iter().map(|number| tpch::SUITE.query_text(*number)).collect::<Result<Vec<_>>>()?;
    let (cpu, gpu) = (Place::Cpu, Place::Gpu);
    // Table 4. What the paper calls Custom is its schedule with a fault, and Desired what it should have been.
    let environments = [
        ("Default", Environment::At(cpu)),
        ("PG-Strom", Environment::At(gpu)),
        ("Custom", Environment::Placed([gpu, cpu, gpu, gpu])),
        ("Desired", Environment::Placed([gpu, cpu, gpu, cpu])),
        ("paper5", Environment::paper5()),
        ("overspill", Environment::overspill()),
    ];
    let mix = [("TPC-H".to_owned(), sqls)];
    let mut figure = Figure {
        name: "paper5-5",
        title: "Four queries of TPC-H at once",
        paper: "paper 5, figure 5",
        x: Axis::named("query", TPCH.iter().map(|number| format!("q{number}")).chain(["all".to_owned()])),
        notes: vec![
            "the paper: Desired is the shortest of table 4's four; 13 and 16 are slower on the GPU, even alone"
                .to_owned(),
        ],
        ..runs.figure(scale)
    };
    for (name, ended) in runs.all(&environments, &mix)? {
        let Some(Some(ended)) = ended.into_iter().next() else { continue };
        let times = ended.each.iter().copied().chain([ended.overall()]);
        figure.add(SeriesSource::Measured, name, times.enumerate().map(|(x, time)| (x as f64, time)).collect());
    }
    runs.explain(&mut figure);
    Ok(Outcome::of(figure))
}

/// What an environment's runs took, of each mix; `None` where they have no times, on the emulated device.
type Results = Vec<(&'static str, Vec<Option<Ended>>)>;

/// A time that a panel shows.
type Shown = fn(&Ended) -> Option<f64>;

impl<'a> Runs<'a> {
    fn new(bench: &'a Bench, scale: f64, tables: Tables) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(bench.threads).enable_all().build()?;
        let gpu_memory = bench.gpu(scale).map(|gpu| gpu.device().memory_limit());
        Ok(Self { bench, runtime, tables, gpu_memory, answers: RefCell::default(), kernels: RefCell::default() })
    }

    fn figure(&self, scale: f64) -> Figure {
        Figure { y: Axis::linear("seconds"), ..self.bench.figure(scale) }
    }

    /// Says what has no line.
    fn explain(&self, figure: &mut Figure) {
        if let Err(reason) = &self.gpu_memory {
            figure.notes.push(format!("GPU: refused, {reason}"));
        } else if self.bench.is_emulated() {
            figure
                .notes
                .push("the emulated device gave the right answers in all environments; it has no speed".to_owned());
        }
        figure.notes.append(&mut self.kernels.borrow_mut());
    }

    /// Runs mixes in environments: the median run of each, by the overall time.
    fn all(&self, environments: &[(&'static str, Environment)], mixes: &[(String, Vec<String>)]) -> Result<Results> {
        let mut answered = vec![];
        for (_, sqls) in mixes {
            answered.push(sqls.iter().map(|sql| self.query(sql)).collect::<Result<Vec<_>>>()?);
        }
        let mut results = vec![];
        for (name, environment) in environments {
            if environment.uses_gpu() && self.gpu_memory.is_err() {
                continue;
            }
            let (mut ended, mut with_kernels) = (vec![], 0);
            for ((mix, _), queries) in mixes.iter().zip(&answered) {
                tell(&format!("{name}, {mix}"));
                let times = self.median(environment, queries)?;
                with_kernels += times.as_ref().map_or(0, |times| times.with_kernels);
                // The emulated device has no speed.
                ended.push(times.filter(|_| !(self.bench.is_emulated() && environment.uses_gpu())));
            }
            if environment.uses_gpu() {
                let queries: usize = answered.iter().map(Vec::len).sum();
                let note = format!("{name}: kernels took part in {with_kernels} of {queries} queries");
                self.kernels.borrow_mut().push(note);
            }
            results.push((*name, ended));
        }
        Ok(results)
    }

    /// A query with the answer that it gives alone, on the CPU.
    fn query(&self, sql: &str) -> Result<Query> {
        let mut answers = self.answers.borrow_mut();
        let answer = match answers.get(sql) {
            Some(answer) => answer.clone(),
            None => {
                let (answer, _) = self.runtime.block_on(async {
                    let session = session(self.bench, DeviceKind::Cpu, 0, None, &self.tables).await?;
                    answer_of(&session, sql).await
                })?;
                answers.entry(sql.to_owned()).or_insert(answer).clone()
            }
        };
        Ok(Query { sql: sql.to_owned(), answer })
    }

    /// The median run by the overall time, after a first one.
    fn median(&self, environment: &Environment, queries: &[Query]) -> Result<Option<Ended>> {
        let (runs, memory) = (self.bench.runs_of(environment.uses_gpu()), *self.gpu_memory.as_ref().unwrap_or(&0));
        let mut ended = vec![];
        for run in 0..runs {
            let times = self.runtime.block_on(environment.run(self.bench, memory, &self.tables, queries))?;
            if run > 0 || runs == 1 {
                ended.push(times);
            }
        }
        ended.sort_by(|one, other| one.overall().total_cmp(&other.overall()));
        let middle = ended.len() / 2;
        Ok(ended.into_iter().nth(middle))
    }

    /// The overall times of mixes, on the CPU and on the GPU.
    fn each_place(&self, mut figure: Figure, mixes: &[(String, Vec<String>)]) -> Result<Outcome> {
        figure.x = Axis::named("queries at once", mixes.iter().map(|(name, _)| name));
        let places = [("CPU", Environment::At(Place::Cpu)), ("GPU", Environment::At(Place::Gpu))];
        for (name, ended) in self.all(&places, mixes)? {
            let points = ended.iter().enumerate().filter_map(|(x, ended)| Some((x as f64, ended.as_ref()?.overall())));
            figure.add(SeriesSource::Measured, name, points.collect());
        }
        self.explain(&mut figure);
        Ok(Outcome::of(figure))
    }

    /// A panel of overall times, and those of times at each place and of means.
    fn panels(&self, figure: Figure, mixes: &[(String, Vec<String>)], results: &Results) -> Result<Outcome> {
        let figure = Figure { x: Axis::named("set", mixes.iter().map(|(name, _)| name)), ..figure };
        let shown: [(&'static str, Shown); 4] = [
            ("seconds until the last end", |ended| Some(ended.overall())),
            ("seconds until the last end on the CPU", |ended| ended.cpu),
            ("seconds until the last end on the GPU", |ended| ended.gpu),
            ("mean seconds until the end", |ended| Some(ended.mean())),
        ];
        let mut outcome: Option<Outcome> = None;
        for (label, shown) in shown {
            let notes = if outcome.is_none() { figure.notes.clone() } else { vec![] };
            let mut panel = Figure { y: Axis::linear(label), notes, ..figure.clone() };
            for (name, ended) in results {
                let points =
                    ended.iter().enumerate().filter_map(|(x, ended)| Some((x as f64, shown(ended.as_ref()?)?)));
                panel.add(SeriesSource::Measured, *name, points.collect());
            }
            match &mut outcome {
                None => {
                    self.explain(&mut panel);
                    outcome = Some(Outcome::of(panel));
                }
                Some(Outcome::Done(panels)) if !panel.series.is_empty() => panels.push(panel),
                Some(_) => {}
            }
        }
        Ok(outcome.unwrap_or_else(|| Outcome::Refused("nothing was measured".to_owned())))
    }
}
