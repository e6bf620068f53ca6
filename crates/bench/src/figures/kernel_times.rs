//! The time of a GPU for each kernel of a join, from its streams' timelines (paper 1, section 6.2.3).

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use overspill_gpu_join::{FIRST_PASS, SECOND_PASS};
use overspill_machine::timeline::GPU_STREAMS;
use tracing::callsite::rebuild_interest_cache;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Groups of kernels with the same purpose, named as in paper 1, figure 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelGroup {
    /// Counts keys for the first pass, and computes the starts of its partitions.
    PrefixSum1,
    /// Writes the partitions of the first pass.
    Partition1,
    /// As `PrefixSum1` for the second pass. Also copies data in CPU memory to the GPU.
    PrefixSum2,
    Partition2,
    /// Divides pairs of partitions into tasks.
    Scheduler,
    Join,
    /// Copies and fills by the GPU's copy engines.
    Copies,
    Others,
}

/// Seconds of a GPU by group of work. Concurrent work counts fully for each.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KernelTimes([f64; KernelGroup::ALL.len()]);

impl KernelGroup {
    pub(super) const ALL: [Self; 8] = [
        Self::PrefixSum1,
        Self::Partition1,
        Self::PrefixSum2,
        Self::Partition2,
        Self::Scheduler,
        Self::Join,
        Self::Copies,
        Self::Others,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PrefixSum1 => "PS 1",
            Self::Partition1 => "Part 1",
            Self::PrefixSum2 => "PS 2",
            Self::Partition2 => "Part 2",
            Self::Scheduler => "Sched",
            Self::Join => "Join",
            Self::Copies => "copies",
            Self::Others => "other kernels",
        }
    }

    /// The group of a stream's work. Both passes have kernels of the same name; the span that enqueued the kernel
    /// distinguishes them.
    fn of(done: &Done) -> Self {
        if done.is_copy {
            return Self::Copies;
        }
        let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| done.title.starts_with(prefix));
        let (counts, partitions) = (is(&["histogram_", "offsets_"]), is(&["partition_"]));
        match done.asked_in.as_str() {
            FIRST_PASS if counts => Self::PrefixSum1,
            FIRST_PASS if partitions => Self::Partition1,
            SECOND_PASS if counts => Self::PrefixSum2,
            SECOND_PASS if partitions => Self::Partition2,
            _ if is(&["schedule_join_tasks"]) => Self::Scheduler,
            _ if is(&["join_partitions_"]) => Self::Join,
            _ => Self::Others,
        }
    }
}

impl KernelTimes {
    pub(super) fn seconds(&self, group: KernelGroup) -> f64 {
        self.0[group as usize]
    }

    /// The group's percentage of the sum over all groups.
    pub(super) fn share(&self, group: KernelGroup) -> f64 {
        self.seconds(group) / self.0.iter().sum::<f64>() * 100.0
    }
}

/// Runs `work`, and returns the times of all GPU work of the process during it.
///
/// # Errors
/// If the process already has another trace subscriber.
pub(super) fn kernel_times<T>(work: impl FnOnce() -> T) -> Result<(T, KernelTimes), String> {
    static LISTENS: OnceLock<bool> = OnceLock::new();
    // A subscriber cannot be removed. This one enables no events while no times are being collected.
    if !LISTENS.get_or_init(|| set_global_default(tracing_subscriber::registry().with(KernelLayer)).is_ok()) {
        return Err("this process is traced already".to_owned());
    }
    *times() = Some(KernelTimes::default());
    rebuild_interest_cache();
    let done = work();
    let told = times().take().unwrap_or_default();
    rebuild_interest_cache();
    Ok((done, told))
}

/// The times collected so far, or `None` while none are being collected.
fn times() -> MutexGuard<'static, Option<KernelTimes>> {
    static TIMES: Mutex<Option<KernelTimes>> = Mutex::new(None);
    TIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tracing layer that adds up the events of streams.
struct KernelLayer;

impl KernelLayer {
    /// Whether to enable a span or event: the streams' events, and the spans of the passes. No other spans, so that these are
    /// innermost.
    fn wants(metadata: &Metadata<'_>) -> bool {
        let is_event = metadata.target() == GPU_STREAMS;
        let is_pass = metadata.is_span() && [FIRST_PASS, SECOND_PASS].contains(&metadata.name());
        (is_event || is_pass) && times().is_some()
    }
}

impl<S: Subscriber> Layer<S> for KernelLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        Self::wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if times().is_some() { LevelFilter::TRACE } else { LevelFilter::OFF })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut done = Done::default();
        event.record(&mut done);
        if let Some(times) = &mut *times() {
            times.0[KernelGroup::of(&done) as usize] += done.end.saturating_sub(done.begin) as f64 / 1e9;
        }
    }
}

/// A stream's work, read from an event.
#[derive(Debug, Default)]
struct Done {
    title: String,
    asked_in: String,
    is_copy: bool,
    begin: u64,
    end: u64,
}

impl Visit for Done {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "begin_ns" => self.begin = value,
            "end_ns" => self.end = value,
            "bytes" => self.is_copy = true,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "title" => self.title = value.to_owned(),
            "asked_in" => self.asked_in = value.to_owned(),
            _ => {}
        }
    }

    // Fields only for display, such as the names of lanes.
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(asked_in: &str, title: &str) -> KernelGroup {
        KernelGroup::of(&Done { title: title.to_owned(), asked_in: asked_in.to_owned(), ..Done::default() })
    }

    #[test]
    fn kernels_of_one_name_are_told_apart_by_their_pass() {
        for (name, groups) in [
            ("histogram_u64", [KernelGroup::PrefixSum1, KernelGroup::PrefixSum2]),
            ("offsets_totals", [KernelGroup::PrefixSum1, KernelGroup::PrefixSum2]),
            ("partition_shared_u64_1", [KernelGroup::Partition1, KernelGroup::Partition2]),
        ] {
            assert_eq!([group(FIRST_PASS, name), group(SECOND_PASS, name)], groups, "{name}");
            assert_eq!(group("", name), KernelGroup::Others, "{name}");
        }
        assert_eq!(group("", "schedule_join_tasks"), KernelGroup::Scheduler);
        assert_eq!(group("", "join_partitions_allocate_u64"), KernelGroup::Join);
        let copy = Done { asked_in: FIRST_PASS.to_owned(), is_copy: true, ..Done::default() };
        assert_eq!(KernelGroup::of(&copy), KernelGroup::Copies);
    }

    #[test]
    fn only_what_is_told_meanwhile_is_added_up() {
        let tell = |begin_ns: u64, end_ns: u64| {
            tracing::trace!(target: GPU_STREAMS, title = "join_partitions_aggregate_u64", begin_ns, end_ns);
        };
        tell(0, 1_000_000_000);
        let ((), times) = kernel_times(|| {
            tell(0, 2_000_000_000);
            tell(1_000_000_000, 2_000_000_000);
            tracing::trace!(target: GPU_STREAMS, title = "copy to GPU", bytes = 8u64, begin_ns = 0u64, end_ns = 500_000_000u64);
        })
        .unwrap();
        tell(0, 1_000_000_000);
        let told = KernelGroup::ALL.map(|group| times.seconds(group));
        assert_eq!(told, [0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.5, 0.0]);
        assert_eq!(times.share(KernelGroup::Copies), 0.5 / 3.5 * 100.0);
        let ((), times) = kernel_times(|| ()).unwrap();
        assert_eq!(times.seconds(KernelGroup::Join), 0.0);
    }
}
