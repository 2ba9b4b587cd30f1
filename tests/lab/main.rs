//! The lab of `cargo xtask run`: two tenants in network namespaces.
//!
//! Builds the networks, runs `lb` on `config/lab.yaml`, drives real traffic and prints a table of
//! what that proved. Then it stays up until Ctrl-C, or with `--once` ends with exit code 0 or 1.
//!
//! The workspace aborts on panic, so what must be removed is removed by guards on the way out of
//! `run`, and everything here returns errors.

mod alert;
mod clusters;
mod poc;
mod proof;
mod table;
mod tenant;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use lb_tests::{
    fault::interrupt::{self, Interrupt},
    process,
    product::lb::{Lb, binary},
    servers::peers::{DNS_NAME, Peers},
    topology::{API, APPS_HTTPS, DNS, ECHO, LAB_CONFIG, Trunk, VIP},
};
use nix::unistd::Uid;

/// What the lab starts; asked for before anything is built.
const PROGRAMS: [&str; 13] = [
    "ip", "bridge", "nsenter", "setpriv", "timeout", "ethtool", "tcpdump", "nft", "curl",
    "openssl", "dig", "nginx", "dnsmasq",
];

/// A lab of network namespaces for lb: two tenants, a hub of four nodes, real traffic.
#[derive(Debug, Parser)]
#[command(name = "lb-lab")]
struct Args {
    /// End after the proof: exit code 0 if all of it holds, else 1
    #[arg(long)]
    once: bool,
    /// Three clusters behind one address instead, distinguished by SNI and Host
    #[arg(long)]
    clusters: bool,
    /// The three load balancers of one tenant instead, as one file
    #[arg(long, conflicts_with = "clusters")]
    poc: bool,
}

fn main() -> ExitCode {
    let outcome = match interrupt::words_to_start() {
        Some(words) => interrupt::start_unblocked(&words).map(|never| match never {}),
        None => run(&Args::parse()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            process::complain(format_args!("lb-lab: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Whether everything was proved.
fn run(args: &Args) -> Result<bool> {
    // `println!` panics when its reader is gone, and then nothing would be removed.
    let mut out = io::stdout();
    ensure!(
        Uid::effective().is_root(),
        "the lab needs root: it makes network namespaces"
    );
    let missing = process::missing(&PROGRAMS);
    ensure!(
        missing.is_empty(),
        "not installed: {}; see `cargo xtask setup`",
        missing.join(", ")
    );
    // Before the first thread and the first child: they inherit what is blocked.
    let interrupt = Interrupt::block()?;
    if args.clusters {
        return clusters::run(args.once, &interrupt, &mut out);
    }
    if args.poc {
        return poc::run(args.once, &interrupt, &mut out);
    }

    writeln!(
        out,
        "lab: two tenants with the same addresses on one trunk, four hub nodes, one load balancer"
    )?;
    let trunk = Trunk::build()?;
    interrupt.check()?;
    let [a, b] = &trunk.tenants;
    let peers = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    interrupt.check()?;
    let lb = Lb::start(&trunk, LAB_CONFIG)?;
    interrupt.check()?;
    writeln!(
        out,
        "lab: lb runs as instance {}; now the traffic\n",
        trunk.run()
    )?;

    let rows = proof::collect(&trunk, &peers, &lb);
    let holds = rows.iter().all(|row| row.holds);
    writeln!(out, "{}", table::table(rows))?;
    interrupt.check()?;
    if !args.once {
        print_what_to_try(&trunk, &mut out)?;
        let signal = interrupt.wait()?;
        writeln!(out, "{signal}: removing the lab")?;
    }
    lb.down().context("remove the data plane")?;
    Ok(holds)
}

fn print_what_to_try(trunk: &Trunk, out: &mut impl Write) -> Result<()> {
    let lb = binary("LB_BIN", "lb")?;
    let (lb, run) = (lb.display(), trunk.run());
    let inside = |host: &str| format!("nsenter --net=/run/netns/{run}-{host}");
    writeln!(
        out,
        "\nTry in another terminal, as root:\n\
         \n  {a} curl -k https://{API}/version\
         \n  {b} curl -k https://{API}/version\
         \n  {w} curl -k https://{APPS_HTTPS}/\
         \n  {b} dig @{VIP} -p {dns_port} {DNS_NAME} TXT +short\
         \n  {a} timeout 2 bash -c 'exec 3<>/dev/tcp/{VIP}/{echo_port}; echo who >&3; head -1 <&3'\
         \n  {n1} tcpdump -ni eth0\
         \n  {lb} status --instance {run}\
         \n  {lb} flows --instance {run}\n",
        a = inside("a-c1"),
        b = inside("b-c1"),
        w = inside("a-w1"),
        n1 = inside("n1"),
        dns_port = DNS.port(),
        echo_port = ECHO.port(),
    )?;
    writeln!(out, "Ctrl-C ends the lab and removes everything.")?;
    Ok(())
}
