//! Aggregates of pairs, which kernels compute where nobody wants the pairs.

use std::sync::{Arc, Mutex, PoisonError};

use overspill_kernels::{PairAggregate, PairFunction, PairSide, PairTotals};
use overspill_machine::{Error, Result};

use crate::join_type::JoinType;
use crate::selection::{Aggregate, Selection, SelectionState};
use crate::spec::{ColumnSource, JoinSpec};

/// What the output of a stream of a join is aggregated to. Pairs that a GPU aggregates are no output rows: whoever wants the
/// aggregates of all rows adds those that are taken here to those of the output, once the stream has ended.
#[derive(Debug)]
pub struct PairAggregation {
    /// Of all rows; columns are those of the output.
    selection: Selection,
    found: Mutex<SelectionState>,
}

impl PairAggregation {
    /// The most different aggregates that kernels compute besides counts.
    pub const MOST: usize = PairAggregate::MOST;

    /// Of no pairs.
    pub fn new(aggregates: &[Aggregate]) -> Self {
        let selection = Selection { ranges: Vec::new(), aggregates: aggregates.to_vec() };
        Self { found: Mutex::new(SelectionState::new(&selection)), selection }
    }

    /// The aggregates.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Those of pairs that have been found since they were taken last; all are there when the stream has ended.
    pub fn take(&self) -> SelectionState {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut found, SelectionState::new(&self.selection))
    }

    pub(crate) fn add(&self, state: &SelectionState) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).merge(&self.selection, state);
    }
}

/// The aggregates of a join as kernels compute them.
#[derive(Debug)]
pub(crate) struct PairAggregates {
    /// Of all rows.
    selection: Selection,
    kernels: Vec<PairAggregate>,
    /// For each aggregate its value among those of kernels.
    places: Vec<Place>,
    /// Whether the values of probe rows must be their packed columns.
    pub(crate) reads_probe: bool,
}

/// What an aggregate is made of.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The number of pairs.
    Pairs,
    /// A value of kernels.
    Value(usize),
    /// The sums of the upper and the lower 32 bits of a number, which kernels make in 64 bits: 2^31 pairs do not overflow them.
    Halves { upper: usize, lower: usize },
}

/// Bits of the lower half of a number that is summed.
const HALF: u32 = 32;

/// The most pairs of a chunk whose sums are exact.
const MOST_PAIRS: u64 = 1 << 31;

impl PairAggregates {
    /// For a join whose values are packed columns: `place` says where one lies in the values of its side, by its lowest bit and how
    /// many bits there are. `None` if kernels cannot do it, as pairs must be looked at, a column is not packed, or aggregates are
    /// too many.
    pub(crate) fn new(
        spec: &JoinSpec,
        aggregates: &[Aggregate],
        place: impl Fn(PairSide, usize) -> Option<(u32, u32)>,
    ) -> Option<Self> {
        if spec.join_type != JoinType::Inner || spec.filter.is_some() || !spec.codec.is_word() {
            return None;
        }
        let (mut kernels, mut reads_probe) = (Vec::new(), false);
        let mut number_of = |aggregate: PairAggregate| {
            kernels.iter().position(|other| *other == aggregate).unwrap_or_else(|| {
                kernels.push(aggregate);
                kernels.len() - 1
            })
        };
        let places = aggregates.iter().map(|aggregate| {
            let (function, column) = match *aggregate {
                Aggregate::CountRows => return Some(Place::Pairs),
                // What is packed has no nulls.
                Aggregate::Count(column) => (None, column),
                Aggregate::Sum(column) => (Some(PairFunction::Sum), column),
                Aggregate::Min(column) => (Some(PairFunction::Min), column),
                Aggregate::Max(column) => (Some(PairFunction::Max), column),
                Aggregate::SumOfProducts(..) => return None,
            };
            let (side, index, schema) = match *spec.output_columns.get(column)? {
                ColumnSource::Build(index) => (PairSide::Build, index, &spec.build_schema),
                ColumnSource::Probe(index) => (PairSide::Probe, index, &spec.probe_schema),
                ColumnSource::Mark => return None,
            };
            let (shift, bits) = place(side, index)?;
            reads_probe |= side == PairSide::Probe;
            let Some(function) = function else { return Some(Place::Pairs) };
            let is_signed = !schema.field(index).data_type().is_unsigned_integer();
            let whole = PairAggregate { side, function, shift, bits, is_signed };
            if function != PairFunction::Sum || bits <= HALF {
                return Some(Place::Value(number_of(whole)));
            }
            Some(Place::Halves {
                upper: number_of(PairAggregate { shift: shift + HALF, bits: bits - HALF, ..whole }),
                lower: number_of(PairAggregate { bits: HALF, is_signed: false, ..whole }),
            })
        });
        let places = places.collect::<Option<_>>()?;
        (kernels.len() <= PairAggregation::MOST).then(|| Self {
            selection: Selection { ranges: Vec::new(), aggregates: aggregates.to_vec() },
            kernels,
            places,
            reads_probe,
        })
    }

    /// # Errors
    /// If the pairs are so many that sums may have overflowed.
    fn state(&self, totals: &PairTotals) -> Result<SelectionState> {
        let is_exact = totals.matches <= MOST_PAIRS;
        let values = self.places.iter().map(|place| match *place {
            Place::Pairs => 0,
            Place::Value(number) => totals.values[number],
            Place::Halves { upper, lower } => (totals.values[upper] << HALF) + totals.values[lower],
        });
        let state = SelectionState::of_rows(totals.matches, values);
        if !is_exact && self.kernels.iter().any(|kernel| kernel.function == PairFunction::Sum) {
            return Err(Error::Invalid(format!("{} pairs of a chunk, whose sums may overflow", totals.matches)));
        }
        Ok(state)
    }
}

/// What the pairs of a chunk come to.
#[derive(Debug, Clone)]
pub(crate) struct AggregatedPairs {
    aggregates: Arc<PairAggregates>,
    found: SelectionState,
    /// Of the stream whose chunk it is.
    aggregation: Arc<PairAggregation>,
}

impl AggregatedPairs {
    /// Of no pairs; `None` if the stream is asked for other aggregates than its join.
    pub(crate) fn new(aggregates: &Arc<PairAggregates>, aggregation: &Arc<PairAggregation>) -> Option<Self> {
        (aggregates.selection == aggregation.selection).then(|| Self {
            found: SelectionState::new(&aggregates.selection),
            aggregates: Arc::clone(aggregates),
            aggregation: Arc::clone(aggregation),
        })
    }

    /// What kernels compute.
    pub(crate) fn kernels(&self) -> &[PairAggregate] {
        &self.aggregates.kernels
    }

    /// Whether they read the values of probe rows.
    pub(crate) fn reads_probe(&self) -> bool {
        self.aggregates.reads_probe
    }

    /// Adds those of some more pairs.
    ///
    /// # Errors
    /// If the pairs are so many that sums may have overflowed.
    pub(crate) fn add(&mut self, totals: &PairTotals) -> Result<()> {
        self.found.merge(&self.aggregates.selection, &self.aggregates.state(totals)?);
        Ok(())
    }

    /// Hands on what has been found since this was called last.
    pub(crate) fn hand_on(&mut self) {
        self.aggregation.add(&std::mem::replace(&mut self.found, SelectionState::new(&self.aggregates.selection)));
    }
}
