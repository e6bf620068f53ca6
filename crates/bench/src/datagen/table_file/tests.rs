use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn parts_are_taken_in_order_whatever_the_threads() {
    for threads in [1, 2, 7, 100] {
        let mut taken = vec![];
        let sum = in_order(20, threads, Ok, |part| {
            taken.push(part);
            Ok(part as u64)
        });
        assert_eq!(sum.unwrap(), 190);
        assert_eq!(taken, (0..20).collect::<Vec<_>>());
    }
    assert_eq!(in_order(0, 4, Ok, |_: usize| Ok(1)).unwrap(), 0);
}

#[test]
fn makers_stay_near_the_taker_and_stop_with_it() {
    let made = AtomicUsize::new(0);
    let make = |part| {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(part)
    };
    let mut taken = 0;
    let result = in_order(1000, 3, make, |_: usize| {
        taken += 1;
        if taken == 10 { exec_err!("the disk is full") } else { Ok(0) }
    });
    assert!(result.unwrap_err().to_string().contains("the disk is full"));
    assert!(made.load(Ordering::Relaxed) <= 10 + 2 * 3, "{made:?}");
}

#[test]
fn a_failed_part_fails_the_file_and_leaves_none() {
    let dir = tempfile::tempdir().unwrap();
    let schema = Arc::new(arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
        "a",
        arrow::datatypes::DataType::Int64,
        false,
    )]));
    for format in [Format::Parquet, Format::Arrow] {
        let file = TableFile {
            path: dir.path().join("a"),
            schema: Arc::clone(&schema),
            format,
            compression: Compression::None,
            dictionaries: false,
            parts: 5,
            arguments: String::new(),
        };
        let part = |number| {
            let failure = (number == 3).then(|| Err(ArrowError::ComputeError("part 3 is broken".to_owned())));
            failure.into_iter()
        };
        let error =
            file.produce(false, 2, &ProgressBar::hidden(), &mut std::io::sink(), part).err().unwrap().to_string();
        assert!(error.contains("part 3 is broken"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
