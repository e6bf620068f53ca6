//! Ctrl-C and the request to terminate: they end the query that runs, and a script with it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The signals that have come since the last [`Interrupts::forget`].
#[derive(Debug)]
pub struct Interrupts {
    raised: watch::Sender<Option<i32>>,
}

/// What a second signal does while the first is still being obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insistence {
    /// A script ends at once; what it leaves in the temporary directory goes at the next start.
    Ends,
    /// The interactive shell stays.
    Waits,
}

impl Interrupts {
    /// Listens from now on. Call it inside the runtime.
    pub fn listen(insistence: Insistence) -> io::Result<Self> {
        let (raised, _) = watch::channel(None);
        let mut signals = vec![SignalKind::interrupt()];
        if insistence == Insistence::Ends {
            // At the prompt of an interactive shell nothing could obey it, so there it keeps its default: the end.
            signals.push(SignalKind::terminate());
        }
        for kind in signals {
            tokio::spawn(watch_signal(signal(kind)?, kind.as_raw_value(), raised.clone(), insistence));
        }
        Ok(Self { raised })
    }

    /// Ends when a signal has come, with its number.
    pub async fn raised(&self) -> i32 {
        let mut receiver = self.raised.subscribe();
        match receiver.wait_for(Option::is_some).await {
            Ok(number) => number.unwrap_or_default(),
            // The sender lives in self: the channel cannot close.
            Err(_) => std::future::pending().await,
        }
    }

    /// Forgets the signals that have come, before the next statement of an interactive shell.
    pub fn forget(&self) {
        self.raised.send_replace(None);
    }
}

async fn watch_signal(mut signal: Signal, number: i32, raised: watch::Sender<Option<i32>>, insistence: Insistence) {
    while signal.recv().await.is_some() {
        let earlier = raised.send_replace(Some(number));
        if earlier.is_some() && insistence == Insistence::Ends {
            std::process::exit(128 + number);
        }
    }
}
