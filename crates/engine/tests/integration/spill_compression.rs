//! Spill files of compressed blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;

use datafusion::common::Result;
use datafusion::physical_plan::{collect, execute_stream};
use futures::StreamExt;
use overspill::{BlockCompression, Choice};

use crate::harness::fixture::{JOINS, Size, register, settings};
use crate::harness::plan::PlanReport;
use crate::harness::rows::Answer;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// A session with tables whose join spills, on one thread.
fn session(blocks: Choice<BlockCompression>, partitioned: bool) -> Session {
    let settings = Settings { spill_blocks: blocks, max_fanout: 8, batch_size: 8192, ..settings(1, partitioned) };
    let session = Session::open(Engine::Overspill, &settings, Memory::JoinLimit(700_000)).unwrap();
    register(&session.ctx, Size::SPILLING, 1).unwrap();
    session
}

/// The rows of a query, and what its joins wrote.
async fn run(session: &Session, sql: &str) -> Result<(Answer, PlanReport)> {
    let plan = session.ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(plan.clone(), session.ctx.task_ctx()).await?;
    let report = PlanReport::of(&plan);
    Ok((Answer::new(plan.schema(), batches)?, report))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_take_fewer_bytes_and_give_the_same_rows() {
    for (name, sql, partitioned) in JOINS {
        let mut runs = vec![];
        for blocks in [BlockCompression::Off.into(), BlockCompression::Cascaded.into(), Choice::AUTO] {
            let session = session(blocks, partitioned);
            runs.push(run(&session, sql).await.unwrap_or_else(|error| panic!("{name}, {blocks}: {error}")));
            assert_eq!(session.leftovers_of_joins().await, None, "{name}, {blocks}");
        }
        let [(expected, off), others @ ..] = &runs[..] else { unreachable!() };
        assert!(off.spilled_bytes > 100_000, "{name}: {off:?}");
        for (answer, report) in others {
            assert_eq!(answer.difference(expected), None, "{name}");
            // Batches that are read back have other capacities, so that a partition more or fewer is partitioned again.
            let rows = report.spilled_rows as f64 / off.spilled_rows as f64;
            assert!((0.8..1.25).contains(&rows), "{name}: {} and {} rows", report.spilled_rows, off.spilled_rows);
        }
        let row_bytes = |report: &PlanReport| report.spilled_bytes as f64 / report.spilled_rows as f64;
        let (cascaded, off) = (row_bytes(&others[0].1), row_bytes(off));
        assert!(cascaded < 0.6 * off, "{name}: {cascaded} and {off} bytes of a row");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_change_on_the_disk_are_noticed() {
    let session = session(BlockCompression::Cascaded.into(), true);
    let sql = "SELECT * FROM a FULL JOIN b ON a_k = b_k";
    let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let mut rows = execute_stream(plan, session.ctx.task_ctx()).unwrap();
    rows.next().await.unwrap().unwrap();
    let files = session.files_left();
    assert!(!files.is_empty());
    for file in files {
        let file = File::options().write(true).read(true).open(file).unwrap();
        let mut byte = [0];
        for place in (50..file.metadata().unwrap().len()).step_by(1000) {
            file.read_exact_at(&mut byte, place).unwrap();
            file.write_all_at(&[byte[0] ^ 4], place).unwrap();
        }
    }
    let error = loop {
        match rows.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error.to_string(),
            None => panic!("no error"),
        }
    };
    assert!(error.contains("A spill file has changed since it was written: compressed data is damaged"), "{error}");
    drop(rows);
    assert_eq!(session.leftovers().await, None);
}

#[tokio::test]
async fn the_setting_names_its_values() {
    let session = session(Choice::AUTO, false);
    let error = session.ctx.sql("SET overspill.spill_compression = 'lz4_frame'").await.unwrap_err().to_string();
    assert!(error.contains("overspill.spill_compression = 'lz4_frame' is none of: auto, cascaded, off"), "{error}");
}
