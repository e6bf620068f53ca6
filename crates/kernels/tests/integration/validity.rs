//! Bits of validity bytes.

use overspill_kernels::ValidityPacker;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::test_gpu::{TestGpu, seeds};

#[test]
fn every_schedule_of_packing_makes_a_bit_of_each_byte() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let packer = ValidityPacker::new(&kernels).unwrap();
    for (rows, seed) in
        [0, 1, 31, 32, 33, 255, 256, 257, 5000].into_iter().flat_map(|rows| seeds().map(move |seed| (rows, seed)))
    {
        gpu.schedule(seed);
        let random = &mut ChaCha8Rng::seed_from_u64(rows);
        // Any byte but 0 is true.
        let bytes: Vec<u8> = (0..rows).map(|_| random.random_range(0..3)).collect();
        let on_gpu = DeviceBuffer::from_slice(&stream, &bytes).unwrap();
        let words = packer.run(&stream, rows, on_gpu.view()).unwrap();
        assert_eq!(words.bytes(), rows.div_ceil(32) * 4);
        let words: Vec<u32> = words.read(&stream, rows.div_ceil(32) as usize).unwrap();
        let bit = |row: usize| words[row / 32] >> (row % 32) & 1 == 1;
        assert!((0..words.len() * 32).all(|row| bit(row) == bytes.get(row).is_some_and(|byte| *byte != 0)), "{rows}");
        let error = packer.run(&stream, rows + 1, on_gpu.view()).unwrap_err().to_string();
        assert!(error.contains("say of"), "{error}");
    }
}
