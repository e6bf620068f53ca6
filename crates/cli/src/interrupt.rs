//! Ctrl-C and the request to terminate: they end the query that runs, and a script with it.

use std::io;

use futures::future::join_all;
use tokio::runtime::Builder;
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
    pub fn new() -> Self {
        Self { raised: watch::Sender::new(None) }
    }

    /// Listens from now on, on a thread of its own: a query that computes without giving way may hold up every task of
    /// the runtime it runs in.
    ///
    /// What was installed for the signals before goes on being told of them; what is installed after is not aware of
    /// this: whoever uses a line editor with handlers of its own listens after it is made.
    pub fn listen(&self, insistence: Insistence) -> io::Result<()> {
        let mut kinds = vec![SignalKind::interrupt()];
        if insistence == Insistence::Ends {
            // At the prompt of an interactive shell nothing could obey it, so there it keeps its default: the end.
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
