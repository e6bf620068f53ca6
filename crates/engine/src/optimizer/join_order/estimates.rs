//! Estimated rows of nodes, and distinct values of their columns.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::super::Node;
use super::super::shared_build::width;
use crate::table_samples::{Samples, Share};

/// The selectivity of a `FilterExec` whose input or output has no row count. DataFusion assumes the same.
const PASSES: f64 = 0.2;

/// What is estimated of the nodes of a plan: DataFusion's statistics, what follows from them, and samples.
pub(super) struct Estimates {
    statistics: StatisticsContext,
    samples: Arc<Samples>,
    /// The most rows of a sample; 0 for no samples.
    sampled_rows: usize,
    /// Rows by the address of a node, which is kept so that no other has it.
    remembered: HashMap<usize, (Node, f64)>,
    /// What samples say of filters, by the address of the node, which is kept as well.
    shares: RefCell<HashMap<usize, (Node, Option<Share>)>>,
}

fn address(node: &Node) -> usize {
    Arc::as_ptr(node).cast::<()>() as usize
}

/// Bytes of a row.
pub(super) fn row_width(schema: &Schema) -> f64 {
    schema.fields().iter().map(|field| width(field.data_type())).sum::<usize>() as f64
}

/// Whether a node returns the rows of its input, or other columns of them.
fn keeps_rows(node: &Node) -> bool {
    node.fetch().is_none()
        && (node.is::<ProjectionExec>() || node.is::<RepartitionExec>() || node.is::<CoalescePartitionsExec>())
}

impl Estimates {
    /// With samples of at most `sampled_rows` rows of a table.
    pub fn new(samples: Arc<Samples>, sampled_rows: usize) -> Self {
        Self {
            statistics: StatisticsContext::default(),
            samples,
            sampled_rows,
            remembered: HashMap::new(),
            shares: RefCell::default(),
        }
    }

    /// Keeps the rows of a node, which are better known than DataFusion knows them.
    pub fn remember(&mut self, node: &Node, rows: f64) {
        self.remembered.insert(address(node), (Arc::clone(node), rows));
    }

    /// The rows of a node; `None` if nothing is known of its inputs.
    pub fn rows(&self, node: &Node) -> Option<f64> {
        if let Some((_, rows)) = self.remembered.get(&address(node)) {
            return Some(*rows);
        }
        if let Some(filter) = node.downcast_ref::<FilterExec>() {
            return Some(self.rows(filter.input())? * self.passing(node, filter));
        }
        if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
            return self.groups(aggregate);
        }
        if keeps_rows(node) { self.rows(node.children()[0]) } else { self.known_rows(node) }
    }

    /// The fewest and the most rows of a node, as far as they are known.
    pub fn bounds(&self, node: &Node) -> [f64; 2] {
        const UNKNOWN: [f64; 2] = [0.0, f64::INFINITY];
        if self.remembered.contains_key(&address(node)) {
            return UNKNOWN;
        }
        if let Some(filter) = node.downcast_ref::<FilterExec>() {
            let [fewest, most] = self.sampled(node, filter).and_then(|share| share.bounds).unwrap_or([0.0, 1.0]);
            let of_input = self.bounds(filter.input());
            return [of_input[0] * fewest, of_input[1] * most];
        }
        if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
            let single = aggregate.group_expr().is_single();
            return [0.0, if single { self.bounds(aggregate.input())[1].max(1.0) } else { f64::INFINITY }];
        }
        if keeps_rows(node) {
            return self.bounds(node.children()[0]);
        }
        match self.of(node).map(|statistics| statistics.num_rows) {
            Some(Precision::Exact(rows)) => [rows as f64; 2],
            _ => UNKNOWN,
        }
    }

    /// The rows of a node before the filters above its table; `None` if they are not known.
    pub fn unfiltered_rows(&self, node: &Node) -> Option<f64> {
        if node.is::<FilterExec>() || keeps_rows(node) {
            return self.unfiltered_rows(node.children()[0]);
        }
        self.rows(node)
    }

    /// The share of its input's rows that pass a filter.
    fn passing(&self, node: &Node, filter: &FilterExec) -> f64 {
        let (output, input) = (self.known_rows(node), self.known_rows(filter.input()));
        let share = output.zip(input).map(|(output, input)| (output / input.max(1.0)).min(1.0));
        match (self.sampled(node, filter), share) {
            (Some(Share { share, bounds: Some(_) }), _) | (Some(Share { share, .. }), None) => share,
            // Where rows of a kind lie together, a sample may miss them, but not the least and greatest values that DataFusion goes by.
            (Some(hint), Some(share)) => (hint.share * share).sqrt(),
            (None, share) => share.unwrap_or(PASSES),
        }
    }

    /// What a sample says of a filter.
    fn sampled(&self, node: &Node, filter: &FilterExec) -> Option<Share> {
        let mut shares = self.shares.borrow_mut();
        let sample = || (Arc::clone(node), self.samples.passing(filter, self.sampled_rows));
        shares.entry(address(node)).or_insert_with(sample).1
    }

    /// The groups of an aggregate: at most the rows of its input, and the combinations of its keys' values.
    fn groups(&self, aggregate: &AggregateExec) -> Option<f64> {
        let rows = self.rows(aggregate.input())?;
        let groups = aggregate.group_expr();
        let keys = groups.expr().iter().map(|(key, _)| {
            let column = key.downcast_ref::<Column>()?;
            self.distinct(aggregate.input(), column.index())
        });
        let combinations = keys.map(|distinct| distinct.unwrap_or(rows)).product::<f64>();
        Some(if groups.is_single() { combinations.min(rows) } else { rows })
    }

    fn known_rows(&self, node: &Node) -> Option<f64> {
        Some(*self.of(node)?.num_rows.get_value()? as f64)
    }

    fn of(&self, node: &Node) -> Option<Arc<Statistics>> {
        self.statistics.compute(node.as_ref(), &StatisticsArgs::new()).ok()
    }

    /// The distinct values of a column, those included that filters right below drop: a key of another table is still one of them.
    pub fn distinct(&self, node: &Node, column: usize) -> Option<f64> {
        if let Some(filter) = node.downcast_ref::<FilterExec>() {
            let column = filter.projection().as_ref().map_or(column, |projection| projection[column]);
            return self.distinct(filter.input(), column);
        }
        if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
            let column = projection.expr()[column].expr.downcast_ref::<Column>()?;
            return self.distinct(projection.input(), column.index());
        }
        if node.is::<RepartitionExec>() || node.is::<CoalescePartitionsExec>() {
            return self.distinct(node.children()[0], column);
        }
        if let Some(aggregate) = node.downcast_ref::<AggregateExec>()
            && let Some((key, _)) = aggregate.group_expr().expr().get(column)
        {
            return self.distinct(aggregate.input(), key.downcast_ref::<Column>()?.index());
        }
        let statistics = self.of(node)?;
        let known = distinct_of(statistics.column_statistics.get(column)?);
        let rows = self.rows(node);
        match (known, rows) {
            (Some(known), Some(rows)) => Some(known.min(rows).max(1.0)),
            (known, _) => known,
        }
    }
}

/// The distinct values that a column's statistics say, or at most has: the width of the range of an integer.
fn distinct_of(column: &ColumnStatistics) -> Option<f64> {
    if let Some(distinct) = column.distinct_count.get_value() {
        return Some(*distinct as f64);
    }
    let (least, most) = (column.min_value.get_value()?, column.max_value.get_value()?);
    if !least.data_type().is_integer() && !least.data_type().is_temporal() {
        return None;
    }
    Some(least.distance(most)? as f64 + 1.0)
}
