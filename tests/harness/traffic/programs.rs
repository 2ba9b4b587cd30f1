//! Traffic by the programs that people use: curl, Python, Node, Go, Chromium, openssl and dig, from a host of the
//! topology.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    process::Command,
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

/// A server by its name, at an address where clients find it, with the certificate that it must show.
#[derive(Clone, Copy, Debug)]
pub struct Named<'n> {
    /// The name that clients ask for.
    pub name: &'n str,
    /// Where they connect to.
    pub at: SocketAddrV4,
    /// Its certificate, which is its own authority.
    pub certificate: &'n Path,
}

/// The only version of TLS that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// 1.2.
    V12,
    /// 1.3.
    V13,
}

impl Tls {
    /// As nginx says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V12 => "TLSv1.2",
            Self::V13 => "TLSv1.3",
        }
    }

    const fn of_curl(self) -> [&'static str; 3] {
        match self {
            Self::V12 => ["--tlsv1.2", "--tls-max", "1.2"],
            Self::V13 => ["--tlsv1.3", "--tls-max", "1.3"],
        }
    }

    const fn of_python(self) -> &'static str {
        match self {
            Self::V12 => "TLSv1_2",
            Self::V13 => "TLSv1_3",
        }
    }
}

/// `GET https://<to>/version`, with the certificate checked.
///
/// # Errors
///
/// When the status is not 200, the certificate is not the node's, or the body is something else.
pub fn curl(from: &Host, certificate: &Path, to: SocketAddrV4) -> Result<ApiAnswer> {
    let mut command = curl_command(from);
    command
        .arg("--cacert")
        .arg(certificate)
        .arg(format!("https://{to}/version"));
    read(&process::succeed(&mut command)?)
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
    at: SocketAddrV4,
) -> Result<ApiAnswer> {
    let to = Named {
        name,
        at,
        certificate,
    };
    read(&process::succeed(&mut curl_named(from, scheme, &to))?)
}

/// `GET /version` of a name over TLS in this version, and in HTTP/2 or else HTTP/1.1 if the server wants;
/// the answer, and the version of HTTP that was spoken (`2`, `1.1`).
///
/// # Errors
///
/// As for [`curl`].
pub fn curl_tls(from: &Host, to: &Named<'_>, tls: Tls, http: &str) -> Result<(ApiAnswer, String)> {
    let mut command = curl_named(from, "https", to);
    command.args(tls.of_curl()).arg(format!("--http{http}"));
    command.args(["--write-out", "%{http_version}"]);
    let said = process::succeed(&mut command)?;
    let (body, version) = said
        .rsplit_once('\n')
        .with_context(|| format!("answer of {}: {said:?}", to.name))?;
    Ok((read(body)?, version.to_owned()))
}

/// The same in HTTP/1.1 by Python.
///
/// # Errors
///
/// As for [`curl`].
pub fn python_tls(from: &Host, to: &Named<'_>, tls: Tls) -> Result<ApiAnswer> {
    let mut command = from.netns.command("python3");
    command.args(["-c", GET_BY_PYTHON, to.name]);
    command.args([to.at.ip().to_string(), to.at.port().to_string()]);
    command.arg(to.certificate).arg(tls.of_python());
    read(&process::succeed(&mut command)?)
}

const GET_BY_PYTHON: &str = r#"
import http.client, socket, ssl, sys
name, address, port, certificate, version = sys.argv[1:]
context = ssl.create_default_context(cafile=certificate)
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
server = http.client.HTTPConnection(name)
plain = socket.create_connection((address, int(port)), 20)
server.sock = context.wrap_socket(plain, server_hostname=name)
server.request("GET", "/version")
answer = server.getresponse()
assert answer.status == 200, answer.status
print(answer.read().decode())
"#;

/// The same in TLS 1.3 by Node.
///
/// # Errors
///
/// As for [`curl`].
pub fn node_tls(from: &Host, to: &Named<'_>) -> Result<ApiAnswer> {
    let mut command = from.netns.command("node");
    command.args(["-e", GET_BY_NODE, to.name]);
    command.args([to.at.ip().to_string(), to.at.port().to_string()]);
    command.arg(to.certificate);
    read(&process::succeed(&mut command)?)
}

const GET_BY_NODE: &str = r#"
const [name, host, port, certificate] = process.argv.slice(1);
const ca = require("fs").readFileSync(certificate);
const asked = { host, port, ca, path: "/version", servername: name, headers: { host: name }, timeout: 20000 };
require("https").get(asked, (answer) => {
  if (answer.statusCode !== 200) throw new Error(`status ${answer.statusCode}`);
  answer.pipe(process.stdout);
});
"#;

/// The same by a program in Go, which is built in `folder`.
///
/// # Errors
///
/// As for [`curl`]; when it cannot be built.
pub fn go_tls(from: &Host, to: &Named<'_>, folder: &Path) -> Result<ApiAnswer> {
    let program = folder.join("get");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/harness/traffic/get.go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(source);
    // No modules, no network, and no toolchain but the one that is installed.
    build.envs([
        ("GO111MODULE", "off"),
        ("GOTOOLCHAIN", "local"),
        ("CGO_ENABLED", "0"),
    ]);
    build.env("GOCACHE", folder.join("go"));
    process::succeed(&mut build)?;
    let mut command = from.netns.command(program);
    command
        .args([to.name, &to.at.to_string()])
        .arg(to.certificate);
    read(&process::succeed(&mut command)?)
}

/// The same by Chromium, whose hello has a post-quantum key and more than a segment has room for. It keeps what it knows of
/// names and servers in `folder`.
///
/// # Errors
///
/// When the page has another body. The certificate is not checked.
pub fn chromium_tls(from: &Host, to: &Named<'_>, folder: &Path) -> Result<ApiAnswer> {
    let mut command = from.netns.command("timeout");
    command.args([
        "30",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
    ]);
    command.args([
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]);
    command.args([
        "--disable-background-networking",
        "--disable-component-update",
    ]);
    command.args(["--disable-sync", "--ignore-certificate-errors"]);
    command.arg(format!("--user-data-dir={}", folder.display()));
    let (name, at) = (to.name, to.at);
    command.arg(format!("--host-resolver-rules=MAP {name}:443 {at}"));
    command.args(["--dump-dom", &format!("https://{name}/version")]);
    let page = process::succeed(&mut command)?;
    let answer = page.find('{').zip(page.rfind('}'));
    let answer = answer.and_then(|(begin, end)| page.get(begin..=end));
    read(answer.with_context(|| format!("the page of {name}: {page}"))?)
}

/// `GET http://<to>/version`.
///
/// # Errors
///
/// When the status is not 200, or the body is something else.
pub fn curl_plain(from: &Host, to: SocketAddrV4) -> Result<ApiAnswer> {
    let mut command = curl_command(from);
    command.arg(format!("http://{to}/version"));
    read(&process::succeed(&mut command)?)
}

fn curl_named(from: &Host, scheme: &str, to: &Named<'_>) -> Command {
    let (name, address, port) = (to.name, to.at.ip(), to.at.port());
    let mut command = curl_command(from);
    command
        .arg("--resolve")
        .arg(format!("{name}:{port}:{address}"))
        .arg("--cacert")
        .arg(to.certificate)
        .arg(format!("{scheme}://{name}:{port}/version"));
    command
}

/// curl, without the configuration of the machine.
fn curl_command(from: &Host) -> Command {
    let mut command = from.netns.command("curl");
    command.args(["-q", "-sS", "--fail", "--noproxy", "*", "--max-time", "20"]);
    command
}

fn read(body: &str) -> Result<ApiAnswer> {
    serde_json::from_str(body).with_context(|| format!("answer {body:?}"))
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
