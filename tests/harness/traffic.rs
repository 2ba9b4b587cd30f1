//! Traffic by the programs that people use: curl, openssl and dig, from a host of the
//! topology.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::{process, topology::Host};

/// What nginx on a node answers.
#[derive(Clone, Debug, Deserialize)]
pub struct ApiAnswer {
    /// The node's short name.
    pub node: String,
    /// The peer as the node saw it.
    pub peer: SocketAddrV4,
}

/// `GET https://<to>/version`, with the certificate checked.
///
/// # Errors
///
/// When the status is not 200, the certificate is not the node's, or the body is something else.
pub fn curl(from: &Host, certificate: &Path, to: SocketAddrV4) -> Result<ApiAnswer> {
    let mut command = from.netns.command("curl");
    command.args([
        "-q",
        "-sS",
        "--fail",
        "--noproxy",
        "*",
        "--max-time",
        "20",
        "--cacert",
    ]);
    command
        .arg(certificate)
        .arg(format!("https://{to}/version"));
    let body = process::succeed(&mut command)?;
    serde_json::from_str(&body).with_context(|| format!("answer of {to}: {body:?}"))
}

/// `GET /version` of `scheme`, `http` or `https`, from the host `name` at `to`; with TLS the certificate is
/// checked.
///
/// # Errors
///
/// As for [`curl`].
pub fn curl_name(
    from: &Host,
    certificate: &Path,
    (scheme, name): (&str, &str),
    to: SocketAddrV4,
) -> Result<ApiAnswer> {
    let (address, port) = (to.ip(), to.port());
    let mut command = from.netns.command("curl");
    command.args(["-q", "-sS", "--fail", "--noproxy", "*", "--max-time", "20"]);
    command
        .arg("--resolve")
        .arg(format!("{name}:{port}:{address}"));
    command.arg("--cacert").arg(certificate);
    command.arg(format!("{scheme}://{name}:{port}/version"));
    let body = process::succeed(&mut command)?;
    serde_json::from_str(&body).with_context(|| format!("answer of {name}: {body:?}"))
}

/// `GET http://<to>/version`.
///
/// # Errors
///
/// When the status is not 200, or the body is something else.
pub fn curl_plain(from: &Host, to: SocketAddrV4) -> Result<ApiAnswer> {
    let mut command = from.netns.command("curl");
    command.args(["-q", "-sS", "--fail", "--noproxy", "*", "--max-time", "20"]);
    command.arg(format!("http://{to}/version"));
    let body = process::succeed(&mut command)?;
    serde_json::from_str(&body).with_context(|| format!("answer of {to}: {body:?}"))
}

/// A TLS handshake by `openssl s_client` whose certificate is verified; returns the line that says
/// so.
///
/// # Errors
///
/// When the handshake or the verification fails.
pub fn openssl(from: &Host, certificate: &Path, to: SocketAddrV4) -> Result<String> {
    let mut command = from.netns.command("timeout");
    command.args([
        "20",
        "openssl",
        "s_client",
        "-brief",
        "-verify_return_error",
        "-connect",
    ]);
    command.arg(to.to_string()).arg("-CAfile").arg(certificate);
    let output = process::finish(&mut command)?;
    // openssl 3.0 writes this to standard error.
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    ensure!(
        output.status.success(),
        "openssl s_client: {}: {words}",
        output.status
    );
    let line = words.lines().find(|line| line.starts_with("Verification"));
    Ok(line
        .with_context(|| format!("openssl verified nothing: {words}"))?
        .to_owned())
}

/// One UDP query; dig itself refuses an answer from another address than it asked.
///
/// # Errors
///
/// When there is no answer within 5 s.
pub fn dig(from: &Host, to: SocketAddrV4, name: &str, kind: &str) -> Result<Vec<String>> {
    let mut command = from.netns.command("dig");
    command.args(["-r", "+short", "+notcp", "+tries=1", "+timeout=5", "-p"]);
    command
        .arg(to.port().to_string())
        .arg(format!("@{}", to.ip()))
        .args([name, kind]);
    let text = process::succeed(&mut command)?;
    let answers: Vec<String> = text.lines().map(|line| line.replace('"', "")).collect();
    ensure!(!answers.is_empty(), "{to} knows no {kind} of {name}");
    ensure!(!text.contains(";;"), "dig complains: {text}");
    Ok(answers)
}

/// Whether the kernel of `from` knows a route to `to`.
///
/// # Errors
///
/// When `ip route get` fails for another reason than a missing route.
pub fn has_route(from: &Host, to: Ipv4Addr) -> Result<bool> {
    let output = from.netns.try_run(&format!("ip route get {to}"))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() || words.contains("unreachable"),
        "ip route get {to}: {words}",
    );
    Ok(output.status.success())
}
