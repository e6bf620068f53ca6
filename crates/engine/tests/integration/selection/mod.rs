//! Filters with aggregates above them: random columns and queries give the answers of stock DataFusion, each way.

mod case;
mod nodes;
mod plans;

use datafusion::common::DataFusionError;
use overspill::{Choice, Selection};
use rand::SeedableRng;
use rand::rngs::StdRng;

pub use case::Case;

use crate::harness::plan::SelectionReport;
use crate::harness::run::{Run, is_broken};
use crate::harness::session::{Device, Engine, Memory, Session, Settings};

/// Runs a case on an engine.
pub async fn run(case: &Case, engine: Engine, choice: Choice<Selection>, device: Option<Device>) -> Run {
    let settings = Settings { target_partitions: case.partitions, batch_size: 1000, device, ..Settings::default() };
    let session = Session::open(engine, &settings, Memory::Ample).unwrap();
    if engine != Engine::Stock {
        session.ctx.sql(&format!("SET overspill.selection = {choice}")).await.unwrap();
    }
    session.ctx.register_table("t", case.table()).unwrap();
    let run = Run::of(&session.ctx, session.ctx.sql(&case.sql).await).await;
    assert_eq!(session.leftovers().await, None, "{}", case.sql);
    run
}

/// Says how a run differs from another, which may fail as well: products and sums can overflow.
pub fn difference(run: &Run, expected: &Run) -> Option<String> {
    match (&run.answer, &expected.answer) {
        (Ok(answer), Ok(expected)) => answer.difference(expected),
        // Which of the products that overflow is named is a matter of which partition comes first.
        (Err(error), Err(expected)) if !is_broken(error) && kind(error) == kind(expected) => None,
        (Err(error), _) => Some(error.to_string()),
        (Ok(_), Err(error)) => Some(format!("an answer, where {error} is expected")),
    }
}

fn kind(error: &DataFusionError) -> String {
    let text = error.to_string();
    // Behind it is what the range is of.
    let text = text.split_once("is beyond").map_or(text.as_str(), |(_, range)| range);
    text.split("Overflow happened on").next().unwrap_or_default().to_owned()
}

/// What a table of the given seeds tells, of all queries together.
pub async fn run_cases(
    seeds: std::ops::Range<u64>,
    choices: &[Choice<Selection>],
    device: impl Fn(u64) -> Option<Device>,
) -> SelectionReport {
    let mut all = SelectionReport::default();
    for seed in seeds {
        let case = Case::random(&mut StdRng::seed_from_u64(seed));
        let expected = run(&case, Engine::Overspill, Choice(Some(Selection::Off)), None).await;
        // Where integers overflow, DataFusion goes on.
        if expected.answer.is_ok() {
            let stock = run(&case, Engine::Stock, Choice(Some(Selection::Off)), None).await;
            assert_eq!(difference(&expected, &stock), None, "case {seed}: {}", case.sql);
        }
        for choice in choices {
            let run = run(&case, Engine::Overspill, *choice, device(seed)).await;
            let what = format!("case {seed}, {choice}: {}\n{}", case.sql, run.plan);
            assert_eq!(difference(&run, &expected), None, "{what}");
            all.merge(&run.report.selection);
        }
    }
    all
}

const EACH_WAY: [Choice<Selection>; 3] =
    [Choice::AUTO, Choice(Some(Selection::Branching)), Choice(Some(Selection::Predicated))];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_selections_agree() {
    let report = run_cases(0..300, &EACH_WAY, |_| None).await;
    println!("{report:?}");
    // Of MIN and MAX alone a few stay DataFusion's; all others are fused.
    assert!(report.nodes > 700, "{report:?}");
    assert!(report.selected_rows > 20_000 && report.selected_rows < report.input_rows / 2, "{report:?}");
    assert!(report.unfused_rows > 0 && report.unfused_rows < report.input_rows / 10, "{report:?}");
    assert!(report.branching_batches > 100 && report.predicated_batches > 100, "{report:?}");
    assert_eq!(report.gpu_rows, 0);
}
