use overspill_kernels::PrefixSum;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::test_gpu::{TestGpu, scaled, seeds};

fn reference(values: &[u64]) -> (Vec<u64>, u64) {
    let mut sum = 0u64;
    let sums = values
        .iter()
        .map(|value| {
            let before = sum;
            sum = sum.wrapping_add(*value);
            before
        })
        .collect();
    (sums, sum)
}

#[test]
fn sums_of_any_length_are_those_of_a_loop() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for length in [0, 1, 31, 32, 33, 255, 2048, 2049, 5000, scaled(600_000)] {
        let length = scaled(length) as usize;
        for seed in seeds().step_by(if length > 10_000 { 5 } else { 1 }) {
            gpu.schedule(seed);
            let values: Vec<u64> = (0..length).map(|_| random.random()).collect();
            let from = DeviceBuffer::from_slice(&stream, &values).unwrap();
            let mut to = DeviceBuffer::new(kernels.device(), (length * 8) as u64).unwrap();
            let mut prefix_sum = PrefixSum::new(&kernels, length as u64).unwrap();
            let total = prefix_sum.run(&stream, from.view(), to.view_mut()).unwrap();
            let (sums, sum) = reference(&values);
            assert_eq!(total, sum, "the total of {length} values, schedule {seed}");
            assert!(to.read::<u64>(&stream, length).unwrap() == sums, "{length} values, schedule {seed}");
        }
    }
}

#[test]
fn more_values_than_it_was_made_for_are_refused() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let from = DeviceBuffer::from_slice(&stream, &[1u64; 100]).unwrap();
    let mut to = DeviceBuffer::new(kernels.device(), 800).unwrap();
    let error = PrefixSum::new(&kernels, 99).unwrap().run(&stream, from.view(), to.view_mut()).unwrap_err();
    assert!(error.to_string().contains("100 values, made for 99"), "{error}");
}
