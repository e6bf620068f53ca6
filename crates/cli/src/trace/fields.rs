//! The fields of spans and events.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};

/// Fields, with those that determine the lane kept separately.
#[derive(Debug, Default)]
pub struct Fields {
    pub group: Option<String>,
    pub lane: Option<String>,
    pub title: Option<String>,
    pub begin: Option<u64>,
    pub end: Option<u64>,
    /// All other fields.
    pub figures: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.figures.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "begin_ns" => self.begin = Some(value),
            "end_ns" => self.end = Some(value),
            _ => self.add(field, value.into()),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "group" => self.group = Some(value.to_owned()),
            "lane" => self.lane = Some(value.to_owned()),
            "title" => self.title = Some(value.to_owned()),
            _ => self.add(field, value.into()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
