//! Launches that are confined to some of the multiprocessors.

use overspill_kernels::{
    Algorithm, Extents, HashFunction, HashTable, Input, JoinSide, Kernels, KeyWidth, Output, PairAggregate, PairTotals,
    PartitionPlan, PartitionedJoin, PartitionedSide, Partitioner, PayloadInput, PrefixSum, Radix, TableKind,
    TablePlacement, Values,
};
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;

use crate::test_gpu::TestGpu;

const TUPLES: u64 = 60_000;
/// Of the stand-in, in bytes.
const SCRATCHPAD_PER_MULTIPROCESSOR: u64 = 228 << 10;

/// Partitions the numbers below `TUPLES`, and sums the pairs of the relation's join with itself, partitioned and not.
fn work(kernels: &Kernels, algorithm: Algorithm) -> Vec<PairTotals> {
    let stream = Stream::new(kernels.device()).unwrap();
    let radix = Radix::new(3, 0, HashFunction::MultiplyShift).unwrap();
    let plan = PartitionPlan::new(kernels, algorithm, KeyWidth::Eight, &[8], radix, TUPLES, 8 << 20).unwrap();
    let keys = DeviceBuffer::from_slice(&stream, &(0..TUPLES).collect::<Vec<_>>()).unwrap();
    let mut out_keys = DeviceBuffer::new(kernels.device(), plan.output_tuples() * 8).unwrap();
    let mut out_rows = DeviceBuffer::new(kernels.device(), plan.output_tuples() * 8).unwrap();
    let mut partitioner = Partitioner::new(kernels, plan).unwrap();
    let input = Input { keys: keys.view(), payloads: vec![PayloadInput::RowIds(0)] };
    let mut output = Output { keys: out_keys.view_mut(), payloads: vec![out_rows.view_mut()] };
    let partitions = partitioner.run(&stream, &input, &mut output).unwrap();

    let extents = Extents::new(&stream, &partitions).unwrap();
    let side = PartitionedSide {
        side: JoinSide { keys: out_keys.view(), values: Values::Eight(out_rows.view()) },
        extents: &extents,
    };
    let join = PartitionedJoin::new(kernels, KeyWidth::Eight, radix).unwrap();
    let partitioned = join.aggregate(&stream, &side, &side, &PairAggregate::SUMS).unwrap();

    let side = JoinSide { keys: keys.view(), values: Values::RowIds(0) };
    let (kind, place) = (TableKind::MultiValue, TablePlacement::Device);
    let mut table = HashTable::new(kernels, kind, KeyWidth::Eight, TUPLES, HashFunction::MultiplyShift, place).unwrap();
    table.build(&stream, &side).unwrap();
    let shared = table.probe_aggregate(&stream, &side, &PairAggregate::SUMS).unwrap();

    let mut ones = DeviceBuffer::from_slice(&stream, &vec![1u64; TUPLES as usize]).unwrap();
    let sum = PrefixSum::new(kernels, TUPLES).unwrap().run_in_place(&stream, ones.view_mut()).unwrap();
    assert_eq!(sum, TUPLES);
    vec![partitioned, shared]
}

#[test]
fn confined_launches_leave_the_other_multiprocessors_alone() {
    let gpu = TestGpu::start();
    let all = gpu.set_multiprocessors(8);
    let kernels = gpu.kernels();
    let sum = i128::from(TUPLES * (TUPLES - 1) / 2);
    let expected = [0, 1].map(|_| PairTotals { matches: TUPLES, values: vec![sum; 2] });
    for algorithm in Algorithm::ALL {
        for multiprocessors in [1, 3, all] {
            let confined = kernels.confined_to(multiprocessors).unwrap();
            let launches = gpu.launches(|| assert_eq!(work(&confined, algorithm), expected));
            assert!(launches.as_ref().is_none_or(|launches| launches.len() > 10));
            for launch in launches.into_iter().flatten() {
                assert!(launch.blocks <= multiprocessors, "{launch:?} of {multiprocessors}");
                assert!(
                    launch.scratchpad * 2 > SCRATCHPAD_PER_MULTIPROCESSOR,
                    "two fit one multiprocessor: {launch:?}"
                );
            }
        }
        let launches = gpu.launches(|| assert_eq!(work(&kernels, algorithm), expected));
        let is_free = launches.is_none_or(|launches| launches.iter().any(|launch| launch.blocks > all));
        assert!(is_free, "nothing confines those of all multiprocessors");
    }
}

#[test]
fn shares_that_are_not_there_are_refused() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    gpu.configure("multiprocessors=8");
    let kernels = gpu.kernels();
    for multiprocessors in [0, 9] {
        let error = kernels.confined_to(multiprocessors).unwrap_err().to_string();
        assert!(error.contains(&format!("confined to {multiprocessors} multiprocessors: the GPU has 8")), "{error}");
    }
}
