//! Estimated rows of nodes, and distinct values of their columns.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::super::Node;
use super::super::shared_build::width;
use crate::config::OverspillConfig;
use crate::planning::PlanningSession;
use crate::table_samples::{FilterShares, Samples, Share};

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
    shares: Arc<FilterShares>,
}

/// By which a node is known as long as it is kept.
pub(super) fn address(node: &Node) -> usize {
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
    /// With the samples of the session that plans a query.
    pub fn new(config: &ConfigOptions, overspill: &OverspillConfig) -> Self {
        Self {
            statistics: StatisticsContext::default(),
            samples: PlanningSession::runtime(config).samples(),
            sampled_rows: overspill.sampled_rows,
            remembered: HashMap::new(),
            shares: PlanningSession::filter_shares(config),
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
        self.shares.of(node, || self.samples.passing(filter, self.sampled_rows))
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

    /// What is known of the values of a column; `None` if nothing is.
    pub fn key_values(&self, node: &Node, column: usize) -> Option<KeyValues> {
        let distinct = self.distinct(node, column)?;
        let ranges = self.range(node, column, false).zip(self.range(node, column, true));
        Some(KeyValues { distinct, ranges: ranges.map(|(all, passing)| [all, passing]) })
    }

    /// The least and the greatest value of a column, as numbers: of the rows that pass the filters right below, or of those included that do not.
    fn range(&self, node: &Node, column: usize, is_filtered: bool) -> Option<[f64; 2]> {
        if let Some(filter) = node.downcast_ref::<FilterExec>() {
            let in_input = filter.projection().as_ref().map_or(column, |projection| projection[column]);
            let all = self.range(filter.input(), in_input, is_filtered)?;
            if !is_filtered {
                return Some(all);
            }
            let known = self.of(node).and_then(|statistics| range_of(statistics.column_statistics.get(column)?));
            let count = || self.samples.passing_range(filter, column, self.sampled_rows);
            let counted = self.shares.range(node, column, count);
            let within = |[least, most]: [f64; 2], [first, last]: [f64; 2]| {
                let (least, most) = (least.max(first), most.min(last));
                if least <= most { [least, most] } else { [first, last] }
            };
            return Some([known, counted].into_iter().flatten().fold(all, |range, other| within(other, range)));
        }
        if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
            let column = projection.expr()[column].expr.downcast_ref::<Column>()?;
            return self.range(projection.input(), column.index(), is_filtered);
        }
        if keeps_rows(node) {
            return self.range(node.children()[0], column, is_filtered);
        }
        range_of(self.of(node)?.column_statistics.get(column)?)
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

/// What is known of the values of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyValues {
    /// The distinct values, those included that filters right below drop.
    pub distinct: f64,
    /// The least and the greatest of these, as numbers, and of those that no filter drops; `None` if they are no integers, dates or times, or not known.
    pub ranges: Option<[[f64; 2]; 2]>,
}

impl KeyValues {
    /// The share of the pairs of rows of two sides whose keys are equal.
    ///
    /// Each value of the side with fewer is one of the other's: but where the ranges differ, as of the dates of sales and of a table of
    /// all dates, only in what they have in common. Values and rows lie evenly in their ranges.
    pub fn equal_pairs(self, other: Self) -> f64 {
        let Some((one_ranges, other_ranges)) = self.ranges.zip(other.ranges) else {
            return 1.0 / self.distinct.max(other.distinct).max(1.0);
        };
        let ([_, one], [_, another]) = (one_ranges, other_ranges);
        // A range without common values is one of a single one: statistics may be out of date.
        let common = (one[1].min(another[1]) - one[0].max(another[0]) + 1.0).max(1.0);
        let part = |[least, most]: [f64; 2]| (common / (most - least + 1.0)).min(1.0);
        let distinct = |keys: Self, [all, _]: [[f64; 2]; 2]| keys.distinct * part(all);
        let values = distinct(self, one_ranges).max(distinct(other, other_ranges)).max(1.0);
        part(one) * part(another) / values
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

/// The least and the greatest value of a column of integers, dates or times, as numbers.
fn range_of(column: &ColumnStatistics) -> Option<[f64; 2]> {
    let number = |value: &ScalarValue| {
        let is_number = value.data_type().is_integer() || value.data_type().is_temporal();
        match value.cast_to(&DataType::Int64).ok().filter(|_| is_number)? {
            ScalarValue::Int64(number) => number.map(|number| number as f64),
            _ => None,
        }
    };
    let range = [number(column.min_value.get_value()?)?, number(column.max_value.get_value()?)?];
    (range[0] <= range[1]).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_are_found_where_ranges_meet() {
        let keys = |distinct, all, passing| KeyValues { distinct, ranges: Some([all, passing]) };
        let close = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
        // All dates of two centuries, one year of them, and the dates of the sales of five years.
        let all = keys(73_049.0, [0.0, 73_048.0], [0.0, 73_048.0]);
        let year = keys(73_049.0, [0.0, 73_048.0], [37_000.0, 37_364.0]);
        let sales = keys(1827.0, [36_000.0, 37_826.0], [36_000.0, 37_826.0]);
        assert!(close(all.equal_pairs(sales), 1.0 / 73_049.0));
        assert!(close(sales.equal_pairs(year), 1.0 / 1827.0));
        // Unknown ranges: the fewer values are among the more.
        let unknown = KeyValues { distinct: 100.0, ranges: None };
        assert!(close(unknown.equal_pairs(all), 1.0 / 73_049.0));
        // Nothing in common: as good as nothing.
        let others = keys(100.0, [90_000.0, 90_099.0], [90_000.0, 90_099.0]);
        assert!(others.equal_pairs(all) < 1e-6);
    }
}
