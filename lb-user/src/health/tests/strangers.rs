//! Servers that others have written, and what they log of our checks.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::time::sleep;

use super::{
    certificate::{Certificates, NAME},
    *,
};

/// A program that is ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Server {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}; cargo xtask setup")))
    }

    /// Ends it; what it has logged.
    fn log(mut self) -> String {
        self.0.kill().expect("it runs");
        let mut log = String::new();
        let stderr = self.0.stderr.as_mut().expect("its log");
        stderr.read_to_string(&mut log).expect("text");
        log
    }
}

/// A Go server over TLS, and where it listens.
fn go(certificates: &Certificates, folder: &Path) -> (Server, SocketAddrV4) {
    let program = folder.join("stranger");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/health/tests/strangers.go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(source);
    // No modules, no network, and no toolchain but the one that is installed.
    build.envs([
        ("GO111MODULE", "off"),
        ("GOTOOLCHAIN", "local"),
        ("CGO_ENABLED", "0"),
    ]);
    if env::var_os("HOME").is_none() {
        build.env("GOCACHE", folder.join("cache"));
    }
    let built = build.output();
    let built = built.unwrap_or_else(|error| panic!("go: {error}; cargo xtask setup"));
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");

    let mut command = Command::new(program);
    command.args([
        certificates.path("server.pem"),
        certificates.path("server.key"),
    ]);
    let mut server = Server::start(&mut command);
    let stdout = server.0.stdout.as_mut().expect("its output");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    (server, line.trim().parse().expect("an address"))
}

#[tokio::test]
async fn a_go_server_logs_nothing_of_a_hundred_checks() {
    let certificates = Certificates::new();
    let folder = TempDir::new().expect("a folder");
    let (server, address) = go(&certificates, folder.path());
    let ca = certificates.path("ca.pem");
    for _ in 0..50 {
        for (check, words) in [
            (Check::Tls(any_tls()), "TLS 1.3"),
            (Check::Tls(trusting(Some(NAME), &ca)), "TLS 1.3"),
            (Check::https(any_tls(), get("/readyz")), "200 OK"),
            (Check::https(trusting(None, &ca), get("/")), "200 OK"),
        ] {
            assert_eq!(outcome(address, check).await, good(words));
        }
    }
    assert_eq!(server.log(), "");
    // It would have: this is what is known of checks without a handshake.
    let (server, address) = go(&certificates, folder.path());
    assert_eq!(outcome(address, Check::Tcp).await, good("connected"));
    let log = server.log();
    assert!(
        log.contains("TLS handshake error") && log.contains("EOF"),
        "{log}"
    );
}

/// `openssl s_server` ends its output with an error for every connection that ends badly.
#[tokio::test]
async fn openssl_has_nothing_to_complain_about() {
    let certificates = Certificates::new();
    for version in ["-tls1_2", "-tls1_3"] {
        // Free a moment ago; `openssl` does not report which one it took of many.
        let free = TcpListener::bind((LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let mut command = Command::new("openssl");
        command.args(["s_server", "-www", version, "-accept"]);
        command.arg(format!("{LOCALHOST}:{port}"));
        command.arg("-cert").arg(certificates.path("server.pem"));
        command.arg("-key").arg(certificates.path("server.key"));
        let server = Server::start(&mut command);
        let address = SocketAddrV4::new(LOCALHOST, port);
        let deadline = Instant::now() + LONG;
        let words = version.replace("-tls1_", "TLS 1.");
        while outcome(address, Check::Tls(any_tls())).await != good(&words) {
            assert!(Instant::now() < deadline, "openssl does not listen");
            sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..20 {
            let tls = trusting(Some(NAME), certificates.path("ca.pem"));
            assert_eq!(
                outcome(address, Check::Tls(tls.clone())).await,
                good(&words)
            );
            let check = Check::https(tls, get("/"));
            assert_eq!(outcome(address, check).await, good("200 OK"));
        }
        let log = server.log();
        assert!(!log.to_lowercase().contains("error"), "{log}");
    }
}
