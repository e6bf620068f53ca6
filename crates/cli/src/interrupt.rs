//! Ctrl-C and termination signals. They end the running query, and a script with it.

use std::io;

use futures::future::join_all;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::failure::{Failure, Outcome};

/// The signals received since the last [`Interrupts::forget`].
#[derive(Debug)]
pub struct Interrupts {
    raised: watch::Sender<Option<i32>>,
}

/// The effect of a second signal while the first is being handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insistence {
    /// A script ends at once. The next start removes what it leaves in the temporary directory.
    Ends,
    /// The interactive shell continues.
    Waits,
}

impl Interrupts {
    pub fn new() -> Self {
        Self { raised: watch::Sender::new(None) }
    }

    /// Starts to listen on a separate thread, as a query that computes without yielding may block every task of its runtime.
    ///
    /// Handlers that were installed before still receive the signals. Handlers that are installed later do not call this one.
    /// A caller whose line editor installs handlers must create the editor first.
    pub fn listen(&self, insistence: Insistence) -> Outcome<()> {
        self.start(insistence).map_err(|error| Failure::message(format!("cannot listen for Ctrl-C: {error}")))
    }

    fn start(&self, insistence: Insistence) -> io::Result<()> {
        let mut kinds = vec![SignalKind::interrupt()];
        if insistence == Insistence::Ends {
            // The prompt of an interactive shell could not handle it, so there it keeps the default action, which ends the
            // process.
            kinds.push(SignalKind::terminate());
        }
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let signals = {
            let _inside = runtime.enter();
            kinds.into_iter().map(|kind| Ok((kind, signal(kind)?))).collect::<io::Result<Vec<_>>>()?
        };
        let sender = self.raised.clone();
        std::thread::Builder::new().name("signals".to_string()).spawn(move || {
            let watches = signals
                .into_iter()
                .map(|(kind, signal)| watch_signal(signal, kind.as_raw_value(), sender.clone(), insistence));
            runtime.block_on(join_all(watches));
        })?;
        Ok(())
    }

    /// Waits for `work`, or until a signal arrives.
    pub async fn unless_raised<T>(&self, work: impl Future<Output = T>) -> Outcome<T> {
        tokio::select! {
            biased;
            signal = self.raised() => Err(Failure::Interrupted(signal)),
            done = work => Ok(done),
        }
    }

    /// Waits for a signal, and returns its number.
    pub async fn raised(&self) -> i32 {
        let mut receiver = self.raised.subscribe();
        match receiver.wait_for(Option::is_some).await {
            Ok(number) => number.unwrap_or_default(),
            // `self` owns the sender, so that the channel cannot close.
            Err(_) => std::future::pending().await,
        }
    }

    /// Forgets the received signals, before the next statement of an interactive shell.
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
