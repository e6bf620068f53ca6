//! Orders by samples of Parquet files.

use std::path::Path;

use tempfile::TempDir;

use super::{joins, run};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// The table `facts`, and the tables `ones` and `twos` that it refers to. Statistics say nothing of their texts. The query wants few rows of `twos`.
const FILES: [(&str, &str); 3] = [
    ("facts", "SELECT value AS f, value % 20000 AS one, value % 19997 AS two FROM range(200000)"),
    ("ones", "SELECT value AS o, value / 7 AS w, concat('one of ', value) AS name FROM range(20000)"),
    (
        "twos",
        "SELECT value AS t, concat('two of ', value) AS name, CASE WHEN value % 3 = 0 THEN NULL ELSE value % 100 = 5 END AS flag, \
         CAST(value % 1000 AS DECIMAL(12, 2)) AS price, CAST(DATE '2020-01-01' + CAST(value % 900 AS INT) AS DATE) AS day, \
         named_struct('inner', value % 50) AS s FROM range(20000)",
    ),
];

const QUERY: &str = "SELECT count(*), sum(w), max(twos.name) FROM facts JOIN ones ON one = o JOIN twos ON two = t \
                     WHERE ones.name LIKE '%of%' AND twos.name LIKE '%77%'";

/// A session over the files. `rows` is its setting `overspill.sampled_rows`.
async fn sampling(folder: &Path, rows: usize) -> Session {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    run(&session, &format!("SET overspill.sampled_rows = {rows}")).await.answer.unwrap();
    for (name, sql) in FILES {
        let path = folder.join(name).with_extension("parquet");
        if !path.exists() {
            run(&session, &format!("COPY ({sql}) TO '{}'", path.display())).await.answer.unwrap();
        }
        let table = format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{}'", path.display());
        run(&session, &table).await.answer.unwrap();
    }
    session
}

#[tokio::test]
async fn samples_tell_what_statistics_do_not() {
    let folder = TempDir::new().unwrap();
    let (sampled, unsampled) = (sampling(folder.path(), 32768).await, sampling(folder.path(), 0).await);
    // Without samples both texts pass as many rows, and the order stays.
    assert!(joins(&unsampled, QUERY).await[1].contains("o@"), "{:?}", joins(&unsampled, QUERY).await);
    assert!(joins(&sampled, QUERY).await[1].contains("t@"), "{:?}", joins(&sampled, QUERY).await);
    let (sampled, unsampled) = (run(&sampled, QUERY).await, run(&unsampled, QUERY).await);
    assert_eq!(sampled.answer.unwrap().difference(&unsampled.answer.unwrap()), None);
}

#[tokio::test]
async fn a_part_of_a_table_tells_as_well_and_again_when_the_file_is_another() {
    let folder = TempDir::new().unwrap();
    let session = sampling(folder.path(), 4096).await;
    assert!(joins(&session, QUERY).await[1].contains("t@"), "{:?}", joins(&session, QUERY).await);
    let twos = folder.path().join("twos.parquet");
    let other = "SELECT value AS t, concat('two of 77 ', value) AS name FROM range(20000)";
    run(&session, &format!("COPY ({other}) TO '{}'", twos.display())).await.answer.unwrap();
    let session = sampling(folder.path(), 4096).await;
    assert!(joins(&session, QUERY).await[1].contains("o@"), "{:?}", joins(&session, QUERY).await);
}

#[tokio::test]
async fn filters_of_all_kinds_give_the_same_rows_with_samples_and_without() {
    let folder = TempDir::new().unwrap();
    let sessions =
        [sampling(folder.path(), 0).await, sampling(folder.path(), 1).await, sampling(folder.path(), 50).await];
    let all = sampling(folder.path(), usize::MAX).await;
    for filter in [
        "flag",
        "flag IS NULL",
        "NOT flag",
        "price BETWEEN 3 AND 5.5 AND day > DATE '2021-03-01'",
        "s['inner'] = 7",
        "name < 'two of 3' OR price = 1",
        "1000 / (t - 3) > 500",
        "random() < 2",
        "t > (SELECT max(o) - 10 FROM ones)",
    ] {
        let sql = format!(
            "SELECT count(*), sum(w), min(twos.name) FROM facts JOIN ones ON one = o JOIN twos ON two = t WHERE o > 5 AND {}",
            filter.replace("name", "twos.name")
        );
        let expected = run(&all, &sql).await.answer;
        for session in &sessions {
            match (&expected, run(session, &sql).await.answer) {
                (Ok(expected), Ok(answer)) => assert_eq!(answer.difference(expected), None, "{sql}"),
                (Err(_), Err(_)) => assert!(filter.starts_with("1000"), "{sql}"),
                (expected, answer) => panic!("{sql}: {:?} and {:?}", expected.as_ref().err(), answer.err()),
            }
        }
    }
}

/// A file that has changed since its table was made is no reason for a query to fail while it is planned.
#[tokio::test]
async fn files_that_cannot_be_sampled_are_planned_without() {
    let folder = TempDir::new().unwrap();
    let session = sampling(folder.path(), 32768).await;
    let twos = folder.path().join("twos.parquet");
    let bytes = std::fs::read(&twos).unwrap();
    std::fs::write(&twos, vec![b'x'; bytes.len()]).unwrap();
    assert!(run(&session, QUERY).await.answer.is_err());
    std::fs::write(&twos, bytes).unwrap();
    let session = sampling(folder.path(), 0).await;
    assert!(run(&session, QUERY).await.answer.is_ok());
}
