//! What the operators of all ranks have counted, for `EXPLAIN ANALYZE`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{
    Count, Gauge, Label, Metric, MetricValue, MetricsSet, PruningMetrics, RatioMergeStrategy, RatioMetrics, Time,
};
use overspill_exchange::Rank;

use crate::exec::{RankStageExec, SummedExec};
use crate::message::{MetricKind, MetricMessage, NodeMetrics};
use crate::part::exchange;

/// The stage of what writes files, and that of operators above all exchanges. Exchanges have smaller numbers.
const WRITING: u64 = u64::MAX;
const ABOVE: u64 = u64::MAX - 1;

/// Where a node is in the parts of all ranks: below which exchange, and there on which way down, by numbers of children. Between two
/// exchanges all ranks have the same operators, or the first has them alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    stage: u64,
    path: Vec<u32>,
}

impl Place {
    fn root() -> Self {
        Self { stage: ABOVE, path: vec![] }
    }

    /// The place of a node that would be here if it were no exchange.
    fn of(self, node: &Arc<dyn ExecutionPlan>) -> Self {
        let stage = match exchange(node) {
            Some((number, _)) => Some(number),
            None => node.is::<RankStageExec>().then_some(WRITING),
        };
        stage.map_or(self, |stage| Self { stage, path: vec![] })
    }

    fn child(&self, number: usize) -> Self {
        let path = self.path.iter().copied().chain([number as u32]).collect();
        Self { stage: self.stage, path }
    }
}

/// What the operators of this rank's part have counted.
pub fn metrics_of(plan: &Arc<dyn ExecutionPlan>) -> Vec<NodeMetrics> {
    let mut nodes = vec![];
    collect(plan, Place::root(), &mut nodes);
    nodes
}

fn collect(node: &Arc<dyn ExecutionPlan>, place: Place, nodes: &mut Vec<NodeMetrics>) {
    let place = place.of(node);
    let metrics = node.metrics().unwrap_or_default();
    let metrics: Vec<_> = metrics.iter().filter_map(|metric| write(metric)).collect();
    if !metrics.is_empty() {
        let Place { stage, path } = place.clone();
        nodes.push(NodeMetrics { stage, path, name: node.name().to_owned(), metrics });
    }
    for (number, child) in node.children().into_iter().enumerate() {
        collect(child, place.child(number), nodes);
    }
}

/// A plan that shows, beside what the first rank has counted, what these others have: each in its own words in detail, or the sums.
pub fn with_ranks(
    plan: &Arc<dyn ExecutionPlan>,
    ranks: impl IntoIterator<Item = (Rank, Vec<NodeMetrics>)>,
) -> Arc<dyn ExecutionPlan> {
    let mut counted: BTreeMap<Place, Vec<(Rank, NodeMetrics)>> = BTreeMap::new();
    for (rank, nodes) in ranks {
        for node in nodes {
            let place = Place { stage: node.stage, path: node.path.clone() };
            counted.entry(place).or_default().push((rank, node));
        }
    }
    show(plan, Place::root(), &counted)
}

fn show(
    node: &Arc<dyn ExecutionPlan>,
    place: Place,
    counted: &BTreeMap<Place, Vec<(Rank, NodeMetrics)>>,
) -> Arc<dyn ExecutionPlan> {
    let place = place.of(node);
    let own = node.metrics();
    let mut all = own.clone().unwrap_or_default();
    // Rules that go by memory may have given a rank another operator here.
    let of_ranks = counted.get(&place).into_iter().flatten().filter(|(_, other)| other.name == node.name());
    for (rank, other) in of_ranks {
        for message in &other.metrics {
            let Some(metric) = read(message, *rank) else { continue };
            // What is shown depends on the kind that the operator has given it.
            let like = own.iter().flat_map(MetricsSet::iter).find(|like| like.value().name() == metric.value().name());
            let metric = match like {
                Some(like) => {
                    let metric = metric.with_type(like.metric_type());
                    like.metric_category().into_iter().fold(metric, Metric::with_category)
                }
                None => metric,
            };
            all.push(Arc::new(metric));
        }
    }
    let children = node.children().into_iter().enumerate();
    let children = children.map(|(number, child)| show(child, place.child(number), counted)).collect();
    let has_metrics = own.is_some() || all.iter().next().is_some();
    Arc::new(SummedExec::new(Arc::clone(node), children, has_metrics.then_some(all)))
}

/// A metric as it travels; `None` if it says when something was, or is one of an operator's own kinds.
fn write(metric: &Metric) -> Option<MetricMessage> {
    let value = metric.value();
    let (kind, values) = match value {
        MetricValue::OutputRows(_) => (MetricKind::OutputRows, vec![]),
        MetricValue::ElapsedCompute(_) => (MetricKind::ElapsedCompute, vec![]),
        MetricValue::SpillCount(_) => (MetricKind::SpillCount, vec![]),
        MetricValue::SpilledBytes(_) => (MetricKind::SpilledBytes, vec![]),
        MetricValue::OutputBytes(_) => (MetricKind::OutputBytes, vec![]),
        MetricValue::OutputBatches(_) => (MetricKind::OutputBatches, vec![]),
        MetricValue::SpilledRows(_) => (MetricKind::SpilledRows, vec![]),
        MetricValue::CurrentMemoryUsage(_) => (MetricKind::CurrentMemoryUsage, vec![]),
        MetricValue::Count { .. } => (MetricKind::Count, vec![]),
        MetricValue::Gauge { .. } => (MetricKind::Gauge, vec![]),
        MetricValue::PeakMemoryUsage { .. } => (MetricKind::PeakMemoryUsage, vec![]),
        MetricValue::Time { .. } => (MetricKind::Time, vec![]),
        MetricValue::PruningMetrics { pruning_metrics, .. } => {
            let counts = [pruning_metrics.pruned(), pruning_metrics.matched(), pruning_metrics.fully_matched()];
            (MetricKind::Pruning, counts.to_vec())
        }
        MetricValue::Ratio { ratio_metrics, .. } => {
            let merged = match ratio_metrics.merge_strategy() {
                RatioMergeStrategy::AddPartAddTotal => 0,
                RatioMergeStrategy::AddPartSetTotal => 1,
                RatioMergeStrategy::SetPartAddTotal => 2,
            };
            let is_raw = usize::from(ratio_metrics.display_raw_values());
            (MetricKind::Ratio, vec![ratio_metrics.part(), ratio_metrics.total(), merged, is_raw])
        }
        MetricValue::StartTimestamp(_) | MetricValue::EndTimestamp(_) | MetricValue::Custom { .. } => return None,
    };
    let values = if values.is_empty() { vec![value.as_usize()] } else { values };
    let labels = metric.labels().iter().map(|label| (label.name().to_owned(), label.value().to_owned())).collect();
    Some(MetricMessage {
        kind: kind.into(),
        name: value.name().to_owned(),
        labels,
        values: values.into_iter().map(|value| value as u64).collect(),
    })
}

/// A metric of another rank; `None` if it is of a kind that is not known.
fn read(message: &MetricMessage, rank: Rank) -> Option<Metric> {
    let name = || Cow::Owned(message.name.clone());
    let number = |place: usize| message.values.get(place).map(|value| usize::try_from(*value).unwrap_or(usize::MAX));
    let value = number(0)?;
    let count = || {
        let count = Count::new();
        count.add(value);
        count
    };
    let gauge = || {
        let gauge = Gauge::new();
        gauge.set(value);
        gauge
    };
    let time = || {
        let time = Time::new();
        // It rounds what it adds up to a nanosecond, so nothing is not added.
        if value > 0 {
            time.add_duration(Duration::from_nanos(value as u64));
        }
        time
    };
    let value = match MetricKind::try_from(message.kind).ok()? {
        MetricKind::OutputRows => MetricValue::OutputRows(count()),
        MetricKind::ElapsedCompute => MetricValue::ElapsedCompute(time()),
        MetricKind::SpillCount => MetricValue::SpillCount(count()),
        MetricKind::SpilledBytes => MetricValue::SpilledBytes(count()),
        MetricKind::OutputBytes => MetricValue::OutputBytes(count()),
        MetricKind::OutputBatches => MetricValue::OutputBatches(count()),
        MetricKind::SpilledRows => MetricValue::SpilledRows(count()),
        MetricKind::CurrentMemoryUsage => MetricValue::CurrentMemoryUsage(gauge()),
        MetricKind::Count => MetricValue::Count { name: name(), count: count() },
        MetricKind::Gauge => MetricValue::Gauge { name: name(), gauge: gauge() },
        MetricKind::PeakMemoryUsage => MetricValue::PeakMemoryUsage { name: name(), gauge: gauge() },
        MetricKind::Time => MetricValue::Time { name: name(), time: time() },
        MetricKind::Pruning => {
            let pruning_metrics = PruningMetrics::new();
            pruning_metrics.add_pruned(value);
            pruning_metrics.add_matched(number(1)?);
            pruning_metrics.add_fully_matched(number(2)?);
            MetricValue::PruningMetrics { name: name(), pruning_metrics }
        }
        MetricKind::Ratio => {
            let merged = match number(2)? {
                0 => RatioMergeStrategy::AddPartAddTotal,
                1 => RatioMergeStrategy::AddPartSetTotal,
                _ => RatioMergeStrategy::SetPartAddTotal,
            };
            let ratio_metrics =
                RatioMetrics::new().with_merge_strategy(merged).with_display_raw_values(number(3)? == 1);
            ratio_metrics.set_part(value);
            ratio_metrics.set_total(number(1)?);
            MetricValue::Ratio { name: name(), ratio_metrics }
        }
        MetricKind::Unknown => return None,
    };
    let labels = message.labels.iter().map(|(name, value)| Label::new(name.clone(), value.clone()));
    let labels = labels.chain([Label::new("rank", rank.to_string())]).collect();
    Some(Metric::new_with_labels(value, None, labels))
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};

    use super::*;

    #[test]
    fn metrics_travel() {
        let metrics = ExecutionPlanMetricsSet::new();
        let of = || MetricBuilder::new(&metrics);
        of().output_rows(1).add(5);
        of().elapsed_compute(0).add_duration(Duration::from_nanos(70));
        of().with_new_label("reason", "small".to_owned()).global_counter("refused").add(2);
        of().gauge("height", 0).set(9);
        let pruning = of().pruning_metrics("row_groups", 0);
        pruning.add_pruned(3);
        pruning.add_matched(4);
        let ratio = of().ratio_metrics("efficiency", 0);
        ratio.set_part(1);
        ratio.set_total(8);
        of().start_timestamp(0).record();
        let written: Vec<_> = metrics.clone_inner().iter().filter_map(|metric| write(metric)).collect();
        assert_eq!(written.len(), 6, "when something was is no sum");
        let mut read_again = MetricsSet::new();
        written.iter().for_each(|message| read_again.push(Arc::new(read(message, 3).unwrap())));
        let shown: Vec<_> = read_again.iter().map(ToString::to_string).collect();
        for expected in [
            "output_rows{rank=3}=5",
            "elapsed_compute{rank=3}=70ns",
            "refused{reason=small, rank=3}=2",
            "height{rank=3}=9",
            "row_groups{rank=3}=7 total → 4 matched",
            "efficiency{rank=3}=12.5% (1/8)",
        ] {
            assert!(shown.iter().any(|shown| shown.starts_with(expected)), "{expected} of {shown:?}");
        }
        let unknown = MetricMessage { kind: 99, ..written[0].clone() };
        assert!(read(&unknown, 3).is_none());
        let cut = MetricMessage { kind: MetricKind::Ratio.into(), values: vec![1], ..written[0].clone() };
        assert!(read(&cut, 3).is_none());
    }
}
