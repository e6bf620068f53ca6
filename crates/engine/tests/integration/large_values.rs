//! Joins of tables in which a single value is large: output batches stay small, whoever of the sides has the value and however
//! many partners its row has.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, ListArray, RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::{displayable, execute_stream};
use futures::StreamExt;
use overspill_join::memory::{MAX_COPY_BYTES, copied_bytes};

use crate::harness::session::{Engine, Memory, Session, Settings};

/// Rows of `big`, of which the row `LARGE` alone has a large value, and of `many`, with all of which it is joined.
const ROWS: i64 = 6_000;
const LARGE: i64 = 17;
const PARTNERS: i64 = 2_200;

/// Texts; one is large.
fn texts(bytes: usize) -> StringArray {
    let text = |row| if row == LARGE { "x".repeat(bytes) } else { format!("t{row}") };
    StringArray::from_iter_values((0..ROWS).map(text))
}

fn values(kind: &str, bytes: usize) -> ArrayRef {
    let texts = texts(bytes);
    let field = Arc::new(Field::new("t", DataType::Utf8, true));
    match kind {
        "text" => Arc::new(texts),
        "large text" => cast(&texts, &DataType::LargeUtf8).unwrap(),
        "view" => Arc::new(StringViewArray::from_iter_values(texts.iter().flatten())),
        "list" => {
            let offsets = OffsetBuffer::from_lengths(vec![1; texts.len()]);
            Arc::new(ListArray::new(field, offsets, Arc::new(texts), None))
        }
        "structure" => Arc::new(StructArray::from(vec![(field, Arc::new(texts) as ArrayRef)])),
        _ => panic!("there is no {kind}"),
    }
}

/// `big`: the row's number `i`, the number `k` of its neighbourhood of four rows, and the value `v`. `many`: numbers from
/// 10,000, the neighbourhood of the large value, and its first and last row.
fn session(kind: &str, bytes: usize, memory: Memory) -> Session {
    let settings = Settings { batch_size: 8_192, join_reordering: false, ..Settings::default() };
    let session = Session::open(Engine::Overspill, &settings, memory).unwrap();
    let number = |of: &dyn Fn(i64) -> i64, rows| Arc::new(Int64Array::from_iter_values((0..rows).map(of))) as ArrayRef;
    let of_large = |value| number(&move |_| value, PARTNERS);
    let big = [("i", number(&|row| row, ROWS)), ("k", number(&|row| row / 4, ROWS)), ("v", values(kind, bytes))];
    let many = [
        ("j", number(&|row| 10_000 + row, PARTNERS)),
        ("n", of_large(LARGE / 4)),
        ("low", of_large(LARGE / 4 * 4)),
        ("high", of_large(LARGE / 4 * 4 + 3)),
    ];
    for (name, columns) in [("big", big.to_vec()), ("many", many.to_vec())] {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let partitions = (0..batch.num_rows()).step_by(1_500);
        let batches = partitions.map(|start| batch.slice(start, 1_500.min(batch.num_rows() - start))).collect();
        session.ctx.register_table(name, Arc::new(MemTable::try_new(batch.schema(), vec![batches]).unwrap())).unwrap();
    }
    session
}

/// Runs a query of `i` and `j`, which asks for `v` as well, and gives the number of its rows and the sums of both.
async fn checked(session: &Session, sql: &str, node: &str, bytes: usize) -> (usize, i64, i64) {
    let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let text = displayable(plan.as_ref()).indent(false).to_string();
    assert!(text.contains(node), "{sql}: {text}");
    let mut stream = execute_stream(plan, session.ctx.task_ctx()).unwrap();
    let (mut rows, mut sums) = (0, [0, 0]);
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let took = copied_bytes(&batch);
        assert!(took <= MAX_COPY_BYTES + 2 * bytes, "{sql}: {} rows of {took} bytes", batch.num_rows());
        rows += batch.num_rows();
        for (sum, name) in sums.iter_mut().zip(["i", "j"]) {
            let column = batch.column_by_name(name).unwrap().as_primitive::<Int64Type>();
            *sum += column.iter().flatten().sum::<i64>();
        }
    }
    drop(stream);
    assert_eq!(session.leftovers_of_joins().await, None, "{sql}");
    (rows, sums[0], sums[1])
}

const RANGE: &str = "i BETWEEN low AND high";
const KEY: &str = "k = n";

/// Joins each way round, and checks answers and batches.
async fn joins(kind: &str, bytes: usize, memory: Memory, words: &[&str]) {
    let session = session(kind, bytes, memory);
    let all = 4 * PARTNERS as usize;
    let (of_i, of_j) = ((16 + 17 + 18 + 19) * PARTNERS, 4 * (0..PARTNERS).map(|row| 10_000 + row).sum::<i64>());
    let unmatched = (ROWS as usize - 4, (0..ROWS).sum::<i64>() - 70);
    for word in words {
        for (condition, node) in [(RANGE, "ThetaJoinExec"), (KEY, "HybridJoinExec")] {
            // Comparing the value brings it to the filter as well.
            let is_text = !matches!(kind, "list" | "structure");
            let compared = is_text.then(|| format!("{condition} AND v <> concat('z', j)"));
            for condition in [Some(condition.to_owned()), compared].into_iter().flatten() {
                for (from, keeps_big) in [("big {} many", "LEFT"), ("many {} big", "RIGHT")] {
                    let sql =
                        format!("SELECT i, v, j FROM {} ON {condition}", from.replace("{}", &format!("{word} JOIN")));
                    let (rows, sum) = if *word == "FULL" || *word == keeps_big { unmatched } else { (0, 0) };
                    let expected = (all + rows, of_i + sum, of_j);
                    assert_eq!(checked(&session, &sql, node, bytes).await, expected, "{sql}, {kind}, {memory:?}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_large_text_does_not_overflow_the_offsets_of_a_batch() {
    // As many copies as a batch has rows would have more bytes than 32 bits count.
    joins("text", 1 << 20, Memory::Ample, &["INNER"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_large_value_of_any_type_makes_no_large_batch() {
    for kind in ["text", "large text", "view", "list", "structure"] {
        joins(kind, 50_000, Memory::Ample, &["INNER", "LEFT", "RIGHT", "FULL"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_values_in_files_make_no_large_batch() {
    for kind in ["text", "view", "list"] {
        joins(kind, 50_000, Memory::JoinLimit(3 * (256 << 10)), &["INNER", "LEFT", "RIGHT", "FULL"]).await;
    }
}
