//! Aggregates of pairs, computed by kernels if the query does not need the pairs themselves.

use std::sync::Arc;

use overspill_kernels::{PairAggregate, PairFunction, PairSide, PairTotals};
use overspill_machine::{Error, Result};

use overspill_join::hybrid::PairAggregation;
use overspill_join::selection::{Aggregate, Selection, SelectionState};
use overspill_join::spec::{ColumnSource, JoinSpec, PairForm};

/// Maximum number of distinct aggregates that kernels compute, besides counts.
pub const MOST_AGGREGATES: usize = PairAggregate::MOST;

/// The aggregates of a join in the form that kernels compute.
#[derive(Debug)]
pub(crate) struct PairAggregates {
    /// Selects all rows.
    selection: Selection,
    pub(crate) kernels: Vec<PairAggregate>,
    /// For each aggregate, how to compute it from the kernels' values.
    places: Vec<Place>,
    /// Whether the values of probe rows must be packed columns.
    pub(crate) reads_probe: bool,
}

/// How an aggregate is computed from the kernels' results.
#[derive(Debug, Clone, Copy)]
enum Place {
    Pairs,
    /// The kernels' value with this index.
    Value(usize),
    /// The sums of a number's upper and lower 32 bits, which kernels compute in 64 bits. 2^31 pairs do not overflow them.
    Halves {
        upper: usize,
        lower: usize,
    },
}

/// Bits in the lower half of a summed number.
const HALF: u32 = 32;

/// Maximum number of pairs per chunk for which sums are exact.
const MOST_PAIRS: u64 = 1 << 31;

impl PairAggregates {
    /// Creates the aggregates of a join whose values are packed columns. `place` returns a column's position in the values of
    /// its side: the lowest bit and the number of bits. `None` if kernels cannot compute the aggregates, because pairs must be
    /// inspected, a column is not packed, or there are too many aggregates.
    pub(crate) fn new(
        spec: &JoinSpec,
        aggregates: &[Aggregate],
        place: impl Fn(PairSide, usize) -> Option<(u32, u32)>,
    ) -> Option<Self> {
        if spec.pair_form() != PairForm::Columns {
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
                // Packed columns have no nulls.
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
        (kernels.len() <= MOST_AGGREGATES).then(|| Self {
            selection: Selection { ranges: Vec::new(), aggregates: aggregates.to_vec() },
            kernels,
            places,
            reads_probe,
        })
    }

    /// # Errors
    /// If there are more pairs than sums are exact for.
    fn state(&self, totals: &PairTotals) -> Result<SelectionState> {
        let values = self.places.iter().map(|place| match *place {
            Place::Pairs => 0,
            Place::Value(number) => totals.values[number],
            Place::Halves { upper, lower } => (totals.values[upper] << HALF) + totals.values[lower],
        });
        let state = SelectionState::of_rows(totals.matches, values);
        if totals.matches > MOST_PAIRS && self.kernels.iter().any(|kernel| kernel.function == PairFunction::Sum) {
            return Err(Error::TooMany {
                what: "pairs of rows that kernels sum at once",
                count: totals.matches,
                most: MOST_PAIRS,
            });
        }
        Ok(state)
    }
}

/// The aggregates of a chunk's pairs.
#[derive(Debug, Clone)]
pub(crate) struct AggregatedPairs {
    pub(crate) aggregates: Arc<PairAggregates>,
    found: SelectionState,
    /// The aggregates of the stream that the chunk belongs to.
    aggregation: Arc<PairAggregation>,
}

impl AggregatedPairs {
    /// Starts with no pairs. `None` if the stream's aggregates differ from the join's.
    pub(crate) fn new(aggregates: &Arc<PairAggregates>, aggregation: &Arc<PairAggregation>) -> Option<Self> {
        (aggregates.selection == *aggregation.selection()).then(|| Self {
            found: SelectionState::new(&aggregates.selection),
            aggregates: Arc::clone(aggregates),
            aggregation: Arc::clone(aggregation),
        })
    }

    /// Adds the aggregates of more pairs.
    ///
    /// # Errors
    /// If there are more pairs than sums are exact for.
    pub(crate) fn add(&mut self, totals: &PairTotals) -> Result<()> {
        self.found.merge(&self.aggregates.selection, &self.aggregates.state(totals)?);
        Ok(())
    }

    /// Passes the aggregates found since the last call to the stream.
    pub(crate) fn hand_on(&mut self) {
        self.aggregation.add(&std::mem::replace(&mut self.found, SelectionState::new(&self.aggregates.selection)));
    }
}
