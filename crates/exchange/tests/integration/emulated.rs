//! The emulated device, and tables for it.

use std::ffi::{CString, c_char};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int8Array, Int32Array, Int64Array, RecordBatch, make_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{lexsort_to_indices, take_record_batch};
use arrow::datatypes::Int64Type;
use overspill_exchange::Rank;
use overspill_machine::driver::{Device, Driver};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub const MIB: u64 = 1 << 20;

/// Ranks have them in turn.
const DEVICES: usize = 3;

/// The stand-in, to oneself: its failures and counters are those of all devices.
pub struct Emulated {
    pub driver: &'static Driver,
    _alone: MutexGuard<'static, ()>,
}

/// The first counters of the stand-in, which are those that tests look at; it writes `COUNTERS` of them.
pub struct Held {
    pub device_bytes: u64,
    pub pinned_bytes: u64,
    pub registrations_made: u64,
}

/// At least as many as the stand-in has.
const COUNTERS: usize = 32;

impl Emulated {
    pub fn start() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // How many devices there are is asked once, when the driver is loaded.
        configure(&format!("devices={DEVICES}"));
        let emulated = Self { driver: Driver::emulated(&path()).unwrap(), _alone: alone };
        emulated.configure("multiprocessors=2;workers=2");
        emulated.succeed();
        emulated
    }

    pub fn configure(&self, settings: &str) {
        configure(settings);
    }

    /// Nothing fails any more.
    pub fn succeed(&self) {
        configure("fail=allocation:0;fail=registration:0;fail=copy:0;fail=launch:0;fail=synchronisation:0");
    }

    pub fn held(&self) -> Held {
        let mut counters = [0_u64; COUNTERS];
        // SAFETY: the function has this type, and writes no more counters than there is room for.
        unsafe {
            let read: libloading::Symbol<'_, unsafe extern "C" fn(*mut u64)> =
                library().get(c"overspill_emulated_statistics").unwrap();
            read(counters.as_mut_ptr());
        }
        Held { device_bytes: counters[1], pinned_bytes: counters[3], registrations_made: counters[11] }
    }

    /// The GPU of a rank. Ranks that are few have one each.
    pub fn device(&self, rank: Rank) -> overspill_machine::Result<Arc<Device>> {
        self.driver.device(rank % DEVICES, 64 * MIB)
    }
}

fn path() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("liboverspill_emulated_driver.so")
}

fn library() -> &'static libloading::Library {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    // SAFETY: when loaded, the library starts no thread and touches nothing of this program.
    LIBRARY.get_or_init(|| unsafe { libloading::Library::new(path()).unwrap() })
}

fn configure(settings: &str) {
    let text = CString::new(settings).unwrap();
    // SAFETY: the function has this type, and the text is a C string.
    let configured = unsafe {
        let configure: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char) -> i32> =
            library().get(c"overspill_emulated_configure").unwrap();
        configure(text.as_ptr())
    };
    assert_eq!(configured, 0, "{settings:?}");
}

/// Rows whose keys have several types, and whose last column tells them apart. With nulls, a tenth of the values of each other column are.
pub fn rows(random: &mut StdRng, count: usize, first: i64, keys: i64, has_nulls: bool) -> RecordBatch {
    let key: Vec<i64> = (0..count).map(|_| random.random_range(0..keys)).collect();
    let mut column = |name: &'static str, column: ArrayRef| {
        let nulls = NullBuffer::from_iter((0..count).map(|_| !has_nulls || random.random_bool(0.9)));
        let data = column.to_data().into_builder().nulls(has_nulls.then_some(nulls));
        (name, make_array(data.build().unwrap()), true)
    };
    let columns = [
        column("long", Arc::new(Int64Array::from_iter_values(key.iter().copied()))),
        column("int", Arc::new(Int32Array::from_iter_values(key.iter().map(|key| *key as i32 - 7)))),
        column("byte", Arc::new(Int8Array::from_iter_values(key.iter().map(|key| *key as i8)))),
        column("decimal", Arc::new(Decimal128Array::from_iter_values(key.iter().map(|key| i128::from(*key) << 40)))),
        // Zero has two forms, which are equal.
        column(
            "float",
            Arc::new(Float64Array::from_iter_values(
                key.iter().enumerate().map(|(row, key)| if row % 2 == 0 && *key == 0 { -0.0 } else { *key as f64 }),
            )),
        ),
        ("row", Arc::new(Int64Array::from_iter_values(first..first + count as i64)), false),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Batches of each rank, with up to `most` rows each; some ranks have none, and some have nulls.
pub fn tables(random: &mut StdRng, ranks: usize, keys: i64, most: usize) -> Vec<Vec<RecordBatch>> {
    let mut of_rank = |rank: usize| -> Vec<RecordBatch> {
        let batches = random.random_range(0..3_usize);
        let has_nulls = random.random_bool(0.5);
        let batch = |batch: usize| {
            let count = random.random_range(0..most);
            let rows = rows(random, count, ((rank * 3 + batch) * most) as i64, keys, has_nulls);
            // A part of a larger array.
            rows.slice(0, count - count / 5)
        };
        (0..batches).map(batch).collect()
    };
    (0..ranks).map(&mut of_rank).collect()
}

/// The keys of some case, which have several types.
pub fn keys(random: &mut StdRng) -> Vec<usize> {
    [&[0][..], &[1], &[3], &[4], &[1, 2], &[0, 1], &[2]][random.random_range(0..7)].to_vec()
}

pub fn row_numbers(batch: &RecordBatch) -> Vec<i64> {
    batch.column(5).as_primitive::<Int64Type>().values().to_vec()
}

pub fn sorted(batch: &RecordBatch) -> RecordBatch {
    let by_row = arrow::compute::SortColumn { values: batch.column(5).clone(), options: None };
    take_record_batch(batch, &lexsort_to_indices(&[by_row], None).unwrap()).unwrap()
}

/// The outcome of a future; `None` if it is dropped after so many polls.
pub async fn polled<T>(future: impl Future<Output = T>, polls: Option<usize>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        if left == Some(0) {
            return Poll::Ready(None);
        }
        left = left.map(|left| left - 1);
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// A generator of its own for each case.
pub fn random(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
