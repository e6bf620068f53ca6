//! Lookups on a GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use overspill_gpu_join::{DeviceProblem, DeviceShare, Gpu};
use overspill_machine::Error;

use crate::device::{no_memory, share_of};
use crate::index_scan::{LookupKeys, RowNumbers};
use crate::indexes::{CancelOnDrop, IndexedRows};

/// The fewest keys that are looked up on a GPU. Fewer take a thread about a millisecond, less than a GPU's turn may take to come.
const FEWEST_KEYS: usize = 1 << 14;

/// The rows with these keys, as a GPU finds them; `None` if the CPU looks the keys up. With `always` the GPU looks them up however few
/// they are, and waits for copies of the index. Otherwise copies are made meanwhile, for later joins.
pub(super) async fn found_on_gpu(
    gpu: &Arc<Gpu>,
    rows: &Arc<IndexedRows>,
    keys: &Arc<LookupKeys>,
    always: bool,
    task: &TaskContext,
) -> Option<Result<RowNumbers, DeviceProblem>> {
    let share = share_of(task.session_config());
    if share.is_taken_back() || !always && keys.words.len() < FEWEST_KEYS {
        return None;
    }
    let (gpu, rows) = (Arc::clone(gpu), Arc::clone(rows));
    if !always && rows.runs().iter().any(|run| run.copy_on(&gpu).is_none()) {
        tokio::task::spawn_blocking(move || {
            for run in rows.runs() {
                if let Err(problem) = run.copied_to(&gpu, &share, rows.no_memory()) {
                    tracing::info!("An index is not copied for the GPU: {}", problem.error());
                }
            }
        });
        return None;
    }
    let memory = MemoryConsumer::new("Lookups on a GPU").register(task.memory_pool());
    // Stops the thread if the query is cancelled.
    let cancelled = CancelOnDrop::default();
    let is_cancelled = cancelled.flag();
    let keys = Arc::clone(keys);
    let found =
        tokio::task::spawn_blocking(move || find(&gpu, &share, &rows, &keys.words, memory, &is_cancelled)).await;
    Some(found.unwrap_or_else(|error| Err(DeviceProblem::Failed(Error::Invalid(error.to_string())))))
}

fn find(
    gpu: &Arc<Gpu>,
    share: &Arc<DeviceShare>,
    rows: &IndexedRows,
    keys: &[u64],
    memory: MemoryReservation,
    is_cancelled: &AtomicBool,
) -> Result<RowNumbers, DeviceProblem> {
    let mut numbers = Vec::new();
    for run in rows.runs() {
        let copy = run.copied_to(gpu, share, rows.no_memory())?;
        for keys in keys.chunks(copy.rows.window()) {
            if is_cancelled.load(Ordering::Relaxed) {
                return Err(DeviceProblem::Refused(Error::Invalid("the query was cancelled".to_owned())));
            }
            copy.rows.look_up(share, keys, &mut numbers)?;
            let bytes = numbers.capacity() * size_of::<u32>();
            memory.try_resize(bytes).map_err(|error| no_memory(bytes, &error))?;
        }
    }
    Ok(RowNumbers::new(numbers, memory))
}
