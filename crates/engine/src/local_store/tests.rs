//! The store against DataFusion's own.

use std::fs;
use std::io::Write;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn path(of: &std::path::Path) -> Path {
    Path::from_absolute_path(of).unwrap()
}

#[tokio::test]
async fn reads_are_those_of_the_local_file_system() {
    let random = &mut StdRng::seed_from_u64(9);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a file");
    let bytes: Vec<u8> = (0..3_000_000).map(|_| random.random()).collect();
    fs::write(&file, &bytes).unwrap();
    let store = LocalStore::default();
    for _ in 0..200 {
        let range = |random: &mut StdRng| {
            let start = random.random_range(0..bytes.len() as u64);
            start..random.random_range(start..=bytes.len() as u64)
        };
        let ranges: Vec<_> =
            (0..random.random_range(0..5)).map(|_| range(random)).filter(|at| !at.is_empty()).collect();
        let read = store.get_ranges(&path(&file), &ranges).await.unwrap();
        assert_eq!(read.len(), ranges.len());
        for (range, read) in ranges.iter().zip(read) {
            assert!(read[..] == bytes[range.start as usize..range.end as usize], "{range:?}");
        }
    }
    // What has been written just now is in memory.
    assert_eq!(cached::read(&file, &[0..4, 5..9], &store.buffers).is_some(), cfg!(target_os = "linux"));
}

#[tokio::test]
async fn errors_are_those_of_the_local_file_system() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("short");
    fs::write(&file, [1; 100]).unwrap();
    let (store, host) = (LocalStore::default(), LocalFileSystem::new());
    assert_eq!(store.to_string(), host.to_string());
    for (at, range) in [
        (directory.path().join("missing"), 0..4),
        (directory.path().to_path_buf(), 0..4),
        (file.clone(), 100..101),
        (file.clone(), 1000..2000),
        (file.clone(), 50..101),
    ] {
        let [ours, theirs] = [&store as &dyn ObjectStore, &host].map(|store| store);
        let ours = ours.get_ranges(&path(&at), std::slice::from_ref(&range)).await;
        let theirs = theirs.get_ranges(&path(&at), std::slice::from_ref(&range)).await;
        match (ours, theirs) {
            (Err(ours), Err(theirs)) => assert_eq!(ours.to_string(), theirs.to_string()),
            (ours, theirs) => assert_eq!(ours.unwrap(), theirs.unwrap(), "{at:?} {range:?}"),
        }
    }
}

/// What was read stays as it was, whatever happens to the file and to the buffers of later reads.
#[tokio::test]
async fn bytes_stay_as_they_were_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    let store = LocalStore::default();
    let all = || 0..1 << 20;
    let first = store.get_ranges(&path(&file), &[all()]).await.unwrap().remove(0);
    fs::File::create(&file).unwrap().write_all(&vec![2; 1 << 20]).unwrap();
    let second = store.get_ranges(&path(&file), &[all()]).await.unwrap().remove(0);
    drop(second);
    let third = store.get_ranges(&path(&file), &[all()]).await.unwrap().remove(0);
    fs::File::options().write(true).open(&file).unwrap().set_len(10).unwrap();
    assert!(first.iter().all(|byte| *byte == 1) && third.iter().all(|byte| *byte == 2));
    assert_eq!(first.slice(5..9), Bytes::from_static(&[1; 4]));
}
