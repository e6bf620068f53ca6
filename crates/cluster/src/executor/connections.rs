//! The connections of an executor to others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ballista_core::client::BallistaClient;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::error::Result;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::utils::GrpcClientConfig;
use parking_lot::Mutex;

use crate::network::Network;

/// Connections to one executor that wait for their next use, at most. A query may have had many more.
const MOST_IDLE: usize = 8;

/// The connections to one executor that are not used, each since a moment.
type Idle = Vec<(BallistaClient, Instant)>;

/// Connections that wait for their next use. Ballista's own pool is private to its executor's default engine.
#[derive(Clone)]
pub struct Connections {
    idle: Arc<Mutex<HashMap<(String, u16), Idle>>>,
    kept: Duration,
    network: Network,
}

impl Connections {
    /// No connections yet; each is kept for `kept` after its last use.
    pub fn new(kept: Duration, network: Network) -> Self {
        Self { idle: Arc::default(), kept, network }
    }

    fn drop_old(&self) {
        let kept = self.kept;
        self.idle.lock().retain(|_, connections| {
            connections.retain(|(_, since)| since.elapsed() < kept);
            !connections.is_empty()
        });
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

#[async_trait]
impl BallistaClientPool for Connections {
    async fn acquire(
        &self,
        host: &str,
        port: u16,
        config: &GrpcClientConfig,
        customize: Option<Arc<BallistaConfigGrpcEndpoint>>,
    ) -> Result<PooledClient> {
        self.drop_old();
        let key = (host.to_owned(), port);
        let kept = self.idle.lock().get_mut(&key).and_then(Vec::pop);
        let client = match kept {
            Some((client, _)) => client,
            None => {
                BallistaClient::try_new(
                    host,
                    port,
                    config.max_message_size,
                    false,
                    customize.or_else(|| Some(self.network.for_rows())),
                    config.io_retries_times,
                    config.io_retry_wait_time_ms,
                    // The network sets them.
                    0,
                    0,
                )
                .await?
            }
        };
        let idle = Arc::clone(&self.idle);
        let give_back = move |client| {
            let mut idle = idle.lock();
            let connections = idle.entry(key).or_default();
            if connections.len() < MOST_IDLE {
                connections.push((client, Instant::now()));
            }
        };
        Ok(PooledClient::new(client, Box::new(give_back)))
    }

    async fn evict_idle(&self) {
        self.drop_old();
    }
}
