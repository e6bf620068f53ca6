//! Aggregates over the matches of a join, computed by kernels that do not write the pairs.

use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};

use super::arguments::{AggregateArguments, JoinOutput, MOST_AGGREGATES};

/// The side of a match whose value is aggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairSide {
    /// The build side.
    Build,
    /// The probe side.
    Probe,
}

/// An aggregate function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairFunction {
    /// The sum, modulo 2^64.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// An aggregate over all matches of a number stored in the value of one side (paper 1, section 5.1: aggregated results are
/// not written and do not cross the link).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairAggregate {
    /// The side whose value holds the number.
    pub side: PairSide,
    /// The aggregate function.
    pub function: PairFunction,
    /// The lowest bit of the number in the value.
    pub shift: u32,
    /// The width of the number in bits, from 1 to 64.
    pub bits: u32,
    /// Whether the number's highest bit is its sign.
    pub is_signed: bool,
}

/// The result of a join that aggregates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PairTotals {
    /// The number of matches.
    pub matches: u64,
    /// The value of each aggregate. Unspecified if there are no matches.
    pub values: Vec<i128>,
}

impl PairTotals {
    /// The sum of the aggregates, modulo 2^64.
    pub fn sum(&self) -> u64 {
        self.values.iter().fold(0u64, |sum, value| sum.wrapping_add(*value as u64))
    }
}

impl PairAggregate {
    /// The maximum number of aggregates of a kernel.
    pub const MOST: usize = MOST_AGGREGATES;

    /// The sums of the values of both sides, which the papers' joins compute.
    pub const SUMS: [Self; 2] = [Self::sum_of(PairSide::Build), Self::sum_of(PairSide::Probe)];

    const fn sum_of(side: PairSide) -> Self {
        Self { side, function: PairFunction::Sum, shift: 0, bits: 64, is_signed: false }
    }

    fn arguments(&self) -> Result<AggregateArguments> {
        let top = self.shift.checked_add(self.bits).filter(|top| *top <= 64 && self.bits > 0);
        let top = top.ok_or_else(|| {
            Error::Invalid(format!("an aggregate of {} bits from bit {} of 64 on", self.bits, self.shift))
        })?;
        Ok(AggregateArguments {
            flip: self.flip(),
            of_build: u32::from(self.side == PairSide::Build),
            left: 64 - top,
            right: 64 - self.bits,
            is_signed: u32::from(self.is_signed),
            is_sum: u32::from(self.function == PairFunction::Sum),
            padding: 0,
        })
    }

    /// The bits to invert so that a maximum over unsigned numbers yields the aggregate.
    fn flip(&self) -> u64 {
        let sign = if self.is_signed { 1 << 63 } else { 0 };
        match self.function {
            PairFunction::Sum => 0,
            PairFunction::Max => sign,
            PairFunction::Min => !sign,
        }
    }

    fn value(&self, word: u64) -> i128 {
        let word = word ^ self.flip();
        if self.is_signed { i128::from(word as i64) } else { i128::from(word) }
    }
}

/// The device memory that kernels accumulate results in.
#[derive(Debug)]
pub struct Totals {
    aggregates: Vec<PairAggregate>,
    words: DeviceBuffer,
}

impl Totals {
    /// Initializes the totals to no matches, for work that is queued on the stream later.
    ///
    /// # Errors
    /// If there are more aggregates than kernels take, an aggregate's bits are out of range, or 8 bytes of memory for each
    /// are not available.
    pub(crate) fn new(stream: &Stream, aggregates: &[PairAggregate]) -> Result<Self> {
        if aggregates.len() > MOST_AGGREGATES {
            let number = aggregates.len();
            return Err(Error::Invalid(format!("{number} aggregates of a join: kernels take {MOST_AGGREGATES}")));
        }
        let mut words = DeviceBuffer::new(stream.device(), 8 * (1 + aggregates.len() as u64))?;
        words.fill(stream, 0)?;
        Ok(Self { aggregates: aggregates.to_vec(), words })
    }

    pub(crate) fn output(&mut self) -> Result<JoinOutput> {
        let mut output = JoinOutput {
            totals: self.words.view_mut().address(),
            aggregates: self.aggregates.len() as u64,
            ..JoinOutput::default()
        };
        for (place, aggregate) in output.aggregate.iter_mut().zip(&self.aggregates) {
            *place = aggregate.arguments()?;
        }
        Ok(output)
    }

    /// Waits for the stream, which their work was queued on, and reads the totals.
    ///
    /// # Errors
    /// If the work failed.
    pub fn read(&self, stream: &Stream) -> Result<PairTotals> {
        let words: Vec<u64> = self.words.read(stream, 1 + self.aggregates.len())?;
        let values = self.aggregates.iter().zip(&words[1..]).map(|(aggregate, word)| aggregate.value(*word));
        Ok(PairTotals { matches: words[0], values: values.collect() })
    }
}
