//! The thread for what happens at a time.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::shared::Shared;
use super::work::Work;

/// The longest sleep. Times further away would overflow.
const LONGEST: Duration = Duration::from_secs(3600);

/// Starts the thread that tells the schedule the time when it asks for it, and stops queries at their time limits. It ends when the
/// scheduler closes.
pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name("overspill-scheduler".to_owned()).spawn(move || run(&shared))?;
    Ok(())
}

fn run(shared: &Shared) {
    let mut state = shared.state.lock();
    while !state.is_closed {
        let now = shared.now();
        match state.next_time(&shared.config) {
            Some(next) if next <= now => {
                let stopped = state.at(now, &shared.config);
                if !stopped.is_empty() {
                    MutexGuard::unlocked(&mut state, || stopped.into_iter().for_each(Work::stop));
                }
            }
            Some(next) => {
                let sleep = Duration::try_from_secs_f64(next - now).unwrap_or(LONGEST).min(LONGEST);
                shared.changed.wait_for(&mut state, sleep);
            }
            None => shared.changed.wait(&mut state),
        }
    }
}
