//! The one call that puts Overspill into a DataFusion session.

use std::sync::Arc;

use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

use crate::analyzer::with_analyzer_rules;
use crate::config::OverspillConfig;
use crate::mark_join::MarkJoinQueryPlanner;
use crate::optimizer::{
    self, AdmissionRule, EachNode, FilterPushdownByName, JoinOrderRule, MembershipFilters, SharedBuild, SharedSubplans,
    YieldingOperators,
};
use crate::planning::SessionPlanner;
use crate::prepared::Analyzed;
use crate::runtime::OverspillRuntime;
use crate::scheduler::Scheduler;

/// Puts Overspill's joins into a DataFusion session.
///
/// ```
/// use datafusion::execution::SessionStateBuilder;
/// use datafusion::prelude::SessionContext;
/// use overspill::{OverspillConfig, OverspillSessionExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let state = SessionStateBuilder::new_with_default_features()
///     .with_overspill(OverspillConfig::default())
///     .build();
/// let ctx = SessionContext::new_with_state(state);
/// let rows = ctx
///     .sql("SELECT * FROM (VALUES (1), (2)) a(x) JOIN (VALUES (2), (3)) b(y) ON x = y")
///     .await?
///     .collect()
///     .await?;
/// assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1);
/// # Ok(())
/// # }
/// ```
pub trait OverspillSessionExt {
    /// Runs every equi-join of the session on [`HybridJoinExec`](crate::HybridJoinExec), over the session's own runtime
    /// environment and memory pool, every other join on [`ThetaJoinExec`](crate::ThetaJoinExec), every filter below an
    /// aggregate that allows it on [`FilterAggregateExec`](crate::FilterAggregateExec), and other filters whose conjuncts may change places on
    /// [`AdaptiveFilterExec`](crate::AdaptiveFilterExec).
    ///
    /// Call it after any call that replaces the session's configuration or its list of physical optimizer rules: it keeps
    /// both and adds to them. Plans depend on the limit of the memory pool that the session has when they are made.
    ///
    /// The session shares GPUs with the sessions that have the same [`OverspillRuntime`], an extension of the session's
    /// configuration. If there is none, it gets [that of the process](OverspillRuntime::of_process).
    ///
    /// Logical rules correct wrong answers of DataFusion, or refuse such queries (see [`analyzer`](crate::analyzer)).
    /// DataFusion's planner with an extension plans queries to which these rules have added a
    /// [`NullAwareMarkJoin`](crate::mark_join::NullAwareMarkJoin); the session's planner plans all others. Call this after
    /// the session's planner is set.
    ///
    /// Equal parts of a query run once ([`SharedSubplanExec`](crate::SharedSubplanExec)), unless the session had a planner of its own.
    ///
    /// It also sets `datafusion.execution.max_spill_file_size_bytes` to 1, so that DataFusion's repartitioning, when a
    /// join leaves it little memory, moves each batch to a file of its own: in DataFusion 55, inputs that move batches
    /// of one output to larger files at the same time can wait for each other for ever.
    #[must_use]
    fn with_overspill(self, config: OverspillConfig) -> Self;

    /// Runs the queries of the session as a scheduler says, which it shares with other sessions. Each waits for its admission
    /// ([`AdmissionExec`](crate::AdmissionExec)). A [`QueryUser`](crate::QueryUser), an extension of the session's configuration, says
    /// whose queries they are. Sessions that share a memory pool, as those with the same `RuntimeEnv`, also share its memory by query.
    ///
    /// Call it after [`with_overspill`](Self::with_overspill).
    #[must_use]
    fn with_overspill_scheduler(self, scheduler: Arc<Scheduler>) -> Self;
}

impl OverspillSessionExt for SessionStateBuilder {
    fn with_overspill(mut self, config: OverspillConfig) -> Self {
        let session = self.config().get_or_insert_default();
        if session.get_extension::<OverspillRuntime>().is_none() {
            session.set_extension(Arc::new(OverspillRuntime::of_process()));
        }
        let options = session.options_mut();
        options.extensions.insert(config);
        // The rule for USING needs the spans to recognize what a query has written.
        options.sql_parser.collect_spans = true;
        options.execution.max_spill_file_size_bytes = ConfigNonZeroUsize::try_new(1).expect("1 is not 0");
        let analyzer = self.analyzer().get_or_insert_default();
        analyzer.rules = with_analyzer_rules(std::mem::take(&mut analyzer.rules));
        for rule in &mut self.optimizer().get_or_insert_default().rules {
            *rule = Arc::new(Analyzed(Arc::clone(rule)));
        }
        let planner = self.query_planner();
        let others = planner.take();
        // A planner of the host knows nothing of shared subplans.
        let shares_subplans = others.is_none();
        let mark_joins = Arc::new(MarkJoinQueryPlanner::new(others));
        *planner = Some(Arc::new(SessionPlanner { planner: mark_joins, shares_subplans }));
        let optimizer = self.physical_optimizers().get_or_insert_default();
        let rules = std::mem::take(&mut optimizer.rules);
        *optimizer = PhysicalOptimizer::with_rules(with_last_rules(with_join_rules(rules)));
        self
    }

    fn with_overspill_scheduler(mut self, scheduler: Arc<Scheduler>) -> Self {
        self.config().get_or_insert_default().set_extension(Arc::clone(&scheduler));
        let rules = &mut self.physical_optimizers().get_or_insert_default().rules;
        let position = before_check(rules);
        rules.insert(position, Arc::new(AdmissionRule(scheduler)));
        self
    }
}

/// The place before the rule that checks plans.
fn before_check(rules: &[Rule]) -> usize {
    rules.iter().position(|rule| rule.name() == "SanityCheckPlan").unwrap_or(rules.len())
}

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Adds the join rules around `join_selection`. Before it, sort-merge joins become hash joins, so that it picks their sides
/// and partition mode. After it, and before the rules that enforce distribution and order, hash joins are ordered anew, those that need no
/// partitioning lose it, hash joins become hybrid joins, and other joins become theta joins, so that those rules see the
/// properties of the operator that will run. The rule for grouping sets is there for the same reason: the aggregate's input
/// declares too much. Before all of these, the rule for float bounds drops the bounds from files. The rules that push filters down are kept
/// from columns of equal names.
fn with_join_rules(mut rules: Vec<Rule>) -> Vec<Rule> {
    for rule in rules.iter_mut().filter(|rule| rule.name().starts_with("FilterPushdown")) {
        *rule = Arc::new(FilterPushdownByName(Arc::clone(rule)));
    }
    let position = rules.iter().position(|rule| rule.name() == "join_selection");
    let selected = match position {
        Some(position) => {
            rules.insert(position, Arc::new(EachNode("sort_merge_to_hash_join", optimizer::sort_merge_to_hash_join)));
            position + 2
        }
        None => 0,
    };
    rules.insert(selected, Arc::new(EachNode("grouping_sets_input", optimizer::grouping_sets_input)));
    rules.insert(selected, Arc::new(EachNode("theta_join_selection", optimizer::theta_join_selection)));
    rules.insert(selected, Arc::new(optimizer::HybridJoinSelection));
    rules.insert(selected, Arc::new(SharedBuild));
    rules.insert(selected, Arc::new(JoinOrderRule));
    rules.insert(0, Arc::new(EachNode("float_bounds", optimizer::float_bounds)));
    rules
}

/// Adds the rules for filters and joins of indexed columns, the rule for filters of floats, the rules that fuse filters and joins
/// with aggregates, the rule that drops rows by the keys of joins, the rules that replace filters, aggregates with groups and sorts, the rule that
/// makes operators yield, and the rule that puts the inputs of shared subplans into the plan. They run in this order after all others except the last one, which checks the
/// plan.
fn with_last_rules(mut rules: Vec<Rule>) -> Vec<Rule> {
    let position = before_check(&rules);
    rules.insert(position, Arc::new(SharedSubplans));
    rules.insert(position, Arc::new(YieldingOperators));
    rules.insert(position, Arc::new(EachNode("limited_memory_selection", optimizer::limited_memory_selection)));
    rules.insert(position, Arc::new(EachNode("hybrid_aggregate_selection", optimizer::hybrid_aggregate_selection)));
    rules.insert(position, Arc::new(EachNode("adaptive_filters", optimizer::adaptive_filters)));
    rules.insert(position, Arc::new(MembershipFilters));
    rules.insert(position, Arc::new(EachNode("join_aggregate_fusion", optimizer::join_aggregate_fusion)));
    rules.insert(position, Arc::new(EachNode("filter_aggregate_fusion", optimizer::filter_aggregate_fusion)));
    rules.insert(position, Arc::new(EachNode("float_filters", optimizer::float_filters)));
    rules.insert(position, Arc::new(EachNode("index_lookup_selection", optimizer::index_lookup_selection)));
    rules.insert(position, Arc::new(EachNode("index_scan_selection", optimizer::index_scan_selection)));
    rules
}
