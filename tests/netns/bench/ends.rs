//! A bench in namespaces of its own that is interrupted in the middle: nothing of it stays, nor of what it has changed on the
//! machine.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::Result;
use lb_tests::{leftovers, poll, process::Process, product::lb::binary, topology::path};
use nix::sys::signal::Signal;

/// The most connections that the machine tracks.
const MAX_CONNTRACK: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(60);

#[privileged_test]
fn ctrl_c_in_the_middle_removes_everything() -> Result<()> {
    let room = || fs::read_to_string(MAX_CONNTRACK).unwrap_or_default();
    let before = room();
    let site = path::Path::build()?;
    let output = site.dir().join("report").display().to_string();
    let words = ["--suites", "packets,connections", "--output", &output];
    for end in [Signal::SIGINT, Signal::SIGTERM] {
        let program = binary("LB_BENCH_BIN", "lb-bench")?;
        let here = Path::new("/proc/self/ns/net");
        let mut bench = Process::start(here, site.dir(), "bench", program, &words)?;
        let run = format!("lbt{}-", bench.id());
        poll::until("segments through the load balancer", START, || {
            let at_work = namespaces()?.lines().any(|line| {
                let name = line.split(' ').next().unwrap_or_default();
                name.starts_with(&run) && name.ends_with("-wire") && has_segments(name)
            });
            Ok(at_work.then_some(()))
        })?;
        bench.signal(end)?;
        let status = bench.wait_for_end(END)?;
        assert_eq!(status.code(), Some(1), "{}", bench.stderr());
        assert!(bench.stderr().contains("interrupted"), "{}", bench.stderr());
        let left = namespaces()?;
        assert!(!left.contains(&run), "{left}");
        assert_eq!(
            leftovers::traces_of(&format!("{run}1")),
            Vec::<std::path::PathBuf>::new()
        );
        assert_eq!(room(), before);
    }
    Ok(())
}

fn namespaces() -> Result<String> {
    let all = Command::new("ip").args(["netns", "list"]).output()?;
    Ok(String::from_utf8_lossy(&all.stdout).into_owned())
}

/// Whether a wire has had more segments than the neighbours ask for.
fn has_segments(wire: &str) -> bool {
    let show = ["-n", wire, "-s", "-o", "link", "show", "w1"];
    let link = Command::new("ip").args(show).output();
    let text = link.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    // "RX: bytes packets ... \ <bytes> <packets> ...".
    let packets = text.ok().and_then(|text| {
        let counts = text.split("RX:").nth(1)?.split('\\').nth(1)?.to_owned();
        counts.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    packets.is_some_and(|packets| packets > 1000)
}
