//! Ranks on threads, tables for them, and a session without ranks.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use overspill::{OverspillConfig, OverspillSessionExt};
use overspill_exchange::Topology;
use overspill_exchange::transport::{Network, in_process};
use overspill_ranks::{Leader, refuse, serve};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Memory of a session, so that it has the rules for limited memory.
const MEMORY: usize = 1 << 30;

fn builder(lanes: usize) -> SessionStateBuilder {
    let config = SessionConfig::new().with_target_partitions(lanes).with_information_schema(true);
    let environment = RuntimeEnvBuilder::new().with_memory_limit(MEMORY, 1.0).build_arc().unwrap();
    SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_runtime_env(environment)
        .with_overspill(OverspillConfig::default())
}

fn build(builder: SessionStateBuilder) -> SessionState {
    let mut state = builder.build();
    overspill::files::register(&mut state).unwrap();
    state
}

/// A session without ranks.
pub fn alone() -> SessionContext {
    SessionContext::new_with_state(build(builder(2)))
}

/// How ranks are arranged.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub ranks: usize,
    pub ranks_per_node: usize,
    pub lanes: usize,
}

/// Ranks that run queries.
pub struct Ranks {
    pub context: SessionContext,
    leader: Arc<Leader>,
    others: Vec<JoinHandle<Result<()>>>,
}

impl Ranks {
    /// Starts ranks, with a network between them.
    pub fn start(shape: Shape, network: Option<Network>) -> Self {
        Self::start_with(shape, network, None)
    }

    /// Starts ranks, of which the last runs no query, for this reason.
    pub fn start_with(shape: Shape, network: Option<Network>, refusal: Option<&'static str>) -> Self {
        let topology = Topology::of_nodes(shape.ranks, NonZeroUsize::new(shape.ranks_per_node).unwrap().get()).unwrap();
        let mut endpoints = in_process(&Arc::new(topology), network).into_iter();
        let leader = Arc::new(Leader::new(endpoints.next().unwrap()));
        let others = endpoints.map(|endpoint| {
            let refusal = refusal.filter(|_| endpoint.rank() + 1 == shape.ranks);
            std::thread::spawn(move || {
                let state = build(builder(shape.lanes));
                runtime().block_on(async {
                    match refusal {
                        Some(cause) => refuse(&endpoint, cause).await,
                        None => serve(&endpoint, &state).await,
                    }
                })
            })
        });
        let others = others.collect();
        let context = SessionContext::new_with_state(build(leader.extend(builder(shape.lanes))));
        Self { context, leader, others }
    }

    /// Ends all ranks.
    pub async fn end(self) {
        self.leader.end().await.unwrap();
        for rank in self.others {
            tokio::task::spawn_blocking(move || rank.join().unwrap().unwrap()).await.unwrap();
        }
    }
}

/// The rows of a query, as texts. They are sorted unless the query sorts them.
pub async fn rows(context: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let batches = context.sql(sql).await?.collect().await?;
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = vec![];
    for batch in &batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        rows.extend(
            (0..batch.num_rows())
                .map(|row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|")),
        );
    }
    if !sql.contains("ORDER BY 1") {
        rows.sort();
    }
    Ok(rows)
}

/// Tables in files: `orders` and `lines` in several, `small` in one.
pub struct Tables(pub TempDir);

impl Tables {
    pub async fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let context = alone();
        let write = async |name: &str, part: usize, sql: String| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            let file = path.join(format!("{part}.parquet"));
            let sql = format!("COPY ({sql}) TO '{}' STORED AS PARQUET", file.display());
            context.sql(&sql).await.unwrap().collect().await.unwrap();
        };
        for part in 0..7 {
            let (begin, end) = (part * 400, part * 400 + 400);
            let orders = format!(
                "SELECT value AS o_key, CASE WHEN value % 11 = 0 THEN NULL ELSE value % 97 END AS o_customer, \
                 'order ' || (value % 500) AS o_text, CAST(value % 31 AS DOUBLE) / 2 AS o_price, \
                 arrow_cast('p' || (value % 5), 'Dictionary(Int32, Utf8)') AS o_priority \
                 FROM range({begin}, {end})"
            );
            write("orders", part as usize, orders).await;
        }
        for part in 0..5 {
            let (begin, end) = (part * 1500, part * 1500 + 1500);
            let lines = format!(
                "SELECT CASE WHEN value % 13 = 0 THEN NULL ELSE (value * 7) % 3500 END AS l_key, value AS l_number, \
                 value % 50 AS l_quantity, 'order ' || (value % 700) AS l_text, CAST(value % 97 AS DECIMAL(10, 2)) AS l_price \
                 FROM range({begin}, {end})"
            );
            write("lines", part as usize, lines).await;
        }
        write("small", 0, "SELECT value AS s_key, 'name ' || value AS s_name FROM range(0, 60)".to_owned()).await;
        write("nothing", 0, "SELECT value AS n_key, 'x' AS n_text FROM range(0, 5) WHERE value > 7".to_owned()).await;
        Self(folder)
    }

    pub async fn register(&self, context: &SessionContext) {
        for table in ["orders", "lines", "small", "nothing"] {
            let path = self.0.path().join(table);
            register(context, table, &path).await;
        }
    }
}

pub async fn register(context: &SessionContext, table: &str, path: &Path) {
    context.register_parquet(table, path.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
}
