//! The page, fetched by curl from inside of the load balancer's host, and its samples.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{netns::Netns, poll, process};

use crate::flows::life::LIMIT;

/// Where it is.
pub(super) const LISTEN: &str = "127.0.0.1:9180";

/// Samples by name and labels, as they stand in the text.
pub(super) type Samples = BTreeMap<String, f64>;

/// A request by curl, with these arguments behind its own: the status, and the body.
pub(super) fn curl(netns: &Netns, arguments: &[&str]) -> Result<(u16, String)> {
    let mut command = netns.command("curl");
    command.args(["-sS", "--max-time", "10", "-w", "\n%{http_code}"]);
    let said = process::succeed(command.args(arguments))?;
    let (body, status) = said.rsplit_once('\n').context("curl gives a status")?;
    Ok((status.trim().parse()?, body.to_owned()))
}

/// The page, as soon as there is one.
pub(super) fn page(netns: &Netns) -> Result<String> {
    let url = format!("http://{LISTEN}/metrics");
    poll::until("the page of metrics", LIMIT, || {
        let got = curl(netns, &[&url]).ok();
        Ok(got
            .filter(|(status, _)| *status == 200)
            .map(|(_, body)| body))
    })
}

/// A page that was made after now.
pub(super) fn next_page(netns: &Netns) -> Result<String> {
    // One is at most a second old.
    std::thread::sleep(Duration::from_millis(1100));
    page(netns)
}

/// The samples of a page.
pub(super) fn samples(page: &str) -> Result<Samples> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let mut samples = Samples::new();
    for line in lines {
        let (name, value) = line.rsplit_once(' ').context("a sample has a value")?;
        let value = value.parse().with_context(|| line.to_owned())?;
        let before = samples.insert(name.to_owned(), value);
        ensure!(before.is_none(), "{name} is there twice");
    }
    Ok(samples)
}

/// What `promtool check metrics` says of a page; nothing if it is right.
pub(super) fn promtool(page: &str) -> Result<String> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start promtool")?;
    let mut input = child.stdin.take().context("the input of promtool")?;
    input.write_all(page.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(said)
}

/// Whether a TCP connection to an address and port is made within a moment.
pub(super) fn is_open(address: Ipv4Addr, port: u16) -> bool {
    let to = (address, port).into();
    std::net::TcpStream::connect_timeout(&to, Duration::from_millis(400)).is_ok()
}
