//! The certificates with which a process connects to a cluster.

use std::path::PathBuf;

use clap::Args;
use overspill_cluster::{Network, TlsFiles};
use overspill_session::Error;

use crate::failure::{Failure, Outcome};

/// The certificates of a process.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsArgs {
    /// Connect to the other processes of the cluster by TLS, and show them this certificate; all files are PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Accept the certificates that one of these authorities has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// The name that the certificates of the other processes hold [default: the host or the address that they are reached by]
    #[arg(long, value_name = "NAME", requires = "tls_cert")]
    tls_name: Option<String>,
}

impl TlsArgs {
    /// Whether this process is to connect by TLS.
    pub fn is_given(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// How this process connects to others.
    pub fn network(&self) -> Outcome<Network> {
        let Self { tls_cert: Some(certificate), tls_key: Some(key), tls_ca: Some(authority), tls_name } = self.clone()
        else {
            return Ok(Network::default());
        };
        let files = TlsFiles { certificate, key, authority, name: tls_name };
        Network::with_tls(&files).map_err(|error| Failure::from(Error::from(error)))
    }
}
