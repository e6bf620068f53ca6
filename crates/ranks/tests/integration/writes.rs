//! Each rank writes its own rows, and all files are in place or none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overspill_exchange::transport::Network;

use crate::harness::{Ranks, Shape, Tables, alone, rows, runtime};

const SHAPE: Shape = Shape { ranks: 3, ranks_per_node: 2, lanes: 2 };

const JOIN: &str = "SELECT o_key, l_number, l_text, o_price, l_quantity FROM orders LEFT JOIN lines ON o_key = l_key";

/// All files below a folder, the hidden ones too.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// What is hidden in a folder: it would be of a statement that has left something.
fn hidden(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with('.')).collect()
}

#[test]
fn each_rank_writes_a_file() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start(SHAPE, None);
        let single = alone();
        tables.register(&ranks.context).await;
        tables.register(&single).await;
        let expected = rows(&single, JOIN).await.unwrap();
        for format in ["PARQUET", "CSV", "JSON"] {
            let folder = tables.0.path().join(format.to_ascii_lowercase());
            let copy = format!("COPY ({JOIN}) TO '{}/' STORED AS {format}", folder.display());
            for (options, refused) in [("", false), ("", true), (" OPTIONS (overwrite true)", false)] {
                let written = rows(&ranks.context, &format!("{copy}{options}")).await;
                if refused {
                    let error = written.unwrap_err().to_string();
                    assert!(error.contains("there are files in it already"), "{error}");
                } else {
                    assert_eq!(written.unwrap(), [expected.len().to_string()], "{format}{options}");
                }
                assert_eq!(files(&folder).len(), SHAPE.ranks, "{format}{options}: {:?}", files(&folder));
                assert_eq!(hidden(tables.0.path()), Vec::<PathBuf>::new());
            }
            let table = format!("CREATE EXTERNAL TABLE {format} STORED AS {format} LOCATION '{}/'", folder.display());
            rows(&single, &table).await.unwrap();
            let written = format!("SELECT o_key, l_number, l_text, o_price, l_quantity FROM {format}");
            assert_eq!(rows(&single, &written).await.unwrap(), expected, "{format}");
        }
        ranks.end().await;
    });
}

#[test]
fn plans_show_who_writes() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start(SHAPE, None);
        tables.register(&ranks.context).await;
        let explained = async |query: &str, place: &str| {
            let folder = tables.0.path().display();
            let sql = format!("EXPLAIN COPY ({query}) TO '{folder}/{place}' STORED AS PARQUET -- ORDER BY 1");
            rows(&ranks.context, &sql).await.unwrap().join("\n")
        };
        let plan = explained(JOIN, "out/").await;
        assert!(plan.contains("RankCommitExec") && plan.contains("RankStageExec"), "{plan}");
        // One file, rows in an order, and metadata, which do not travel, are of the first rank.
        let sorted = "SELECT o_key, o_text FROM orders ORDER BY o_text";
        let with_metadata = "out/' STORED AS PARQUET OPTIONS ('format.metadata::who' 'me') -- ";
        for (query, place) in [(JOIN, "out.parquet"), (sorted, "out/"), (JOIN, with_metadata)] {
            let plan = explained(query, place).await;
            assert!(plan.contains("WriteAsideExec") && plan.contains("RankQueryExec"), "{plan}");
        }
        let analyzed =
            format!("EXPLAIN ANALYZE COPY ({JOIN}) TO '{}/out/' STORED AS PARQUET", tables.0.path().display());
        let plan = rows(&ranks.context, &analyzed).await.unwrap().join("\n");
        assert!(plan.contains("RankCommitExec") && plan.contains("RankShuffleExec"), "{plan}");
        assert_eq!(files(&tables.0.path().join("out")).len(), SHAPE.ranks);
        ranks.end().await;
    });
}

#[test]
fn folders_of_partitions_and_tables_are_written_by_all() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start(SHAPE, None);
        let single = alone();
        tables.register(&ranks.context).await;
        tables.register(&single).await;
        let folder = tables.0.path().join("parts");
        let select = "SELECT l_number, l_quantity % 3 AS part FROM lines";
        let copy = format!("COPY ({select}) TO '{}/' STORED AS PARQUET PARTITIONED BY (part)", folder.display());
        assert_eq!(rows(&ranks.context, &copy).await.unwrap(), ["7500"]);
        assert_eq!(files(&folder).len(), 3 * SHAPE.ranks);
        let table = format!(
            "CREATE EXTERNAL TABLE parts (l_number BIGINT, part BIGINT) STORED AS PARQUET PARTITIONED BY (part) LOCATION '{}/'",
            folder.display()
        );
        rows(&single, &table).await.unwrap();
        let expected = rows(&single, select).await.unwrap();
        assert_eq!(rows(&single, "SELECT l_number, part FROM parts").await.unwrap(), expected);

        let folder = tables.0.path().join("inserted");
        fs::create_dir(&folder).unwrap();
        let table = format!(
            "CREATE EXTERNAL TABLE inserted (a BIGINT, b BIGINT) STORED AS PARQUET LOCATION '{}/'",
            folder.display()
        );
        rows(&ranks.context, &table).await.unwrap();
        for times in 1..3 {
            let insert = format!("INSERT INTO inserted {select}");
            assert_eq!(rows(&ranks.context, &insert).await.unwrap(), ["7500"]);
            assert_eq!(files(&folder).len(), times * SHAPE.ranks);
            let count = rows(&ranks.context, "SELECT count(*), count(DISTINCT a), sum(a) FROM inserted").await.unwrap();
            assert_eq!(count, [format!("{}|7500|{}", 7500 * times, times * 7500 * 7499 / 2)]);
        }
        ranks.end().await;
    });
}

#[test]
fn a_failed_or_cancelled_statement_leaves_nothing() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let network = Network { seed: 3, most_delay: Duration::from_millis(2), ..Network::default() };
        let ranks = Ranks::start(SHAPE, Some(network));
        tables.register(&ranks.context).await;
        let folder = tables.0.path().join("out");
        let copy = |select: &str| {
            format!("COPY ({select}) TO '{}/' STORED AS PARQUET OPTIONS (overwrite true)", folder.display())
        };
        assert_eq!(rows(&ranks.context, &copy("SELECT l_number FROM lines")).await.unwrap(), ["7500"]);
        let before = files(&folder);
        // The last file of the last rank has the row.
        let failing = copy("SELECT 1 / (l_number - 7400) FROM lines");
        let error = rows(&ranks.context, &failing).await.unwrap_err().to_string();
        assert!(error.contains("rank 2: ") && error.to_lowercase().contains("divide by zero"), "{error}");
        assert_eq!(files(&folder), before);
        let (mut finished, mut stopped) = (0, 0);
        for step in 0..40 {
            let statement = copy(JOIN);
            let query = rows(&ranks.context, &statement);
            let outcome = tokio::time::timeout(Duration::from_millis(step * 3), query).await;
            // All files are of one statement, whichever that was.
            assert_eq!(files(&folder).len(), SHAPE.ranks, "after {step}: {outcome:?}, {:?}", files(&folder));
            match outcome {
                Ok(written) => {
                    written.unwrap();
                    finished += 1;
                }
                Err(_) => stopped += 1,
            }
        }
        assert!(stopped > 0, "{finished} statements ended");
        // Ranks remove what they have written after they learn of the end.
        for _ in 0..100 {
            if hidden(tables.0.path()).is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(hidden(tables.0.path()), Vec::<PathBuf>::new());
        ranks.end().await;
    });
}
