//! Connections between the processes of a cluster: plain ones, or TLS with certificates on both ends.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ballista_core::extension::{BallistaConfigGrpcEndpoint, EndpointOverrideFn};
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tonic::Status;
use tonic::codegen::http::uri::Scheme;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig, Uri};

use crate::error::failed;
use crate::settings::MESSAGE;

/// Bytes of rows that may be on their way over a connection. The memory pool does not know of them.
const WINDOW: u32 = 1 << 20;

/// The files of a process that connects by TLS, all of them in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Its certificate, followed by those between it and an authority's.
    pub certificate: PathBuf,
    /// The private key of its certificate.
    pub key: PathBuf,
    /// The certificates of the authorities, one of which has signed that of each other process.
    pub authority: PathBuf,
    /// The name that the certificates of other processes are valid for; by default the name or the address that they are reached by.
    pub name: Option<String>,
}

/// How a process connects to the others of its cluster. By default connections are neither encrypted nor proven.
///
/// With TLS both ends of each connection show a certificate, and each end accepts those that its authorities have signed. Then whoever
/// has such a certificate is trusted, and nobody else is.
#[derive(Debug, Clone, Default)]
pub struct Network {
    tls: Option<Arc<Tls>>,
}

#[derive(Debug)]
struct Tls {
    client: ClientTlsConfig,
    /// For services of our own.
    server: ServerTlsConfig,
    /// The same, for services of Ballista, which know no TLS.
    acceptor: Arc<ServerConfig>,
}

impl Network {
    /// Connections by TLS.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be; the error names it.
    pub fn with_tls(files: &TlsFiles) -> Result<Self> {
        let [certificate, key, authority] = [&files.certificate, &files.key, &files.authority].map(|path| read(path));
        let (certificate, key, authority) = (certificate?, key?, authority?);
        let acceptor = acceptor(files, &certificate, &key, &authority)?;
        let identity = Identity::from_pem(certificate, key);
        let authority = Certificate::from_pem(authority);
        let mut client = ClientTlsConfig::new().ca_certificate(authority.clone()).identity(identity.clone());
        if let Some(name) = &files.name {
            client = client.domain_name(name);
        }
        let server = ServerTlsConfig::new().identity(identity).client_ca_root(authority);
        Ok(Self { tls: Some(Arc::new(Tls { client, server, acceptor: Arc::new(acceptor) })) })
    }

    /// What a service of our own is given for its connections. `None` if they are plain.
    pub(crate) fn server(&self) -> Option<ServerTlsConfig> {
        self.tls.as_ref().map(|tls| tls.server.clone())
    }

    /// What accepts connections in front of a service that knows no TLS. `None` if they are plain.
    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.tls.as_ref().map(|tls| Arc::clone(&tls.acceptor).into())
    }

    /// How to connect to the scheduler at an address, a host and a port.
    ///
    /// # Errors
    /// It is no address.
    pub(crate) fn to_scheduler(&self, address: &str) -> Result<Endpoint> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(Into::into);
        endpoint
            .and_then(|endpoint| self.secured(endpoint))
            .map_err(|_| failed(format!("{address} is no address of a scheduler: write HOST:PORT")))
    }

    /// A connection to the scheduler at an address, a host and a port.
    ///
    /// # Errors
    /// Nothing listens there, or its certificate is not accepted. One that does not accept ours only says so when it is asked something,
    /// by [`unanswered`](Self::unanswered).
    pub(crate) async fn scheduler(&self, address: &str) -> Result<SchedulerGrpcClient<Channel>> {
        let channel = self.to_scheduler(address)?.connect().await.map_err(|error| match refusal_of_tls(&error) {
            Some(reason) => failed(format!(
                "There is no connection by TLS to the scheduler at {address}: {reason}. Look at --tls-ca and --tls-name, and at what \
                 the scheduler was started with"
            )),
            None => failed(format!(
                "There is no scheduler at {address}: start one with overspill cluster scheduler, or name another"
            )),
        })?;
        Ok(SchedulerGrpcClient::new(channel)
            .max_decoding_message_size(MESSAGE as usize)
            .max_encoding_message_size(MESSAGE as usize))
    }

    /// The error of a scheduler that has ended a connection before its first answer.
    pub(crate) fn unanswered(&self, address: &str) -> DataFusionError {
        let cause = match self.tls {
            Some(_) => "it has ended, or does not accept the certificate of --tls-cert",
            None => "it has ended, or asks for TLS: then add --tls-cert, --tls-key and --tls-ca",
        };
        failed(format!("The scheduler at {address} has closed the connection without an answer: {cause}"))
    }

    /// How Ballista's own clients of schedulers and executors connect. `None` if they are right as they are.
    pub(crate) fn of_ballista(&self) -> Option<EndpointOverrideFn> {
        self.tls.as_ref()?;
        let network = self.clone();
        Some(Arc::new(move |endpoint| network.secured(endpoint)))
    }

    /// How a client of rows connects, so that it notices a machine that is gone, and is not sent more than it can hold.
    pub(crate) fn for_rows(&self) -> Arc<BallistaConfigGrpcEndpoint> {
        let network = self.clone();
        Arc::new(BallistaConfigGrpcEndpoint::new(Arc::new(move |endpoint| {
            let endpoint = network.secured(endpoint)?;
            Ok(endpoint.initial_connection_window_size(WINDOW).initial_stream_window_size(WINDOW))
        })))
    }

    /// The endpoint with signs of life every few seconds, and with TLS. What else was set may be lost, as a tonic endpoint keeps its scheme.
    fn secured(&self, endpoint: Endpoint) -> Result<Endpoint, Box<dyn Error + Send + Sync>> {
        let endpoint = match &self.tls {
            None => endpoint,
            Some(tls) => {
                let mut parts = endpoint.uri().clone().into_parts();
                parts.scheme = Some(Scheme::HTTPS);
                Endpoint::from(Uri::from_parts(parts)?).tls_config(tls.client.clone())?
            }
        };
        Ok(endpoint
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| failed(format!("cannot read {}: {error}", path.display())))
}

/// What accepts connections by TLS, and asks the other end for a certificate.
fn acceptor(files: &TlsFiles, certificate: &[u8], key: &[u8], authority: &[u8]) -> Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for root in certificates(authority, &files.authority)? {
        roots.add(root).map_err(|error| {
            failed(format!("{} holds a certificate of no authority: {error}", files.authority.display()))
        })?;
    }
    let chain = certificates(certificate, &files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| failed(format!("{} holds no private key in PEM: {error}", files.key.display())))?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let clients = clients.map_err(|error| failed(format!("{}: {error}", files.authority.display())))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_client_cert_verifier(clients).with_single_cert(chain, key))
        .map_err(|error| {
            failed(format!(
                "{} and {} do not go together as a certificate and its key: {error}",
                files.certificate.display(),
                files.key.display()
            ))
        })?;
    // gRPC is HTTP/2.
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// The certificates of a file, at least one.
fn certificates(text: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(failed(format!("{} holds no certificate in PEM", path.display()))),
        Err(error) => Err(failed(format!("{} is not written in PEM: {error}", path.display()))),
    }
}

/// Whether a status comes from the connection. One that the other side sent has no source.
pub(crate) fn is_of_transport(status: &Status) -> bool {
    status.source().is_some()
}

/// Why a connection by TLS was not made. `None` if something else is the cause, such as that nothing listens.
fn refusal_of_tls(error: &tonic::transport::Error) -> Option<String> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<tokio_rustls::rustls::Error>() {
            return Some(error.to_string());
        }
        // An I/O error is its own source's text, but hides it from `source`.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
