//! Sums of many groups.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::accumulate::NullState;
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::nulls::filter_to_nulls;

use super::total::Carrying;
use super::{Summand, Total};

/// The sum of each group. It uses the memory of the values' type, like sums that wrap around.
#[derive(Debug)]
pub(super) struct SumGroupsAccumulator<T: Summand> {
    wrapped: Vec<T::Native>,
    /// Carries of the few groups that have one.
    carries: HashMap<usize, i64>,
    /// Groups without values.
    nulls: NullState,
    /// The type of the result.
    data_type: DataType,
}

/// The sums of groups that are emitted, their carries, and their nulls.
type Emitted<N> = (Vec<N>, HashMap<usize, i64>, Option<NullBuffer>);

impl<T: Summand> SumGroupsAccumulator<T> {
    pub(super) fn new(data_type: DataType) -> Self {
        Self { wrapped: vec![], carries: HashMap::new(), nulls: NullState::new(), data_type }
    }

    fn add(
        &mut self,
        values: &PrimitiveArray<T>,
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total_groups: usize,
    ) {
        self.wrapped.resize(total_groups, T::Native::default());
        let (wrapped, carries) = (self.wrapped.as_mut_slice(), &mut self.carries);
        self.nulls.accumulate(groups, values, filter, total_groups, |group, value| {
            let place = &mut wrapped[group];
            let (sum, carry) = place.plus(value);
            *place = sum;
            if carry != 0 {
                carry_over(carries, group, carry);
            }
        });
    }

    fn take(&mut self, emit_to: EmitTo) -> Emitted<T::Native> {
        let carries = std::mem::take(&mut self.carries);
        let carries = match emit_to {
            EmitTo::All => carries,
            EmitTo::First(groups) => {
                let (emitted, kept): (HashMap<_, _>, HashMap<_, _>) =
                    carries.into_iter().partition(|(group, _)| *group < groups);
                self.carries = kept.into_iter().map(|(group, carry)| (group - groups, carry)).collect();
                emitted
            }
        };
        (emit_to.take_needed(&mut self.wrapped), carries, self.nulls.build(emit_to))
    }
}

#[cold]
fn carry_over(carries: &mut HashMap<usize, i64>, group: usize, carry: i64) {
    *carries.entry(group).or_default() += carry;
}

impl<T: Summand> GroupsAccumulator for SumGroupsAccumulator<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.add(values[0].as_primitive(), group_indices, opt_filter, total_num_groups);
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.add(states[0].as_primitive(), group_indices, None, total_num_groups);
        let carries = states[1].as_primitive::<Int64Type>().values();
        for (group, carry) in group_indices.iter().zip(carries).filter(|(_, carry)| **carry != 0) {
            carry_over(&mut self.carries, *group, *carry);
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (wrapped, carries, nulls) = self.take(emit_to);
        for (group, carry) in carries {
            T::result(Total { wrapped: wrapped[group], carry }, &self.data_type)?;
        }
        for sum in &wrapped {
            T::result(Total::of(*sum), &self.data_type)?;
        }
        Ok(Arc::new(PrimitiveArray::<T>::new(wrapped.into(), nulls).with_data_type(self.data_type.clone())))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (wrapped, carries, nulls) = self.take(emit_to);
        let mut column = vec![0; wrapped.len()];
        carries.into_iter().for_each(|(group, carry)| column[group] = carry);
        let sums = PrimitiveArray::<T>::new(wrapped.into(), nulls).with_data_type(self.data_type.clone());
        Ok(vec![Arc::new(sums), Arc::new(Int64Array::from(column))])
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let nulls = NullBuffer::union(values.nulls(), opt_filter.map(filter_to_nulls).as_ref());
        let sums = PrimitiveArray::<T>::new(values.values().clone(), nulls).with_data_type(self.data_type.clone());
        let carries = Int64Array::from(vec![0; sums.len()]);
        Ok(vec![Arc::new(sums), Arc::new(carries)])
    }

    fn size(&self) -> usize {
        self.wrapped.capacity() * size_of::<T::Native>()
            + self.carries.capacity() * size_of::<(usize, i64)>()
            + self.nulls.size()
    }
}
