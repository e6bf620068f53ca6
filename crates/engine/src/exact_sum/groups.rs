//! Sums of many groups.

use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::Decimal128Type;
use datafusion::common::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::accumulate::NullState;
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::nulls::filter_to_nulls;

use super::{PARTIAL, Summand};

/// The sum of each group.
#[derive(Debug)]
pub(super) struct SumGroupsAccumulator<T> {
    sums: Vec<i128>,
    /// Groups without values.
    nulls: NullState,
    summand: PhantomData<T>,
}

impl<T> SumGroupsAccumulator<T> {
    pub(super) fn new() -> Self {
        Self { sums: vec![], nulls: NullState::new(), summand: PhantomData }
    }

    fn take(&mut self, emit_to: EmitTo) -> (Vec<i128>, Option<NullBuffer>) {
        (emit_to.take_needed(&mut self.sums), self.nulls.build(emit_to))
    }
}

impl<T: Summand> GroupsAccumulator for SumGroupsAccumulator<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.sums.resize(total_num_groups, 0);
        let sums = self.sums.as_mut_slice();
        let values = values[0].as_primitive::<T>();
        self.nulls.accumulate(group_indices, values, opt_filter, total_num_groups, |group, value| {
            sums[group] += value.into();
        });
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.sums.resize(total_num_groups, 0);
        let sums = self.sums.as_mut_slice();
        let partial = states[0].as_primitive::<Decimal128Type>();
        self.nulls.accumulate(group_indices, partial, None, total_num_groups, |group, sum| sums[group] += sum);
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (sums, nulls) = self.take(emit_to);
        let sums = sums.into_iter().map(T::result).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(PrimitiveArray::<T>::new(sums.into(), nulls)))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (sums, nulls) = self.take(emit_to);
        Ok(vec![Arc::new(Decimal128Array::new(sums.into(), nulls).with_data_type(PARTIAL))])
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let nulls = NullBuffer::union(values.nulls(), opt_filter.map(filter_to_nulls).as_ref());
        let sums: Vec<i128> = values.values().iter().map(|value| (*value).into()).collect();
        Ok(vec![Arc::new(Decimal128Array::new(sums.into(), nulls).with_data_type(PARTIAL))])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.nulls.size()
    }
}
