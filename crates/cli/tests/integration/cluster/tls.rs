//! Clusters whose processes connect by TLS.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::{Cluster, LONG, start};
use crate::shell::Shell;

/// The arguments of a process of the cluster.
const TLS: &[&str] = &["--tls-cert", "node.pem", "--tls-key", "node.key", "--tls-ca", "ca.pem"];

/// An authority, which writes its own certificate to `name.pem`.
struct Authority<'a> {
    shell: &'a Shell,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    fn new(shell: &'a Shell, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        shell.write(&format!("{name}.pem"), parameters.self_signed(&key).unwrap().pem());
        Self { shell, issuer: Issuer::new(parameters, key) }
    }

    /// Writes `name.pem`, a certificate for a host or an address, and `name.key`.
    fn sign(&self, name: &str, host: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        self.shell.write(&format!("{name}.pem"), certificate.pem());
        self.shell.write(&format!("{name}.key"), key.serialize_pem());
    }
}

/// A shell whose folder has the certificates of an authority, `ca`, and of one that nobody trusts, `other`.
fn with_certificates() -> Shell {
    let shell = Shell::new();
    let ours = Authority::new(&shell, "ca");
    ours.sign("node", "127.0.0.1");
    ours.sign("elsewhere", "db.example");
    Authority::new(&shell, "other").sign("stranger", "127.0.0.1");
    shell
}

#[test]
fn processes_with_certificates_give_the_rows_of_one() {
    let mut cluster = Cluster::in_folder_of(with_certificates(), "0.1", TLS);
    // All rows go over connections.
    let sql = "SET ballista.shuffle.force_remote_read = true; \
               SELECT o_orderpriority, count(*) n, sum(l_extendedprice) s FROM 'data/orders.parquet' \
               JOIN 'data/lineitem.parquet' ON l_orderkey = o_orderkey GROUP BY 1 ORDER BY 1";
    assert_eq!(cluster.rows(sql), cluster.rows_here(sql.split_once("; ").unwrap().1));
    assert!(cluster.rows(&format!("EXPLAIN ANALYZE {}", sql.split_once("; ").unwrap().1)).contains("build_input_rows"));
    let child = cluster.spawn(LONG);
    std::thread::sleep(Duration::from_millis(800));
    cluster.kill(1);
    let run = crate::shell::Run::from(child.wait_with_output().unwrap());
    assert_eq!((run.out, run.err), (cluster.rows_here(LONG), String::new()));
    // Its start removes what the killed one has left.
    cluster.add();
    cluster.nothing_is_left();
}

#[test]
fn who_has_no_certificate_is_refused() {
    let cluster = Cluster::in_folder_of(with_certificates(), "0.01", TLS);
    let (shell, address) = (&cluster.shell, cluster.address.as_str());
    let sql = "SELECT sum(n_nationkey) n FROM 'data/nation.parquet'";
    let client = |tls: &[&str]| shell.fail(&[&["--cluster", address, "-c", sql], tls].concat());
    let executor = |tls: &[&str]| shell.fail(&[&["cluster", "executor", "--scheduler", address], tls].concat());
    let stranger = ["--tls-cert", "stranger.pem", "--tls-key", "stranger.key", "--tls-ca", "ca.pem"];
    let distrusts = ["--tls-cert", "node.pem", "--tls-key", "node.key", "--tls-ca", "other.pem"];
    let misnamed = [TLS, &["--tls-name", "db.example"]].concat();
    for (tls, words) in [
        (&[][..], "asks for TLS: then add --tls-cert"),
        (&stranger[..], "not accept the certificate of --tls-cert"),
        (&distrusts[..], "invalid peer certificate"),
        (&misnamed[..], "db.example"),
    ] {
        for error in [client(tls), executor(tls)] {
            assert!(error.contains(address) && error.contains(words), "{tls:?} gave {error}");
        }
    }
    assert_eq!(cluster.rows(sql), "n\n300\n");
}

#[test]
fn an_executor_hides_its_services_behind_tls() {
    let cluster = Cluster::in_folder_of(with_certificates(), "0.01", TLS);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let arguments = ["executor", "--scheduler", &cluster.address, "--port", &port, "--temp-dir", "temporary"];
    let (mut executor, _) = start(&cluster.shell, &[&arguments[..], TLS].concat());
    std::thread::sleep(Duration::from_millis(1500));
    // How HTTP/2 begins. A server that takes it answers with a frame of settings, which is of type 4.
    let ask = |address: &str| {
        let mut connection = TcpStream::connect(format!("{address}:{port}")).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut answer = Vec::new();
        let _ = connection.take(9).read_to_end(&mut answer);
        answer
    };
    assert_eq!(ask("127.0.0.2").get(3), Some(&4));
    // An alert of TLS is of type 21.
    let answer = ask("127.0.0.1");
    assert!(answer.is_empty() || answer[0] == 21, "{answer:?}");
    executor.kill().unwrap();
    executor.wait().unwrap();
}

#[test]
fn a_process_is_reached_by_the_name_in_its_certificate() {
    let shell = with_certificates();
    let tls = &[
        "--tls-cert",
        "elsewhere.pem",
        "--tls-key",
        "elsewhere.key",
        "--tls-ca",
        "ca.pem",
        "--tls-name",
        "db.example",
    ];
    let cluster = Cluster::in_folder_of(shell, "0.01", tls);
    assert_eq!(cluster.rows("SELECT sum(n_nationkey) n FROM 'data/nation.parquet'"), "n\n300\n");
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let shell = with_certificates();
    shell.write("empty.pem", "");
    shell.write("damaged.pem", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n");
    for (files, words) in [
        (["none.pem", "node.key", "ca.pem"], "cannot read none.pem: No such file"),
        (["empty.pem", "node.key", "ca.pem"], "empty.pem holds no certificate"),
        (["damaged.pem", "node.key", "ca.pem"], "damaged.pem is not written in PEM"),
        (["node.pem", "ca.pem", "ca.pem"], "ca.pem holds no private key"),
        (["node.pem", "elsewhere.key", "ca.pem"], "node.pem and elsewhere.key do not go together"),
        (["node.pem", "node.key", "empty.pem"], "empty.pem holds no certificate"),
    ] {
        let [certificate, key, authority] = files;
        let tls = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", authority];
        let error = shell.fail(&[&["cluster", "scheduler", "--bind", "127.0.0.1:0"], &tls[..]].concat());
        assert!(error.contains(words), "{files:?} gave {error}");
    }
    let error = shell.fail(&[&["-c", "SELECT 1"], TLS].concat());
    assert!(error.contains("add --cluster"), "{error}");
    let run = shell.run(&["cluster", "scheduler", "--tls-cert", "node.pem"]);
    assert!(run.status != 0 && run.err.contains("--tls-key"), "{run:?}");
}
