//! tcpdump in a namespace: what really passed there, seen from outside the product.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{netns::Netns, poll, process::Process};

/// How long tcpdump may take until it listens.
const START: Duration = Duration::from_secs(10);

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Process,
}

/// One captured IPv4 packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// Source address.
    pub source: Ipv4Addr,
    /// Source port of TCP and UDP.
    pub source_port: Option<u16>,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Destination port of TCP and UDP.
    pub destination_port: Option<u16>,
    /// The line of tcpdump.
    pub line: String,
}

impl Capture {
    /// Starts to capture what `filter` (a pcap expression) selects on `interface`; it listens when
    /// this returns.
    ///
    /// # Errors
    ///
    /// When tcpdump does not start, for instance for a wrong filter.
    pub fn start(netns: &Netns, interface: &str, filter: &str, dir: &Path) -> Result<Self> {
        let name = format!("tcpdump-{}-{interface}", netns.name());
        // The ports stay numbers, and names of protocols would change the form of a line (-n -q).
        let args = [
            "-i",
            interface,
            "-n",
            "-q",
            "-l",
            "--immediate-mode",
            "-s",
            "96",
        ];
        let rest = ["-B", "4096", "-Z", "root", filter];
        let args: Vec<&str> = args.into_iter().chain(rest).collect();
        let mut tcpdump = Process::start(&netns.path(), dir, &name, "tcpdump", &args)?;
        tcpdump.wait_for_stderr("listening on", START)?;
        Ok(Self { tcpdump })
    }

    /// The IPv4 packets so far.
    pub fn frames(&self) -> Vec<Frame> {
        self.tcpdump
            .stdout()
            .lines()
            .filter_map(Frame::parse)
            .collect()
    }

    /// Waits until at least `count` IPv4 packets are captured.
    ///
    /// # Errors
    ///
    /// After `limit`.
    pub fn wait_for(&self, count: usize, limit: Duration) -> Result<Vec<Frame>> {
        poll::until(&format!("{count} captured packets"), limit, || {
            let frames = self.frames();
            Ok((frames.len() >= count).then_some(frames))
        })
    }

    /// Ends the capture and returns all of it.
    ///
    /// # Errors
    ///
    /// When the kernel dropped packets before tcpdump saw them: then a capture proves nothing.
    pub fn stop(mut self) -> Result<Vec<Frame>> {
        self.tcpdump.stop()?;
        let words = self.tcpdump.stderr();
        let dropped = words
            .lines()
            .find_map(|line| line.strip_suffix(" packets dropped by kernel"))
            .with_context(|| format!("tcpdump said no count: {words}"))?;
        ensure!(
            dropped.trim() == "0",
            "the kernel dropped {dropped} packets of the capture"
        );
        Ok(self.frames())
    }
}

impl Frame {
    /// Reads `<time> IP 10.32.96.50.1024 > 10.32.96.105.30918: tcp 0`.
    fn parse(line: &str) -> Option<Self> {
        let (_time, rest) = line.split_once(" IP ")?;
        let (source, rest) = rest.split_once(" > ")?;
        let (destination, _rest) = rest.split_once(':')?;
        let (source, source_port) = endpoint(source)?;
        let (destination, destination_port) = endpoint(destination)?;
        Some(Self {
            source,
            source_port,
            destination,
            destination_port,
            line: line.to_owned(),
        })
    }
}

/// Reads `10.32.96.50` or `10.32.96.50.1024`.
fn endpoint(text: &str) -> Option<(Ipv4Addr, Option<u16>)> {
    if let Ok(address) = text.parse() {
        return Some((address, None));
    }
    let (address, port) = text.rsplit_once('.')?;
    Some((address.parse().ok()?, Some(port.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_ports_is_read() {
        let line = "10:00:00.123456 IP 10.32.96.50.1024 > 10.32.96.105.30918: tcp 0";
        let frame = Frame::parse(line).expect("a packet");
        assert_eq!(frame.source, Ipv4Addr::new(10, 32, 96, 50));
        assert_eq!(frame.source_port, Some(1024));
        assert_eq!(frame.destination, Ipv4Addr::new(10, 32, 96, 105));
        assert_eq!(frame.destination_port, Some(30918));
    }

    #[test]
    fn a_line_without_ports_is_read() {
        let line = "10:00:00.123456 IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 1, seq 1";
        let frame = Frame::parse(line).expect("a packet");
        assert_eq!((frame.source_port, frame.destination_port), (None, None));
    }

    #[test]
    fn what_is_no_ipv4_packet_is_left_out() {
        assert_eq!(
            Frame::parse("10:00:00.1 ARP, Request who-has 10.0.0.1"),
            None
        );
        assert_eq!(Frame::parse(""), None);
    }
}
