//! Converts spans to slices.

use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::fields::Fields;
use super::file::{Place, TraceFile};
use super::thread;

/// Draws each span on the lanes of the threads that enter it and, if it has one, on its own lane.
pub struct TraceLayer {
    file: Arc<TraceFile>,
}

struct Open {
    fields: Fields,
    begin: u64,
    place: Option<Place>,
    /// The number of threads inside it, and the time since which there is at least one.
    inside: usize,
    since: u64,
    /// The innermost span of its lane at that time.
    within: Option<u64>,
}

impl TraceLayer {
    pub fn new(file: Arc<TraceFile>) -> Self {
        Self { file }
    }
}

/// Libraries have spans of their own, which are not traced.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("overspill")
}

impl Fields {
    fn name<'a>(&'a self, metadata: &'a Metadata<'_>) -> &'a str {
        self.title.as_deref().unwrap_or_else(|| metadata.name())
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_ours(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // Events of GPU streams have this level.
        Some(LevelFilter::TRACE)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let place = match (&fields.group, &fields.lane) {
            (Some(group), Some(lane)) => {
                let ancestors: Vec<u64> = span.scope().skip(1).map(|ancestor| ancestor.id().into_u64()).collect();
                Some(self.file.begin(group, lane, id.into_u64(), &ancestors))
            }
            _ => None,
        };
        let begin = self.file.now();
        span.extensions_mut().insert(Open { fields, begin, place, inside: 0, since: 0, within: None });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(&mut open.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Fields { group: Some(group), lane: Some(lane), begin: Some(begin), end: Some(end), .. } = &fields {
            self.file.past(group, lane, fields.name(event.metadata()), (*begin, *end), &fields.figures);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let now = self.file.now();
        thread::enter(&self.file, id.into_u64(), now);
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            if open.inside == 0 {
                open.since = now;
                open.within = open.place.and_then(|place| self.file.innermost(place));
            }
            open.inside += 1;
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let now = self.file.now();
        let entered = thread::leave(id.into_u64());
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<Open>() else { return };
        if let Some((place, since)) = entered {
            let name = open.fields.name(span.metadata());
            match (&open.fields.group, &open.fields.lane) {
                // Its figures are on its own lane, once.
                (Some(group), Some(lane)) => {
                    let figures = [("group", group), ("lane", lane)];
                    let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value.as_str().into()));
                    self.file.within(place, name, (since, now), &figures.collect());
                }
                _ => self.file.within(place, name, (since, now), &open.fields.figures),
            }
        }
        open.inside = open.inside.saturating_sub(1);
        // If a span inside it has begun or ended meanwhile, the slice would partially overlap that span.
        if let Some(place) = open.place.filter(|_| open.inside == 0)
            && self.file.innermost(place) == open.within
        {
            self.file.within(place, "running", (open.since, now), &Default::default());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let now = self.file.now();
        let extensions = span.extensions();
        let Some(Open { fields, begin, place: Some(place), .. }) = extensions.get::<Open>() else { return };
        self.file.end(*place, id.into_u64(), fields.name(span.metadata()), (*begin, now), &fields.figures);
    }
}
