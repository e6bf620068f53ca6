//! One case of the differential test: tables, settings and a query, all drawn from one seed.

use std::collections::BTreeMap;
use std::fmt::Write;

use datafusion::common::{DataFusionError, Result};
use datafusion::prelude::SessionContext;
use overspill::{Choice, GpuLinkCompression, Named, PrefixSumProcessor, Strategy};
use overspill_machine::transfer::TransferMethod;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use tokio::sync::RwLock;

use super::judged;
use super::key_types::KeyType;
use super::queries::{Generator, MOST_PAIRS, Query, Reference, pairs_of_all};
use super::tables::{Shape, Storage, Table};
use crate::device::STRATEGIES;
use crate::harness::duckdb::Export;
use crate::harness::resident_memory::ResidentMemory;
use crate::harness::rows::Answer;
use crate::harness::run::{Run, is_broken, is_out_of_memory};
use crate::harness::session::{Device, Engine, Memory, Session, Settings};

/// Bytes: what repartitions hold depends on how fast who reads them is, and changes from run to run.
const OTHERS_SLACK: usize = 256 << 10;

/// The share of the budgeted runs whose resident memory is measured; nothing else runs meanwhile.
const MEASURED: f64 = 0.1;

/// The share of the cases whose query DuckDB judges.
const JUDGED: f64 = 0.4;

/// Bytes: how far a run may exceed its budget with what no budget counts.
const MOST_BESIDES: usize = 200_000_000;

/// Held by every run, and for writing by one that is measured.
static RUNNING: RwLock<()> = RwLock::const_new(());

/// What the runs of one case, or of many, amounted to.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub queries: usize,
    /// Queries that stock DataFusion refuses, with its words.
    pub refused: Vec<String>,
    /// Queries that DuckDB judges.
    pub judged: usize,
    /// Those of them that Overspill refuses, by the construct that they name.
    pub refused_by_construct: BTreeMap<&'static str, usize>,
    pub equi_joins: usize,
    pub budgeted: usize,
    pub spilled: usize,
    pub recursed: usize,
    pub several_passes: usize,
    /// Budgeted runs in which a sort, an aggregate or a repartition ran out of memory: they say nothing of joins.
    pub others_starved: usize,
    /// Runs under a budget that is less than what their plan needs.
    pub below_floors: usize,
    /// Spilled runs that were repeated without spilling, and failed as they must.
    pub failed_without_spilling: usize,
    /// Repeated likewise, and found memory enough.
    pub fitted_without_spilling: usize,
    /// Rows of both sides that device kernels joined in ample memory, and probe rows that they left to the CPU.
    pub device_rows: usize,
    pub returned_rows: usize,
    /// Runs in ample memory where some state did not fit the device.
    pub device_spilled: usize,
    /// What the device could not do, and where it failed.
    pub refusals: Vec<String>,
    pub failures: Vec<String>,
    /// Budgeted runs that ran alone, so that what the process grew by was theirs.
    pub measured: usize,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.queries += other.queries;
        self.refused.extend(other.refused);
        self.judged += other.judged;
        for (construct, count) in other.refused_by_construct {
            *self.refused_by_construct.entry(construct).or_default() += count;
        }
        self.equi_joins += other.equi_joins;
        self.budgeted += other.budgeted;
        self.spilled += other.spilled;
        self.recursed += other.recursed;
        self.several_passes += other.several_passes;
        self.others_starved += other.others_starved;
        self.below_floors += other.below_floors;
        self.failed_without_spilling += other.failed_without_spilling;
        self.fitted_without_spilling += other.fitted_without_spilling;
        self.device_rows += other.device_rows;
        self.returned_rows += other.returned_rows;
        self.device_spilled += other.device_spilled;
        self.refusals.extend(other.refusals);
        self.failures.extend(other.failures);
        self.measured += other.measured;
    }
}

/// See the module.
pub struct Case {
    pub seed: u64,
    tables: Vec<Table>,
    settings: Settings,
    query: Query,
    /// The Parquet files of tables that are stored so.
    files: TempDir,
}

impl Case {
    /// A query of any kind; a share of them is judged by DuckDB.
    pub fn new(seed: u64) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        if rng.random_bool(JUDGED) {
            let tables = judged_tables(&mut rng);
            let query = judged::Generator::new(&mut rng, &tables).query();
            return Self::of(seed, rng, tables, query);
        }
        Self::of_equi_joins_from(seed, rng)
    }

    /// A query with equi-joins, which stock DataFusion answers too.
    pub fn of_equi_joins(seed: u64) -> Result<Self> {
        Self::of_equi_joins_from(seed, StdRng::seed_from_u64(seed))
    }

    fn of_equi_joins_from(seed: u64, mut rng: StdRng) -> Result<Self> {
        let tables = random_tables(&mut rng);
        let query = Generator::new(&mut rng, &tables).query();
        Self::of(seed, rng, tables, query)
    }

    fn of(seed: u64, mut rng: StdRng, tables: Vec<Table>, query: Query) -> Result<Self> {
        let rows = tables.iter().map(Table::rows).max().unwrap_or(0);
        let settings = Settings::random(&mut rng, rows);
        let files = TempDir::new()?;
        for table in &tables {
            if matches!(table.storage, Storage::Parquet | Storage::SortedParquet) {
                table.write_parquet(files.path())?;
            }
        }
        Ok(Self { seed, tables, settings, query, files })
    }

    /// The same tables and query, joined on this emulated device by some method; by the strategy for several if there
    /// are.
    pub fn on_device(self, device: Device) -> Self {
        let rng = &mut StdRng::seed_from_u64(self.seed ^ 0x6EED);
        let mut settings = self.settings;
        settings.strategy = Choice(STRATEGIES.choose(rng).copied());
        if device.gpus > 1 {
            settings.strategy = Strategy::GpuNoPartition.into();
        }
        let transfer = [None, None].into_iter().chain(TransferMethod::ALL.map(Some)).collect::<Vec<_>>();
        settings.device = Some(Device {
            transfer: Choice(*transfer.choose(rng).unwrap()),
            cached_share: *[0.79, 0.0, 0.5, 1.0].choose(rng).unwrap(),
            aggregates: rng.random_bool(0.5),
            prefix_sum: Choice(PrefixSumProcessor::ALL.choose(rng).copied()),
            link_compression: Choice(GpuLinkCompression::VALUES.choose(rng).copied()),
            ..device
        });
        Self { settings, ..self }
    }

    /// Everything one needs to know to run it again.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}\n{:?}\n", self.query, self.settings);
        for table in &self.tables {
            writeln!(text, "{}", table.describe()).expect("writing to a string");
        }
        write!(
            text,
            "again: OVERSPILL_FUZZ_CASE={} cargo test --workspace --test integration random_queries -- --nocapture",
            self.seed
        )
        .expect("writing to a string");
        text
    }

    /// Runs the case on both engines and under budgets. An error is a sentence that says what went wrong.
    pub async fn run(&self, export: Option<&Export>) -> Result<Tally, String> {
        // Apart from the sequence that drew the case, so that a change of the runs changes no case.
        let rng = &mut StdRng::seed_from_u64(!self.seed);
        let mut tally = Tally { queries: 1, ..Tally::default() };
        let expected = self.expected().await?;
        let (all, ordered_by, equi_joins) = match expected {
            Expected::Refused(words) => {
                tally.refused.push(words);
                return Ok(tally);
            }
            Expected::ConstructRefused(construct) => {
                tally.judged += 1;
                *tally.refused_by_construct.entry(construct).or_default() += 1;
                return Ok(tally);
            }
            Expected::Answer { all, limited, equi_joins } => (all, limited, equi_joins),
        };
        tally.equi_joins = equi_joins;
        tally.judged += usize::from(matches!(self.query.reference, Reference::AmpleMemory { .. }));
        let judge = Judge { query: &self.query, all: &all, limited: ordered_by.as_ref(), equi_joins };

        let (session, run) = self.execute(Engine::Overspill, Memory::Ample).await?;
        judge.check("ample memory", &session, &run).await?;
        if let (Some(export), Some(sql), Ok(answer)) = (export, &self.query.duckdb, &run.answer) {
            let again = format!("OVERSPILL_FUZZ_CASE={}", self.seed);
            // The others are not in the query.
            let known = self.tables.iter().filter(|table| table.known_to_duckdb());
            let rows: Vec<_> = known.map(|table| (table, table.batches())).collect();
            let tables = rows.iter().map(|(table, rows)| (table.name.to_string(), &table.schema, &rows[..]));
            let exported = export.add(self.seed, &again, sql, tables, answer);
            exported.map_err(|error| format!("export for DuckDB: {error}"))?;
        }
        let device = &run.report.device;
        tally.device_rows += device.build_rows + device.probe_rows;
        tally.returned_rows += device.returned_rows;
        tally.device_spilled += usize::from(device.spilled_bytes > 0);
        tally.refusals.extend(device.refusals.iter().cloned());
        tally.failures.extend(device.failures.iter().cloned());
        let join_peak = session.pool.join_peak();
        let others = 2 * session.pool.other_peak() + OTHERS_SLACK;
        let sharers = session.pool.spillable_peak().max(1);

        let floors = &run.report.floors;
        for share in shares(rng) {
            let share = |of: usize| (of as f64 * share) as usize;
            let memory = match rng.random_range(0..4) {
                0 => Memory::Greedy(others + share(join_peak).max(floors.iter().sum())),
                1 => Memory::Fair(others + sharers * share(join_peak).max(floors.iter().copied().max().unwrap_or(0))),
                _ => Memory::JoinLimit(
                    (share(join_peak) / floors.len().max(1)).max(floors.iter().copied().max().unwrap_or(0)),
                ),
            };
            // With more the joins need not spill.
            if memory.limit() >= join_peak {
                continue;
            }
            let name = format!("{memory:?}, the joins having held {join_peak} bytes in ample memory");
            tally.budgeted += 1;
            let (session, run) = if rng.random_bool(MEASURED) {
                let most = memory.limit() + MOST_BESIDES;
                let (mut session, mut run, mut grown) = self.execute_alone(memory).await?;
                // Other tests of the process allocate too, but hardly during each of several runs.
                for _ in 0..4 {
                    if grown > most {
                        drop(session);
                        (session, run, grown) = self.execute_alone(memory).await?;
                    }
                }
                if grown > most {
                    return Err(format!("{name}: resident memory grew by {grown} bytes"));
                }
                tally.measured += 1;
                (session, run)
            } else {
                self.execute(Engine::Overspill, memory).await?
            };
            // Also joins, where others hold more than twice of what they held in ample memory.
            let others_took_more = session.pool.other_peak() > others && !matches!(memory, Memory::JoinLimit(_));
            if let Err(error) = &run.answer
                && is_out_of_memory(error)
                && (!error.to_string().contains("join") || others_took_more)
            {
                tally.others_starved += 1;
                continue;
            }
            // A join that shares its build side in ample memory may be partitioned in little: its streams have a floor each.
            let floors = &run.report.floors;
            let needed = match memory {
                Memory::Ample => 0,
                Memory::Greedy(_) => others + floors.iter().sum::<usize>(),
                Memory::Fair(_) => others + sharers * floors.iter().max().unwrap_or(&0),
                Memory::JoinLimit(_) => *floors.iter().max().unwrap_or(&0),
            };
            if memory.limit() < needed && run.answer.as_ref().is_err_and(is_out_of_memory) {
                tally.below_floors += 1;
                continue;
            }
            judge.check(&name, &session, &run).await?;
            tally.spilled += usize::from(run.report.spilled());
            tally.recursed += usize::from(run.report.recursion_depth >= 2);
            tally.several_passes += usize::from(run.report.chunk_passes >= 2);
            if run.report.spilled() && rng.random_bool(0.1) {
                let (session, run) = self.execute(Engine::OverspillInMemory, memory).await?;
                match &run.answer {
                    Err(error) if is_out_of_memory(error) => tally.failed_without_spilling += 1,
                    Err(error) => return Err(format!("{name}, spilling off: {error}")),
                    // Partitions that hold memory at the same time in one run may do so in turn in another.
                    Ok(_) => tally.fitted_without_spilling += 1,
                }
                if let Some(complaint) = session.leftovers().await {
                    return Err(format!("{name}, spilling off: {complaint}"));
                }
            }
        }
        Ok(tally)
    }

    /// The case with all its tables in Parquet files. An error if they have types that Parquet has not.
    pub fn in_files(mut self) -> Result<Self> {
        for table in &mut self.tables {
            table.storage = match table.storage {
                Storage::Memory | Storage::Parquet => Storage::Parquet,
                Storage::SortedMemory | Storage::SortedParquet => Storage::SortedParquet,
            };
            table.write_parquet(self.files.path())?;
        }
        Ok(self)
    }

    /// Runs the case in a session whose queries other processes run, and compares the answer with that of one process. The
    /// words of a refusal are none.
    pub async fn run_elsewhere(&self, ctx: &SessionContext) -> Result<Option<String>, String> {
        let (all, limited, equi_joins) = match self.expected().await? {
            Expected::Refused(words) => return Ok(Some(words)),
            Expected::ConstructRefused(construct) => return Ok(Some(construct.to_owned())),
            Expected::Answer { all, limited, equi_joins } => (all, limited, equi_joins),
        };
        for table in &self.tables {
            table.register(ctx, self.files.path()).await.map_err(|error| format!("a table: {error}"))?;
        }
        // Executors of this process take memory too.
        let running = RUNNING.read().await;
        let frame = self.query.source.plan(ctx, self.query.any_of).await;
        let run = Run::of(ctx, frame).await;
        drop(running);
        let judge = Judge { query: &self.query, all: &all, limited: limited.as_ref(), equi_joins };
        match &run.answer {
            Ok(answer) => judge.check_answer(answer).map(|()| None).map_err(|fault| format!("{fault}\n{}", run.plan)),
            Err(error) if is_broken(error) => Err(format!("broken: {error}\n{}", run.plan)),
            Err(DataFusionError::NotImplemented(words)) if words.contains("cluster") => Ok(Some(words.clone())),
            // It holds a batch of each sorted partition, and rows may have 80 KB.
            Err(error) if error.to_string().contains("Not enough memory: SortPreservingMergeExec") => {
                Ok(Some("a merge of rows too long for the memory of an executor".to_owned()))
            }
            Err(error) => Err(format!("failed: {error}\n{}", run.plan)),
        }
    }

    /// The settings of sessions that run it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn expected(&self) -> Result<Expected, String> {
        let engine = match self.query.reference {
            Reference::Stock => Engine::Stock,
            Reference::AmpleMemory { .. } => Engine::Overspill,
        };
        let (session, run) = self.execute_limited(engine, Memory::Ample, None).await?;
        let equi_joins = run.report.equi_joins();
        drop(session);
        let all = match (run.answer, self.query.reference) {
            (Ok(answer), _) => answer,
            (Err(error), Reference::AmpleMemory { refusable }) => {
                let error = error.to_string();
                let is_refusal = error.contains("not supported") || error.contains("a sum is");
                return match refusable.filter(|_| is_refusal) {
                    Some(construct) => Ok(Expected::ConstructRefused(construct)),
                    None => Err(format!("ample memory: {error}")),
                };
            }
            (Err(error), Reference::Stock) => {
                return Ok(Expected::Refused(format!("{error} ({:?})", self.query.source)));
            }
        };
        let limited = match self.query.any_of {
            Some(_) if !self.query.order.is_empty() => {
                let (_, run) = self.execute(Engine::Stock, Memory::Ample).await?;
                Some(run.answer.map_err(|error| format!("stock DataFusion with LIMIT: {error}"))?)
            }
            _ => None,
        };
        Ok(Expected::Answer { all, limited, equi_joins })
    }

    async fn open(&self, engine: Engine, memory: Memory) -> Result<Session> {
        let session = Session::open(engine, &self.settings, memory)?;
        for table in &self.tables {
            table.register(&session.ctx, self.files.path()).await?;
        }
        Ok(session)
    }

    async fn execute(&self, engine: Engine, memory: Memory) -> Result<(Session, Run), String> {
        self.execute_limited(engine, memory, self.query.any_of).await
    }

    /// Executes the query while no other does; gives also by how many bytes the process grew meanwhile.
    async fn execute_alone(&self, memory: Memory) -> Result<(Session, Run, usize), String> {
        let _alone = RUNNING.write().await;
        let before = ResidentMemory::of_this_process()?.now;
        ResidentMemory::forget_peak()?;
        let (session, run) = self.execute_unlocked(Engine::Overspill, memory, self.query.any_of).await?;
        Ok((session, run, ResidentMemory::of_this_process()?.peak.saturating_sub(before)))
    }

    async fn execute_limited(
        &self,
        engine: Engine,
        memory: Memory,
        limit: Option<usize>,
    ) -> Result<(Session, Run), String> {
        let _among_others = RUNNING.read().await;
        self.execute_unlocked(engine, memory, limit).await
    }

    async fn execute_unlocked(
        &self,
        engine: Engine,
        memory: Memory,
        limit: Option<usize>,
    ) -> Result<(Session, Run), String> {
        let session = self.open(engine, memory).await.map_err(|error| format!("opening a session: {error}"))?;
        let frame = self.query.source.plan(&session.ctx, limit).await;
        let run = Run::of(&session.ctx, frame).await;
        Ok((session, run))
    }
}

/// Which parts of what the joins hold in ample memory they shall make do with: from nearly all of it down to the floor.
fn shares(rng: &mut StdRng) -> [f64; 3] {
    [*[0.95, 0.7, 0.5].choose(rng).unwrap(), *[0.3, 0.15, 0.07].choose(rng).unwrap(), 0.0]
}

/// What the reference says.
enum Expected {
    Answer {
        /// The answer without the LIMIT that leaves rows open.
        all: Answer,
        /// The answer with it, when there is an order by which it selects.
        limited: Option<Answer>,
        equi_joins: usize,
    },
    Refused(String),
    /// What Overspill says: it refuses a construct of this name.
    ConstructRefused(&'static str),
}

struct Judge<'a> {
    query: &'a Query,
    all: &'a Answer,
    limited: Option<&'a Answer>,
    equi_joins: usize,
}

impl Judge<'_> {
    async fn check(&self, name: &str, session: &Session, run: &Run) -> Result<(), String> {
        let fail = |what: String| Err(format!("{name}: {what}\n{}", run.plan));
        let answer = match &run.answer {
            Ok(answer) => answer,
            Err(error) if is_broken(error) => return fail(format!("broken: {error}")),
            Err(error) => return fail(format!("failed: {error}")),
        };
        if !run.report.foreign_joins.is_empty() {
            return fail(format!("joins that are not HybridJoinExec: {:?}", run.report.foreign_joins));
        }
        if run.report.hybrid_joins != self.equi_joins {
            return fail(format!("{} HybridJoinExec, expected {}", run.report.hybrid_joins, self.equi_joins));
        }
        let difference = match self.query.any_of {
            None => answer.difference(self.all),
            Some(count) => answer.difference_to_some_of(self.all, count),
        };
        if let Some(difference) = difference {
            return fail(difference);
        }
        if let Err(complaint) = self.check_order(answer) {
            return fail(complaint);
        }
        match session.leftovers().await {
            Some(complaint) => fail(complaint),
            None => Ok(()),
        }
    }

    /// Compares an answer that another process has computed.
    fn check_answer(&self, answer: &Answer) -> Result<(), String> {
        let difference = match self.query.any_of {
            None => answer.difference(self.all),
            Some(count) => answer.difference_to_some_of(self.all, count),
        };
        difference.map_or(Ok(()), Err)?;
        self.check_order(answer)
    }

    fn check_order(&self, answer: &Answer) -> Result<(), String> {
        let disorder = answer.disorder(&self.query.order).map_err(|error| error.to_string())?;
        disorder.map_or(Ok(()), Err)?;
        if let Some(limited) = self.limited {
            let keys: Vec<usize> = self.query.order.iter().map(|by| by.column).collect();
            let project = |answer: &Answer| answer.project(&keys).map_err(|error| error.to_string());
            if let Some(difference) = project(answer)?.difference(&project(limited)?) {
                return Err(format!("LIMIT took rows that do not come first: {difference}"));
            }
        }
        Ok(())
    }
}

fn random_tables(rng: &mut StdRng) -> Vec<Table> {
    random_tables_known(rng, false)
}

/// The same, with columns that DuckDB knows if it shall.
fn random_tables_known(rng: &mut StdRng, for_duckdb: bool) -> Vec<Table> {
    let three = rng.random_bool(0.18);
    let mut scale = 1.0;
    loop {
        let tables = tables_of_scale(rng, three, scale, for_duckdb);
        if pairs_of_all(&tables, false) <= MOST_PAIRS {
            return tables;
        }
        scale *= 0.7;
    }
}

fn tables_of_scale(rng: &mut StdRng, three: bool, scale: f64, for_duckdb: bool) -> Vec<Table> {
    let rows: Vec<usize> = (0..if three { 3 } else { 2 })
        .map(|_| {
            let rows = match rng.random_range(0..100) {
                0..3 => 0,
                3..5 => 1,
                5..12 => rng.random_range(2..200),
                12..40 => rng.random_range(1000..6000),
                _ => rng.random_range(6000..25_000),
            };
            (rows as f64 * if three { scale * 0.5 } else { scale }) as usize
        })
        .collect();
    let keys = *[1, 1, 1, 2, 2, 3, 4].choose(rng).unwrap();
    let largest = rows.iter().copied().max().unwrap_or(1) as i64;
    let shape = Shape {
        keys: (0..keys).map(|_| KeyType::random_pair(rng, for_duckdb)).collect(),
        domain: *[largest, largest, largest * 3, 1 + largest / 5].choose(rng).unwrap() + 1,
        wide_payload: rng.random_bool(0.03),
        for_duckdb,
        nulls: None,
        small: 10,
    };
    tables_of_shape(rng, &shape, &rows)
}

/// Tables for queries that DuckDB judges: mostly small ones with few values and many NULLs, which tell more of logic, and
/// some that spill.
fn judged_tables(rng: &mut StdRng) -> Vec<Table> {
    if rng.random_bool(0.3) {
        return random_tables_known(rng, true);
    }
    let tables = if rng.random_bool(0.3) { 3 } else { 2 };
    let most = *[3, 12, 60].choose(rng).unwrap();
    let rows: Vec<usize> = (0..tables).map(|_| rng.random_range(0..=most)).collect();
    let shape = Shape {
        keys: (0..rng.random_range(1..=2)).map(|_| KeyType::random_pair(rng, true)).collect(),
        domain: rng.random_range(1..=8),
        wide_payload: false,
        for_duckdb: true,
        nulls: Some(*[0.0, 0.2, 0.4, 0.5].choose(rng).unwrap()),
        small: rng.random_range(1..=6),
    };
    tables_of_shape(rng, &shape, &rows)
}

fn tables_of_shape(rng: &mut StdRng, shape: &Shape, rows: &[usize]) -> Vec<Table> {
    let storages = [
        Storage::Memory,
        Storage::Memory,
        Storage::SortedMemory,
        Storage::SortedMemory,
        Storage::Parquet,
        Storage::SortedParquet,
    ];
    rows.iter()
        .zip(['a', 'b', 'c'])
        .map(|(rows, name)| {
            let storage = *storages.choose(rng).unwrap();
            Table::random(rng, name, shape, *rows, storage)
        })
        .collect()
}
