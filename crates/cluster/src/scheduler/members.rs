//! The executors that are there, and whether those of a job still are.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ballista_core::serde::scheduler::ExecutorMetadata;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Server;

/// How long an executor may take to accept a connection. A machine that is there but busy takes less.
const CONNECT: Duration = Duration::from_secs(5);

/// Without a sign of life for so long an executor is lost. It gives one each second.
const SILENCE: Duration = Duration::from_secs(30);

/// The executors that are there, and how many were lost. One that has registered again after its loss is another one, as the results of
/// its tasks may be gone.
#[derive(Debug, Default)]
pub struct Members {
    registered: Mutex<Registrations>,
}

#[derive(Debug, Default)]
struct Registrations {
    /// The address of each executor.
    by_id: HashMap<String, String>,
    /// How many were lost so far, and the address of the last.
    lost: u64,
    last_lost: String,
}

impl Registrations {
    fn note_loss(&mut self, address: String) {
        self.lost += 1;
        self.last_lost = address;
    }
}

/// A moment, before which a job did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(u64);

impl Members {
    /// Notes an executor at an address, unless it is known. Any other at this address is lost, as its port is taken.
    pub fn register(&self, id: &str, address: String) {
        let registered = &mut *self.registered.lock();
        let others = registered.by_id.extract_if(|other, at| other != id && *at == address);
        let lost: Vec<String> = others.map(|(_, address)| address).collect();
        lost.into_iter().for_each(|address| registered.note_loss(address));
        registered.by_id.entry(id.to_owned()).or_insert(address);
    }

    /// Forgets an executor, which is lost.
    pub fn remove(&self, id: &str) {
        let registered = &mut *self.registered.lock();
        if let Some(address) = registered.by_id.remove(id) {
            registered.note_loss(address);
        }
    }

    /// This moment, if there is an executor.
    pub fn now(&self) -> Option<Moment> {
        let registered = self.registered.lock();
        (!registered.by_id.is_empty()).then_some(Moment(registered.lost))
    }

    /// The address of an executor that was lost since a moment. A job that began then may have used it, also if it came later.
    pub fn lost_since(&self, moment: Moment) -> Option<String> {
        let registered = self.registered.lock();
        (registered.lost > moment.0).then(|| registered.last_lost.clone())
    }

    /// Connects to each executor, and forgets those that do not accept. Ballista forgets them as well; it is not told that they
    /// are lost, or it would run their stages again.
    pub async fn look(&self, server: &Server) {
        let manager = &server.state.executor_manager;
        let known = manager.get_executors_state().await.unwrap_or_default();
        let ids: Vec<String> = self.registered.lock().by_id.keys().cloned().collect();
        for id in ids {
            // Ballista itself forgets an executor that does not take a task.
            if !known.iter().any(|(metadata, ..)| metadata.id == id) {
                self.remove(&id);
            }
        }
        let looks = known
            .iter()
            .map(|(metadata, beat, _)| async move { (metadata, !is_silent(*beat) && is_there(metadata).await) });
        for (metadata, is_there) in join_all(looks).await {
            if !is_there {
                tracing::warn!(executor = metadata.id, "an executor is lost");
                self.remove(&metadata.id);
                let _ = manager.remove_executor(&metadata.id, Some("it is lost".to_owned())).await;
            }
        }
    }
}

/// The address of an executor's tasks.
pub fn address_of(host: &str, port: impl std::fmt::Display) -> String {
    format!("{host}:{port}")
}

/// Whether an executor that accepts connections has stopped to do anything else. `beat` is when its last sign of life came.
fn is_silent(beat: Option<Duration>) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    beat.is_some_and(|beat| now.saturating_sub(beat) > SILENCE)
}

async fn is_there(executor: &ExecutorMetadata) -> bool {
    let address = address_of(&executor.host, executor.grpc_port);
    matches!(timeout(CONNECT, TcpStream::connect(address)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_that_comes_back_is_another_one() {
        let members = Members::default();
        assert_eq!(members.now(), None);
        members.register("a", "host:1".to_owned());
        members.register("b", "host:2".to_owned());
        let moment = members.now().unwrap();
        members.register("a", "host:1".to_owned());
        assert_eq!(members.lost_since(moment), None);
        members.remove("b");
        members.register("b", "host:2".to_owned());
        assert_eq!(members.lost_since(moment), Some("host:2".to_owned()));
        assert_eq!(members.lost_since(members.now().unwrap()), None);
    }

    #[test]
    fn an_executor_at_the_address_of_another_takes_its_place() {
        let members = Members::default();
        members.register("a", "host:1".to_owned());
        let moment = members.now().unwrap();
        members.register("c", "host:1".to_owned());
        assert_eq!(members.lost_since(moment), Some("host:1".to_owned()));
        assert!(members.now().is_some());
    }

    #[test]
    fn an_executor_that_came_after_a_job_began_may_be_lost_under_it() {
        let members = Members::default();
        members.register("a", "host:1".to_owned());
        let moment = members.now().unwrap();
        members.register("b", "host:2".to_owned());
        members.remove("b");
        assert_eq!(members.lost_since(moment), Some("host:2".to_owned()));
    }

    #[test]
    fn silence_is_no_sign_of_life() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(!is_silent(None) && !is_silent(Some(now)) && !is_silent(Some(now + SILENCE)));
        assert!(is_silent(Some(now - 2 * SILENCE)));
    }
}
