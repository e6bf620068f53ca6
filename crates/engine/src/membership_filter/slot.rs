//! The place where a join leaves the keys of its build side.

use std::sync::{Arc, OnceLock, Weak};

use overspill_join::hybrid::{BuildSide, KeyHashes, Membership};
use overspill_join::memory::Grant;
use overspill_join::spec::JoinSpec;
use parking_lot::Mutex;

/// Brings the keys of a join's build sides to the nodes that drop rows by them. The plan nodes share it.
///
/// The keys are those of one execution. If two executions of a plan overlap, neither uses any, as their tables may differ.
#[derive(Debug, Default)]
pub(crate) struct MembershipSlot(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Executions of the join that have not ended.
    running: usize,
    /// Whether several have run at a time since none did.
    is_mixed: bool,
    keys: Weak<BuildKeys>,
}

impl MembershipSlot {
    /// Begins an execution of the join, with `parts` build sides.
    pub fn begin(self: &Arc<Self>, spec: &Arc<JoinSpec>, parts: usize) -> MembershipSource {
        let keys =
            Arc::new(BuildKeys { spec: Arc::clone(spec), parts, collected: Mutex::default(), whole: OnceLock::new() });
        let mut state = self.0.lock();
        state.running += 1;
        state.is_mixed |= state.running > 1;
        state.keys = Arc::downgrade(&keys);
        MembershipSource { slot: Arc::clone(self), keys }
    }

    /// The keys of the execution that runs; `None` if that is not known.
    pub fn keys(&self) -> Option<Arc<BuildKeys>> {
        let state = self.0.lock();
        if state.is_mixed { None } else { state.keys.upgrade() }
    }
}

/// The keys of the build sides of one execution.
#[derive(Debug)]
pub(crate) struct BuildKeys {
    spec: Arc<JoinSpec>,
    /// Number of build sides.
    parts: usize,
    collected: Mutex<Collected>,
    whole: OnceLock<Membership>,
}

#[derive(Debug, Default)]
struct Collected {
    parts: Vec<KeyHashes>,
    /// Whether a part is missing for ever.
    is_incomplete: bool,
}

impl BuildKeys {
    /// All keys; `None` until all build sides have been read, and if some keys are not known.
    pub fn whole(&self) -> Option<&Membership> {
        self.whole.get()
    }

    /// Adds the keys of a build side. `memory` pays for them.
    fn add(&self, build: &BuildSide, memory: Grant) {
        if self.parts == 1 {
            if let Some(keys) = Membership::of(&self.spec, build, memory) {
                let _ = self.whole.set(keys);
            }
            return;
        }
        let part = KeyHashes::of(build, memory);
        let mut collected = self.collected.lock();
        match part {
            Some(part) if !collected.is_incomplete => collected.parts.push(part),
            _ => *collected = Collected { parts: vec![], is_incomplete: true },
        }
        if collected.parts.len() < self.parts {
            return;
        }
        let parts = std::mem::take(&mut collected.parts);
        if let Some(keys) = Membership::of_all(&self.spec, &parts) {
            let _ = self.whole.set(keys);
        }
    }
}

/// The right of one execution to publish its keys. Dropped, it ends the execution.
#[derive(Debug)]
pub(crate) struct MembershipSource {
    slot: Arc<MembershipSlot>,
    keys: Arc<BuildKeys>,
}

impl MembershipSource {
    /// Publishes the keys of a build side, if they are known. `memory` pays for them.
    pub fn add(&self, build: &BuildSide, memory: Grant) {
        self.keys.add(build, memory);
    }
}

impl Drop for MembershipSource {
    fn drop(&mut self) {
        let mut state = self.slot.0.lock();
        state.running -= 1;
        if state.running == 0 {
            *state = State::default();
        }
    }
}
