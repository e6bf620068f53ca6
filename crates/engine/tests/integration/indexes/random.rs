//! Random joins of an indexed table give the answers of stock DataFusion, of joins that scan it, and of DuckDB (`OVERSPILL_PYTHON`).

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::{ExecutionPlan, collect};
use overspill::{Choice, Strategy, sql};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::metric;
use crate::harness::duckdb::Export;
use crate::harness::rows::Answer;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};

/// Keys of each type that can be indexed, made of a number.
const KEYS: [&str; 8] = [
    "arrow_cast({}, 'Int64')",
    "arrow_cast({} % 100, 'Int8')",
    "arrow_cast({}, 'UInt32')",
    "CAST({} AS VARCHAR)",
    // All words are alike.
    "'customer number ' || CAST({} AS VARCHAR)",
    "CAST({} - 200 AS DECIMAL(12, 2))",
    "arrow_cast(arrow_cast({} - 100, 'Int32'), 'Date32')",
    "arrow_cast({} - 300, 'Timestamp(Microsecond, None)')",
];

const KINDS: [&str; 6] =
    ["", "USING binary_search", "USING btree", "USING line_btree", "USING harmonia", "USING radix_spline"];

/// Joins of `s` with `r`, and whether rows of `r` can be looked up for them.
const JOINS: [(&str, bool); 19] = [
    ("SELECT s.id, s.g, r.id, r.v FROM s JOIN {r} ON {on}", true),
    ("SELECT r.v, s.id FROM {r} JOIN s ON {on}", true),
    ("SELECT s.id, r.id, r.g FROM s LEFT JOIN {r} ON {on}", true),
    ("SELECT s.id, r.id FROM s RIGHT JOIN {r} ON {on}", false),
    ("SELECT s.id, r.id FROM {r} RIGHT JOIN s ON {on}", true),
    ("SELECT r.id, r.k FROM {r} LEFT SEMI JOIN s ON {on}", true),
    ("SELECT s.id, s.k FROM {r} RIGHT ANTI JOIN s ON {on}", true),
    ("SELECT count(*) FROM {r} JOIN (SELECT DISTINCT k, g, v, id FROM s) s ON {on}", true),
    ("SELECT s.id, r.id FROM s FULL JOIN {r} ON {on}", false),
    ("SELECT s.id, s.v FROM s LEFT SEMI JOIN {r} ON {on}", true),
    ("SELECT s.id, s.k FROM s LEFT ANTI JOIN {r} ON {on}", true),
    ("SELECT r.id, r.v FROM s RIGHT SEMI JOIN {r} ON {on}", true),
    ("SELECT r.id FROM s RIGHT ANTI JOIN {r} ON {on}", false),
    ("SELECT s.id FROM s WHERE EXISTS (SELECT 1 FROM {r} WHERE {on}) OR s.v = 3", true),
    ("SELECT count(*), sum(r.v), min(s.id) FROM s JOIN {r} ON {on}", true),
    ("SELECT s.g, count(*), sum(r.id) FROM s JOIN {r} ON {on} GROUP BY s.g", true),
    ("SELECT s.id, r.id FROM s JOIN {r} ON {on} AND s.v < r.v", true),
    ("SELECT s.id FROM s WHERE s.k NOT IN (SELECT r.k FROM {r} WHERE r.k IS NOT NULL) AND s.k IS NOT NULL", true),
    ("SELECT s.id FROM s WHERE s.k NOT IN (SELECT r.k FROM {r})", true),
];

/// Filters of `r`, with keys, and whether rows can be looked up for them.
const FILTERS: [(&str, bool); 14] = [
    ("r.k = {a}", true),
    ("{a} = r.k AND r.v > 4", true),
    ("r.k IN ({a}, {b}, {c}, {d}, {e})", true),
    ("r.k IN ({a}, NULL, {b}, {c}, {d})", true),
    ("r.k BETWEEN {a} AND {b}", true),
    ("r.k > {a} AND {b} >= r.k AND r.g <> 2", true),
    ("r.k < {a}", true),
    ("r.k = {a} OR r.k = {b} OR r.k >= {c}", true),
    ("(r.k = {a} AND r.g = 1) OR (r.k = {b} AND r.g = 2)", true),
    ("r.k > {a} AND r.k < {a}", true),
    ("r.k = {a} OR r.g = 2", false),
    ("r.k <> {a}", false),
    ("r.k NOT IN ({a}, {b}, {c}, {d}, {e})", false),
    ("r.k IS NULL", false),
];

/// Queries of filtered rows.
const FILTERED: [&str; 6] = [
    "SELECT r.id, r.v FROM r WHERE {p}",
    "SELECT r.k, count(*), sum(r.v) FROM r WHERE {p} GROUP BY r.k",
    "SELECT sum(r.id), min(r.v), count(*) FROM r WHERE {p}",
    "SELECT r.id FROM r WHERE {p} ORDER BY r.id LIMIT 7",
    "SELECT s.id, r.id FROM s JOIN r ON s.g = r.g AND s.v = r.v WHERE {p}",
    "SELECT s.id, r.id FROM s LEFT JOIN (SELECT * FROM r WHERE {p}) r ON s.v = r.v",
];

#[derive(Debug)]
pub(crate) struct Case {
    /// Makes the tables.
    tables: Vec<String>,
    /// Only where there are indexes.
    index: String,
    /// Runs after the index is there.
    insert: Option<String>,
    query: String,
    can_look_up: bool,
    settings: Settings,
    memory: Memory,
    indexes: &'static str,
}

/// Statements that make a table and add to it.
fn table(random: &mut StdRng, name: &str, most: usize, key: &str) -> [String; 2] {
    let (factor, spread) = ([1, 7, 48_271][random.random_range(0..3)], [1, 20, 500, 4000][random.random_range(0..4)]);
    let key = key.replace("{}", &format!("((value * {factor}) % {spread})"));
    let nulls = [0, 3, 50][random.random_range(0..3)];
    let key = if nulls == 0 { key } else { format!("CASE WHEN value % {nulls} = 1 THEN NULL ELSE {key} END") };
    let count = [0, 1, most / 10, most][random.random_range(0..4)];
    let rows = |first: usize, last: usize| {
        format!("SELECT value AS id, {key} AS k, value % 5 AS g, value % 17 AS v FROM generate_series({first}, {last})")
    };
    let more = count + random.random_range(0..=count);
    [format!("CREATE TABLE {name} AS {}", rows(1, count)), format!("INSERT INTO {name} {}", rows(count + 1, more))]
}

impl Case {
    pub fn joining(number: u64) -> Self {
        let random = &mut StdRng::seed_from_u64(number);
        let key = *KEYS.choose(random).unwrap();
        let (query, can_look_up) = *JOINS.choose(random).unwrap();
        let filtered = "(SELECT id, k, g, v FROM r WHERE v > 4) AS r";
        let on =
            *["s.k = r.k", "s.k = r.k", "s.k = r.k AND s.g = r.g", "r.g = s.g AND r.k = s.k"].choose(random).unwrap();
        let is_filtered = random.random_bool(0.3);
        let query = query.replace("{r}", if is_filtered { filtered } else { "r" }).replace("{on}", on);
        Self::random(random, key, query, can_look_up)
    }

    fn filtering(number: u64) -> Self {
        let random = &mut StdRng::seed_from_u64(number);
        let key = *KEYS.choose(random).unwrap();
        let (filter, can_look_up) = *FILTERS.choose(random).unwrap();
        let filter = ["{a}", "{b}", "{c}", "{d}", "{e}"].into_iter().fold(filter.to_owned(), |filter, name| {
            filter.replace(name, &key.replace("{}", &random.random_range(0..600).to_string()))
        });
        let query = FILTERED.choose(random).unwrap().replace("{p}", &filter);
        Self::random(random, key, query, can_look_up)
    }

    fn random(random: &mut StdRng, key: &str, query: String, can_look_up: bool) -> Self {
        let [r, insert] = table(random, "r", 5000, key);
        let most = [30, 700][random.random_range(0..2)];
        let [s, _] = table(random, "s", most, key);
        let index = format!("CREATE INDEX ON r {} (k)", KINDS.choose(random).unwrap());
        let mut settings = Settings::random(random, 200);
        // Rows of a table in memory are checked in batches of this size.
        settings.batch_size = *[7, 100, 8192].choose(random).unwrap();
        if settings.strategy == Choice(Some(Strategy::Hybrid)) {
            settings.strategy = Choice::AUTO;
        }
        // Little more than what each stream needs.
        let little = Memory::JoinLimit(300_000 * (settings.target_partitions + 1));
        let memory = *[Memory::Ample, Memory::Ample, little].choose(random).unwrap();
        let indexes = *["always", "always", "auto"].choose(random).unwrap();
        let insert = random.random_bool(0.5).then_some(insert);
        Self { tables: vec![r, s], index, insert, query, can_look_up, settings, memory, indexes }
    }

    /// The same with a GPU, on which all keys are looked up that are.
    pub fn on_gpu(mut self, device: Device, strategy: Choice<Strategy>) -> Self {
        (self.settings.device, self.settings.strategy) = (Some(device), strategy);
        self.indexes = "always";
        self
    }

    /// The same with `r` in Parquet files or in Arrow files of a folder.
    fn in_files(mut self, number: u64, folder: &str) -> Self {
        let random = &mut StdRng::seed_from_u64(number);
        let s = self.tables.pop().unwrap();
        let of_files = [
            format!("SET datafusion.execution.parquet.max_row_group_size = {}", [50, 1000].choose(random).unwrap()),
            format!(
                "SET datafusion.execution.parquet.data_page_row_count_limit = {}",
                [7, 5000].choose(random).unwrap()
            ),
            "SET datafusion.execution.parquet.write_batch_size = 7".to_owned(),
            format!("SET datafusion.optimizer.repartition_file_min_size = {}", [0, 10 << 20].choose(random).unwrap()),
            format!("SET datafusion.execution.collect_statistics = {}", random.random_bool(0.7)),
        ];
        self.tables.extend(of_files);
        let format = *["parquet", "parquet", "arrow"].choose(random).unwrap();
        let parts = random.random_range(1..4);
        for part in 0..parts {
            let rows = format!("SELECT * FROM r WHERE id % {parts} = {part} ORDER BY id");
            self.tables.push(format!("COPY ({rows}) TO '{folder}/part {part}.{format}' STORED AS {format}"));
        }
        self.tables.push("DROP TABLE r".to_owned());
        self.tables.push(format!("CREATE EXTERNAL TABLE r STORED AS {format} LOCATION '{folder}/'"));
        self.tables.push(s);
        self.insert = None;
        self.index += ["", " INCLUDE (v)", " INCLUDE (v, g, id)", " INCLUDE (id, g, v)"].choose(random).unwrap();
        self
    }

    /// The query in the dialect of DuckDB, which has neither all joins nor all casts.
    fn in_duckdb(&self) -> Option<String> {
        let is_unknown = ["RIGHT SEMI", "RIGHT ANTI", "arrow_cast"].iter().any(|words| self.query.contains(words));
        let in_duckdb = || self.query.replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI");
        (!is_unknown).then(in_duckdb)
    }

    /// Adds the case for DuckDB to check, if it can. Returns whether it was added.
    async fn export(&self, number: u64, session: &Session, answer: &Answer, export: &Export) -> Result<bool> {
        let Some(query) = self.in_duckdb() else { return Ok(false) };
        let mut tables = Vec::new();
        for name in ["r", "s"] {
            let rows = session.ctx.table(name).await?;
            tables.push((name.to_owned(), Arc::clone(rows.schema().inner()), rows.collect().await?));
        }
        let tables = tables.iter().map(|(name, schema, rows)| (name.clone(), schema, &rows[..]));
        let again = format!("OVERSPILL_TEST_CASES={} and the test that failed", number + 1);
        export.add(number, &again, &query, tables, answer)?;
        Ok(true)
    }

    /// The answer of an engine, the plan that has given it, and the session.
    async fn answer(&self, engine: Engine, indexes: Option<&str>) -> (Answer, Arc<dyn ExecutionPlan>, Session) {
        let session = Session::open(engine, &self.settings, self.memory).unwrap();
        let ctx = &session.ctx;
        let mut statements = self.tables.clone();
        if let Some(indexes) = indexes {
            statements.push("DROP INDEX IF EXISTS r_k_idx".to_owned());
            statements.push(self.index.clone());
            statements.push(format!("SET overspill.indexes = {indexes}"));
        }
        statements.extend(self.insert.clone());
        for statement in statements {
            let ran = match engine {
                Engine::Stock => ctx.sql(&statement).await.unwrap().collect().await,
                _ => sql::sql(ctx, &statement).await.unwrap().collect().await,
            };
            ran.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        let plan = ctx.sql(&self.query).await.unwrap().create_physical_plan().await.unwrap();
        let rows = collect(plan.clone(), ctx.task_ctx()).await.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        (Answer::new(plan.schema(), rows).unwrap(), plan, session)
    }
}

/// Runs random cases. Returns how many of those in which rows must be looked up there are, and in how many they were, as this metric
/// tells.
pub(crate) async fn agree(cases: u64, case: impl Fn(u64) -> Case, lookups: &str) -> (usize, usize) {
    let asked = std::env::var("OVERSPILL_TEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases: u64 = asked.unwrap_or(cases);
    let python = std::env::var_os("OVERSPILL_PYTHON").map(PathBuf::from);
    let export = Export::new().unwrap();
    let (mut eligible, mut looked_up, mut exported) = (0, 0, 0);
    for number in 0..cases {
        let case = case(number);
        let (stock, ..) = case.answer(Engine::Stock, None).await;
        let (scanned, none, _) = case.answer(Engine::Overspill, Some("never")).await;
        let (found, plan, session) = case.answer(Engine::Overspill, Some(case.indexes)).await;
        assert_eq!(metric(&none, lookups), 0, "case {number}: {case:?}");
        for (name, other) in [("stock", &stock), ("never", &scanned)] {
            if let Some(difference) = found.difference(other) {
                panic!("case {number} against {name}: {difference}\n{case:?}");
            }
        }
        let lookups = metric(&plan, lookups);
        assert!(case.can_look_up || lookups == 0, "case {number}: {case:?}");
        let must = case.can_look_up && case.indexes == "always";
        eligible += usize::from(must);
        looked_up += usize::from(must && lookups > 0);
        if python.is_some() {
            exported += usize::from(case.export(number, &session, &found, &export).await.unwrap());
        }
    }
    if let Some(python) = python {
        assert_eq!(export.check(&python).unwrap_or_else(|failure| panic!("{failure}")), exported);
        assert!(exported > 0 || cases == 0, "DuckDB knows none of {cases} queries");
    }
    (eligible, looked_up)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_joins_agree() {
    let (eligible, looked_up) = agree(300, Case::joining, "index_joins").await;
    // Without rows on the other side nothing is read, and keys beyond a small memory limit are not kept.
    assert!(looked_up * 2 > eligible, "{looked_up} of {eligible}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_filters_agree() {
    let (eligible, looked_up) = agree(300, Case::filtering, "index_lookups").await;
    // Tables without rows are not scanned, and where statistics decide, there is no filter.
    assert!(looked_up * 4 > eligible * 3, "{looked_up} of {eligible}");
}

/// Files of a folder, which goes with the case.
async fn agree_in_files(case: impl Fn(u64) -> Case, lookups: &str) -> (usize, usize) {
    let folder = tempfile::tempdir().unwrap();
    let in_files = |number| {
        let folder = folder.path().join(format!("table {number}"));
        std::fs::create_dir(&folder).unwrap();
        case(number).in_files(number, folder.to_str().unwrap())
    };
    agree(150, in_files, lookups).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_joins_of_files_agree() {
    let (eligible, looked_up) = agree_in_files(Case::joining, "index_joins").await;
    assert!(looked_up * 2 > eligible, "{looked_up} of {eligible}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_filters_of_files_agree() {
    let (eligible, looked_up) = agree_in_files(Case::filtering, "index_lookups").await;
    assert!(looked_up * 2 > eligible, "{looked_up} of {eligible}");
}
