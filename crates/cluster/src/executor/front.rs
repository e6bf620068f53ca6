//! Accepts connections by TLS for services that know none.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// How long another process may take to show its certificate.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes on their way in each direction of a connection.
const BUFFER: usize = 64 << 10;

/// Passes what arrives at a listener by TLS on to the service at `to`, until this is dropped. A connection whose certificate is not
/// accepted ends before the service sees it.
pub async fn serve(listener: TcpListener, acceptor: TlsAcceptor, to: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _)) => {
                    connections.spawn(pass(connection, acceptor.clone(), to));
                }
                // There may be too many open files for now.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn pass(connection: TcpStream, acceptor: TlsAcceptor, to: SocketAddr) {
    let passed = async {
        connection.set_nodelay(true)?;
        let mut outside = timeout(PATIENCE, acceptor.accept(connection)).await??;
        let mut inside = TcpStream::connect(to).await?;
        inside.set_nodelay(true)?;
        copy_bidirectional_with_sizes(&mut outside, &mut inside, BUFFER, BUFFER).await
    };
    if let Err(error) = passed.await {
        tracing::debug!(%error, "a connection by TLS has ended");
    }
}
