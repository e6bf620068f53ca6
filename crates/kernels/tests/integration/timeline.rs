//! What is told of a stream, and to whom.

use std::sync::{Arc, Mutex};

use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::timeline::GPU_STREAMS;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::with_default;
use tracing::{Event, Subscriber, debug_span};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, registry};

use crate::test_gpu::TestGpu;

/// Where each thing that a stream did was asked for, and what it was.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(String, String)>>>);

impl Told {
    fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl<S: Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        #[derive(Default)]
        struct Names(String, String);
        impl Visit for Names {
            fn record_str(&mut self, field: &Field, value: &str) {
                match field.name() {
                    "asked_in" => self.0 = value.to_owned(),
                    "title" => self.1 = value.to_owned(),
                    _ => {}
                }
            }
            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
        }
        let mut names = Names::default();
        event.record(&mut names);
        self.0.lock().unwrap().push((names.0, names.1));
    }
}

#[test]
fn streams_are_timed_for_those_who_listen_to_them_alone() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let told = Told::default();
    // Everything at DEBUG; everything; and the events of streams with one span.
    let debug = registry().with(told.clone()).with(LevelFilter::DEBUG);
    let all = registry().with(told.clone());
    let events = filter_fn(|metadata| metadata.target() == GPU_STREAMS || metadata.name() == "inner");
    let chosen = registry().with(told.clone().with_filter(events));
    let work = || {
        let device = gpu.driver.device(0, 1 << 20).unwrap();
        let stream = Stream::new(&device).unwrap();
        let outer = debug_span!("outer").entered();
        let mut buffer = debug_span!("inner").in_scope(|| DeviceBuffer::from_slice(&stream, &[7u64; 4])).unwrap();
        buffer.fill(&stream, 1).unwrap();
        drop(outer);
        assert_eq!(buffer.read::<u64>(&stream, 1).unwrap(), [0x0101_0101_0101_0101]);
        gpu.statistics().events
    };
    assert_eq!((with_default(debug, work), told.take()), (0, vec![]));
    let named = |names: [(&str, &str); 3]| names.map(|(span, what)| (span.to_owned(), what.to_owned())).to_vec();
    let expected = named([("inner", "copy to GPU"), ("outer", "fill"), ("", "copy to CPU")]);
    assert!(with_default(all, work) > 0);
    assert_eq!(told.take(), expected);
    assert!(with_default(chosen, work) > 0);
    assert_eq!(told.take(), named([("inner", "copy to GPU"), ("", "fill"), ("", "copy to CPU")]));
    // Nobody.
    assert_eq!((work(), told.take()), (0, vec![]));
}
