//! What has happened, and whether it kept to the limits.

use std::collections::{HashMap, HashSet};

use crate::limits::Limits;
use crate::policy::{Action, Decision, Reason};
use crate::query::{Class, Demand, Place, QueryId};

/// Something that has happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// When.
    pub at: f64,
    /// What.
    pub what: What,
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// A query came.
    Arrived(Demand),
    /// The policy has decided where a query runs.
    Decided(Decision),
    /// It was on the GPU, and takes other GPU memory than was predicted.
    Corrected {
        /// Which.
        id: QueryId,
        /// Bytes of GPU memory.
        gpu_memory: u64,
    },
    /// It has ended, or was given up.
    Ended(QueryId),
}

/// Whether these are too many. Does not use [`Limits::allow`], which policies use.
fn exceeds(limits: &Limits, on_gpu: &[Demand]) -> bool {
    let of = |class| on_gpu.iter().filter(|demand| demand.class == class).count();
    let most = if of(Class::Join) == on_gpu.len() {
        limits.joins
    } else if of(Class::Aggregate) == on_gpu.len() {
        limits.aggregates
    } else {
        limits.both
    };
    let memory: u128 = on_gpu.iter().map(|demand| u128::from(demand.gpu_memory)).sum();
    on_gpu.len() > most || limits.memory != u64::MAX && memory > u128::from(limits.memory)
}

/// Checks a log: every query arrives once, starts at most once, and ends at most once, those on the GPU keep to the limits at any time,
/// and at most `most` queries run at once, beside as many brief ones.
///
/// # Errors
/// The first entry that does not, in a sentence.
pub fn check(log: &[Entry], limits: &Limits, most: usize) -> Result<(), String> {
    let mut queries: HashMap<QueryId, (Demand, Option<Place>)> = HashMap::new();
    let mut brief = HashSet::new();
    let mut last = f64::NEG_INFINITY;
    for Entry { at, what } in log {
        if *at < last {
            return Err(format!("an entry of {at} s follows one of {last} s"));
        }
        last = *at;
        match what {
            What::Arrived(demand) => {
                if queries.insert(demand.id, (*demand, None)).is_some() {
                    return Err(format!("query {} arrives twice", demand.id.0));
                }
            }
            What::Corrected { id, gpu_memory } => match queries.get_mut(id) {
                Some((demand, Some(_))) => demand.gpu_memory = *gpu_memory,
                _ => return Err(format!("the GPU memory of query {} is corrected, and it does not run", id.0)),
            },
            What::Ended(id) => {
                brief.remove(id);
                if queries.remove(id).is_none() {
                    return Err(format!("query {} ends, and is not there", id.0));
                }
            }
            What::Decided(Decision { id, action, reason }) => {
                if *reason == Reason::Brief {
                    brief.insert(*id);
                }
                let state = queries.get_mut(id).map(|(_, place)| place);
                match (state, action) {
                    (Some(place @ None), Action::Start(at)) => *place = Some(*at),
                    (Some(place @ Some(Place::Gpu)), Action::Move) => *place = Some(Place::Cpu),
                    (state, _) => {
                        return Err(format!("query {} gets the decision {action:?} in the state {state:?}", id.0));
                    }
                }
            }
        }
        let on_gpu = queries.values().filter(|(_, place)| *place == Some(Place::Gpu)).map(|(demand, _)| *demand);
        if exceeds(limits, &on_gpu.collect::<Vec<_>>()) {
            return Err(format!("the limits of the GPU are exceeded at {at} s"));
        }
        let running = queries.values().filter(|(_, place)| place.is_some()).count();
        if running - brief.len() > most || brief.len() > most {
            let brief = brief.len();
            return Err(format!(
                "at {at} s {running} queries run, {brief} of them brief: at most {most} of each kind may"
            ));
        }
    }
    Ok(())
}
