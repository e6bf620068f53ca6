//! The groups of an input stream in all grouping sets.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Result;

use super::functions::{Functions, Layout};
use super::local::LocalGroups;
use super::metrics::InputMetrics;
use super::partitions::{Rows, StatePartitions};
use super::sets::{GroupingSet, GroupingSets};
use super::table::CachedGroups;

/// Groups the rows of an input stream once, by all keys. The groups of each further set are made of those of another one, which are fewer than the rows.
///
/// ```text
/// rows ---> (a, b, c) ---> (a, b) ---> (a) ---> ()
///               |            |          |       |
///               '------------'-----+----'-------'
///                                  v
///                              partitions
/// ```
pub(super) struct Cascade {
    functions: Arc<Functions>,
    finest: LocalGroups,
    /// The tables of all sets but the first; none without grouping sets.
    coarser: Vec<CachedGroups>,
    partitions: Arc<StatePartitions>,
    metrics: InputMetrics,
}

impl Cascade {
    pub fn new(functions: &Arc<Functions>, partitions: &Arc<StatePartitions>, metrics: InputMetrics) -> Result<Self> {
        let coarser = functions.sets().map_or(&[][..], |sets| &sets.all()[1..]);
        let table = |set| Ok(CachedGroups::new(functions.groups_of_set(set)?, functions.accumulators()?));
        Ok(Self {
            functions: Arc::clone(functions),
            finest: LocalGroups::new(functions, metrics.clone())?,
            coarser: coarser.iter().map(table).collect::<Result<_>>()?,
            partitions: Arc::clone(partitions),
            metrics,
        })
    }

    /// Adds rows. Those that are not grouped, and groups that fill a cache, go to the partitions.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        match self.finest.add(batch)? {
            Some(rows) => self.hand_on(0, rows),
            None => Ok(()),
        }
    }

    /// Takes all groups to the partitions.
    pub fn finish(&mut self) -> Result<()> {
        let rows = self.finest.take()?;
        self.hand_on(0, rows)?;
        for number in 1..=self.coarser.len() {
            let rows = self.take(number)?;
            self.hand_on(number, rows)?;
        }
        Ok(())
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.finest.bytes() + self.coarser.iter().map(CachedGroups::bytes).sum::<usize>()
    }

    /// Adds rows of a set to the sets that are made of it, and to the partitions.
    fn hand_on(&mut self, set: usize, rows: Rows) -> Result<()> {
        let functions = Arc::clone(&self.functions);
        let Some(sets) = functions.sets() else { return self.partition(&rows) };
        let mut waiting = vec![(set, rows)];
        while let Some((number, rows)) = waiting.pop() {
            for (coarser, set) in sets.all().iter().enumerate().skip(1).filter(|(_, set)| set.of == number) {
                let handed_on = self.group(coarser, (sets, set), &rows)?;
                waiting.extend(handed_on.into_iter().map(|rows| (coarser, rows)));
            }
            let mut returned = Rows::new(rows.layout());
            let mut are_returned = false;
            for mut columns in rows.into_parts() {
                are_returned = sets.all()[number].add_id(&mut columns, sets.keys())?;
                returned.push(columns);
            }
            if are_returned {
                self.partition(&returned)?;
            }
        }
        Ok(())
    }

    fn partition(&self, rows: &Rows) -> Result<()> {
        self.metrics.partitioned.add(rows.len());
        self.partitions.add(rows)
    }

    /// Adds rows to the groups of a set. Returns those that are not worth to be grouped, and groups that fill a cache.
    fn group(&mut self, number: usize, (sets, set): (&GroupingSets, &GroupingSet), rows: &Rows) -> Result<Vec<Rows>> {
        let mut ungrouped = Rows::new(rows.layout());
        let mut taken = vec![];
        for columns in rows.parts().iter().filter(|columns| !columns[0].is_empty()) {
            let table = &mut self.coarser[number - 1];
            let rows_of_part = columns[0].len();
            if table.is_paused() {
                table.skip(rows_of_part);
                let mut columns = columns.clone();
                sets.without_absent(set, &mut columns);
                ungrouped.push(columns);
                continue;
            }
            let keys: Vec<ArrayRef> = set.present(&columns[..sets.keys()]).cloned().collect();
            table.number(&keys, rows_of_part)?;
            let (numbers, groups, accumulators) = table.numbered();
            let inputs = (rows.layout(), &columns[sets.keys()..]);
            self.functions.merge(accumulators, inputs, numbers, groups)?;
            if table.is_done() {
                taken.push(self.take(number)?);
            }
        }
        if ungrouped.len() > 0 {
            taken.push(ungrouped);
        }
        Ok(taken)
    }

    /// The groups of a set but the first. The set without keys always has one.
    fn take(&mut self, number: usize) -> Result<Rows> {
        let Some(sets) = self.functions.sets() else { return Ok(Rows::new(Layout::States)) };
        let (set, table) = (&sets.all()[number], &mut self.coarser[number - 1]);
        if table.is_total_of_no_rows() {
            self.functions.add_group_of_no_rows(&mut table.accumulators)?;
        }
        // Groups may have neither keys nor states.
        let groups = table.len();
        Ok(Rows::of(Layout::States, sets.with_absent(set, table.take()?, groups)))
    }
}
