//! The grouping sets of an aggregate. The groups of one set are computed from the groups of another.

use arrow::array::{ArrayRef, new_null_array};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_plan::aggregates::PhysicalGroupBy;

/// The most sets: each has a table of groups in each stream.
const MOST_SETS: usize = 256;

/// The sets of `GROUPING SETS`, `ROLLUP` or `CUBE`, each after those that it may be made of.
#[derive(Debug)]
pub(super) struct GroupingSets {
    sets: Vec<GroupingSet>,
    /// The types of the keys.
    types: Vec<DataType>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct GroupingSet {
    /// Whether each key is NULL in all groups.
    absent: Vec<bool>,
    /// The number of the set that this one is computed from. The first set is computed from rows, and has its own number here.
    pub of: usize,
    /// The value that tells the groups of the set from those of others; `None` if they are not returned.
    id: Option<ScalarValue>,
}

impl GroupingSets {
    /// The sets of `groups`. `types` are the types of the keys. `id_type` is the type of the column that tells the sets apart.
    ///
    /// The first set always has all keys. If the query does not ask for that set, its groups are not returned. Returns `None` if a set
    /// comes twice, or if there are more than [`MOST_SETS`].
    ///
    /// # Errors
    /// If a value does not fit its type.
    pub fn of(groups: &PhysicalGroupBy, types: Vec<DataType>, id_type: &DataType) -> Result<Option<Self>> {
        if groups.groups().len() > MOST_SETS {
            return Ok(None);
        }
        let mut all = groups.groups().to_vec();
        let missing = |absent: &Vec<bool>| absent.iter().filter(|absent| **absent).count();
        all.sort_by_key(missing);
        if all.iter().enumerate().any(|(at, set)| all[..at].contains(set)) {
            return Ok(None);
        }
        let finest = vec![false; types.len()];
        let mut sets = vec![];
        if all.first() != Some(&finest) {
            sets.push(GroupingSet { absent: finest, of: 0, id: None });
        }
        for absent in all {
            // One bit a key, the first in the highest: as DataFusion's aggregates number them.
            let id = absent.iter().fold(0_u64, |id, absent| id << 1 | u64::from(*absent));
            let id = Some(ScalarValue::UInt64(Some(id)).cast_to(id_type)?);
            let has_all = |set: &GroupingSet| has_all_keys(&set.absent, &absent);
            let candidates = sets.iter().enumerate().filter(|(_, set)| has_all(set));
            // The fewest keys have the fewest groups, about.
            let of = candidates.max_by_key(|(_, set)| missing(&set.absent)).map_or(0, |(number, _)| number);
            sets.push(GroupingSet { absent, of, id });
        }
        Ok(Some(Self { sets, types }))
    }

    /// The sets.
    pub fn all(&self) -> &[GroupingSet] {
        &self.sets
    }

    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.types.len()
    }

    /// Puts NULL columns between the keys of this many groups, for the keys that a set does not have. `columns` begin with those that it has.
    pub fn with_absent(&self, set: &GroupingSet, columns: Vec<ArrayRef>, groups: usize) -> Vec<ArrayRef> {
        let mut rest = columns.into_iter();
        let mut columns = vec![];
        for (absent, data_type) in set.absent.iter().zip(&self.types) {
            columns.extend(if *absent { Some(new_null_array(data_type, groups)) } else { rest.next() });
        }
        columns.extend(rest);
        columns
    }

    /// Puts NULL in place of the keys that a set does not have.
    pub fn without_absent(&self, set: &GroupingSet, columns: &mut [ArrayRef]) {
        for ((column, absent), data_type) in columns.iter_mut().zip(&set.absent).zip(&self.types) {
            if *absent {
                *column = new_null_array(data_type, column.len());
            }
        }
    }
}

impl GroupingSet {
    /// The keys of groups, of those of all sets.
    pub fn present<'a, T>(&'a self, keys: &'a [T]) -> impl Iterator<Item = &'a T> {
        keys.iter().zip(&self.absent).filter(|(_, absent)| !**absent).map(|(key, _)| key)
    }

    /// Adds the column that tells the groups of the set from those of others, after `keys` columns. Returns false if they are not returned.
    pub fn add_id(&self, columns: &mut Vec<ArrayRef>, keys: usize) -> Result<bool> {
        let Some(id) = &self.id else { return Ok(false) };
        columns.insert(keys, id.to_array_of_size(columns[0].len())?);
        Ok(true)
    }
}

/// Whether a set has all keys of another one.
fn has_all_keys(set: &[bool], other: &[bool]) -> bool {
    set.iter().zip(other).all(|(absent, absent_of_other)| !absent || *absent_of_other)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::physical_expr::PhysicalExpr;
    use datafusion::physical_expr::expressions::Column;

    use super::*;

    /// The keys of a set, what it is made of, and its number.
    type Described = (Vec<usize>, usize, Option<u8>);

    /// Each set, in order.
    fn sets_of(keys: usize, sets: &[&[usize]]) -> Option<Vec<Described>> {
        let expressions =
            (0..keys).map(|key| (Arc::new(Column::new("k", key)) as Arc<dyn PhysicalExpr>, "k".to_owned()));
        let absent = sets.iter().map(|set| (0..keys).map(|key| !set.contains(&key)).collect()).collect();
        let groups = PhysicalGroupBy::new(expressions.collect(), vec![], absent, true);
        let sets = GroupingSets::of(&groups, vec![DataType::Int32; keys], &DataType::UInt8).unwrap()?;
        let all: Vec<usize> = (0..keys).collect();
        let of = |set: &GroupingSet| {
            let id = set.id.as_ref().map(|id| match id {
                ScalarValue::UInt8(Some(id)) => *id,
                other => panic!("{other:?}"),
            });
            (set.present(&all).copied().collect(), set.of, id)
        };
        Some(sets.all().iter().map(of).collect())
    }

    #[test]
    fn each_set_is_made_of_the_one_with_the_fewest_keys() {
        let rollup = sets_of(3, &[&[], &[0], &[0, 1], &[0, 1, 2]]);
        let expected = vec![
            (vec![0, 1, 2], 0, Some(0b000)),
            (vec![0, 1], 0, Some(0b001)),
            (vec![0], 1, Some(0b011)),
            (vec![], 2, Some(0b111)),
        ];
        assert_eq!(rollup, Some(expected));
        let expected = vec![
            (vec![0, 1, 2], 0, None),
            (vec![0, 2], 0, Some(0b010)),
            (vec![1], 0, Some(0b101)),
            (vec![2], 1, Some(0b110)),
        ];
        assert_eq!(sets_of(3, &[&[1], &[2], &[0, 2]]), Some(expected));
        assert_eq!(sets_of(2, &[&[0], &[1], &[0]]), None);
    }
}
