//! The plain files of `tests/sql/`: SQL statements and their answers, in ample memory, in little, and on the emulated device.
//!
//! `tests/sql/README.md` describes the files and how DuckDB checks their answers. `OVERSPILL_SQL_FILES` runs only the
//! files whose path contains it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::collect;
use overspill::memory::{HeadroomPool, execute_logical_plan};
use sqllogictest::{AsyncDB, ColumnType, DBOutput, Record, Runner, parse_file, strict_column_validator};
use tokio::runtime::Builder;

use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::test_gpu::TestGpu;

/// Errors of one file that are shown; more say nothing new.
const MOST_ERRORS: usize = 10;

/// The memory limit of a session in little memory: 32 MB.
const LITTLE: usize = 32_000_000;

/// GPU memory of a session on the emulated device: 64 MiB.
const GPU_MEMORY: usize = 64 << 20;

#[test]
fn answers_are_right_in_ample_memory() {
    run_all(&|| Session::open(Engine::Overspill, &Settings::default(), Memory::Ample));
}

#[test]
fn answers_are_right_in_little_memory() {
    run_all(&|| Session::open_over(Engine::Overspill, &Settings::default(), Arc::new(HeadroomPool::new(LITTLE)), 0));
}

#[test]
fn answers_are_right_on_the_emulated_device() {
    let emulated = TestGpu::start();
    emulated.configure(&format!("memory={GPU_MEMORY}"));
    let settings = Settings { device: Some(Device::with(GPU_MEMORY)), ..Settings::default() };
    let before = emulated.statistics().launches_made;
    run_all(&|| Session::open(Engine::Overspill, &settings, Memory::Ample));
    overspill::OverspillRuntime::of_process().release();
    assert!(emulated.statistics().launches_made > before, "the device did not join anything");
}

/// Runs every file in a session of its own, several files at a time.
fn run_all(open: &(impl Fn() -> Result<Session> + Sync)) {
    let wanted = std::env::var("OVERSPILL_SQL_FILES").unwrap_or_default();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/sql").canonicalize().unwrap();
    let mut files = vec![];
    files_below(&root, &mut files);
    files.retain(|file| file.to_string_lossy().contains(&wanted));
    assert!(!files.is_empty(), "no file of {} has {wanted:?} in its path", root.display());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let workers = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let errors = run_file(file, open);
                    failures.lock().unwrap().extend(errors);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} records failed\n\n{}", failures.len(), failures.join("\n\n"));
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "slt") {
            found.push(path);
        }
    }
}

/// Runs the records of one file. A record that fails does not keep those behind it from running.
fn run_file(file: &Path, open: &impl Fn() -> Result<Session>) -> Vec<String> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut errors: Vec<String> = vec![];
    runtime.block_on(async {
        let records = match parse_file::<Column>(file) {
            Ok(records) => records,
            Err(error) => return errors.push(format!("{}: {error}", file.display())),
        };
        let session = open().unwrap();
        let mut runner = Runner::new(|| async { Ok(Database(&session)) });
        runner.with_column_validator(strict_column_validator);
        for record in records.into_iter().filter(|record| !matches!(record, Record::Halt { .. })) {
            if let Err(error) = runner.run_async(record).await {
                errors.push(error.to_string());
            }
            if errors.len() >= MOST_ERRORS {
                break;
            }
        }
        drop(runner);
        // Tables hold memory until they are dropped; no file may stay.
        let files = session.files_left();
        if !files.is_empty() {
            errors.push(format!("{}: left behind {files:?}", file.display()));
        }
    });
    errors
}

/// The session of one file.
struct Database<'a>(&'a Session);

#[async_trait::async_trait]
impl AsyncDB for Database<'_> {
    type Error = DataFusionError;
    type ColumnType = Column;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Column>> {
        let ctx = &self.0.ctx;
        let state = ctx.state();
        let plan = overspill::sql::plan(&state, overspill::sql::parse(&state, sql)?.statement).await?;
        let is_query = !matches!(
            plan,
            LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Copy(_) | LogicalPlan::Statement(_)
        );
        let frame = execute_logical_plan(ctx, plan).await?;
        let context = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        let types = plan.schema().fields().iter().map(|field| Column::of(field.data_type())).collect();
        let batches = collect(plan, context).await?;
        if !is_query {
            return Ok(DBOutput::StatementComplete(0));
        }
        let rows = batches.iter().map(rows_of).collect::<Result<Vec<_>>>()?.concat();
        Ok(DBOutput::Rows { types, rows })
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "overspill"
    }
}

/// The values of a batch as the files spell them.
fn rows_of(batch: &RecordBatch) -> Result<Vec<Vec<String>>> {
    let options = FormatOptions::new()
        .with_null("NULL")
        .with_date_format(Some("%Y-%m-%d"))
        .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S"))
        .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%:z"));
    let columns = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &options))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let spell = |text: String| if text.is_empty() { "(empty)".to_string() } else { text };
    Ok((0..batch.num_rows())
        .map(|row| columns.iter().map(|column| spell(column.value(row).to_string())).collect())
        .collect())
}

/// What the letter of a column in the head of a query says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    Text,
    Integer,
    /// Floats and decimals.
    Real,
    Boolean,
    /// Dates, times and timestamps.
    Time,
    Other,
}

impl Column {
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Boolean => Self::Boolean,
            data_type if data_type.is_integer() => Self::Integer,
            data_type if data_type.is_numeric() => Self::Real,
            data_type if data_type.is_temporal() => Self::Time,
            _ => Self::Other,
        }
    }
}

impl ColumnType for Column {
    fn from_char(letter: char) -> Option<Self> {
        Some(match letter {
            'T' => Self::Text,
            'I' => Self::Integer,
            'R' => Self::Real,
            'B' => Self::Boolean,
            'D' => Self::Time,
            '?' => Self::Other,
            _ => return None,
        })
    }

    fn to_char(&self) -> char {
        match self {
            Self::Text => 'T',
            Self::Integer => 'I',
            Self::Real => 'R',
            Self::Boolean => 'B',
            Self::Time => 'D',
            Self::Other => '?',
        }
    }
}
