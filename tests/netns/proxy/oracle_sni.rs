//! A shared VIP beside HAProxy with a real site's configuration, on the same bytes: both go to the same
//! backend, or to none, but for what is listed in [`DIFFERENCES`]. FEATURES B1 to B7.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddrV4,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{self, Teller},
    topology::{Host, Topology, VIP},
};

use crate::proxy::{
    bind::hellos,
    bind_two::MOST,
    oracle_sni_cases::{API, APPS, Case, all},
};

/// Where the backends listen, and how long until one must.
const PORT: u16 = 31443;
const SOON: Duration = Duration::from_secs(10);
/// Between two segments of a hello, and between the first and the last: both have three seconds for it, because a
/// hello of single bytes takes a thousand turns on a machine that may have others to run.
const PAUSE: Duration = Duration::from_millis(3);
const MAX_DELAY: Duration = Duration::from_millis(100);
/// The backends, each on a node of its own; the last one for the name in captured hellos.
pub(crate) const POOLS: [&str; 4] = ["hub", "managed1", "managed2", "captured"];

/// Where the two do not agree, by the kind of the case: which backend HAProxy selects, and why we do not.
const DIFFERENCES: [(&str, Option<&str>, &str); 15] = [
    (
        "records",
        None,
        "a hello may be in any number of records; HAProxy finds names in the first one",
    ),
    (
        "long",
        None,
        "a hello may be longer than the buffer of HAProxy, which takes 15 KiB",
    ),
    (
        "SSL 3",
        None,
        "which versions are spoken is the backend's business",
    ),
    ("dot", None, "to DNS it is the same name"),
    ("labels", None, "a star stands for one label or several"),
    (
        "other type",
        None,
        "the only host name, although not the first name",
    ),
    (
        "unanchored",
        Some("hub"),
        "the site forgot the end of its expression: any domain may follow",
    ),
    (
        "unanchored expression",
        Some("managed1"),
        "the same expression is anchored here",
    ),
    (
        "bytes",
        Some("hub"),
        "no host name, and some end it at a NUL",
    ),
    (
        "label",
        Some("hub"),
        "no host name: DNS has 63 bytes between dots",
    ),
    (
        "two names",
        Some("hub"),
        "forbidden, and the backend may take the other one",
    ),
    (
        "same extension",
        Some("hub"),
        "forbidden, and the backend may take the other one",
    ),
    (
        "malformed",
        Some("hub"),
        "the backend may read it in another way",
    ),
    ("record version", Some("hub"), "no TLS"),
    (
        "cut",
        Some("hub"),
        "not whole; HAProxy does not miss the last four bytes",
    ),
];

/// A hello, whatever it is and in whatever pieces, goes to the same backend through both, or nowhere;
/// and every byte of it arrives.
#[privileged_test]
fn verdicts_are_those_of_haproxy_or_listed() -> Result<()> {
    verdicts("never").map(drop)
}

/// The same where XDP opens connections itself: of what has a name that it knows none is left to the process.
#[privileged_test]
fn verdicts_are_those_of_haproxy_also_with_late_binding() -> Result<()> {
    let hellos = verdicts("always")?;
    let known = all()?.iter().filter(|case| is_known(case)).count();
    println!("{hellos:?}, {known} of names that XDP knows");
    ensure!(hellos["bound"] >= u64::try_from(known)?, "{hellos:?}");
    ensure!(known > 50, "{known}");
    for end in ["unopened", "unanswered", "disagreed"] {
        ensure!(!hellos.contains_key(end), "{hellos:?}");
    }
    Ok(())
}

/// Whether a hello is in one piece, of two segments at most, and has a name that XDP knows, as both understand it.
fn is_known(case: &Case) -> bool {
    let [whole] = &case.pieces[..] else {
        return false;
    };
    let is_by_expression = (case.port, case.ours) == (APPS, Some("managed1"));
    case.ours.is_some() && case.kind.is_empty() && !is_by_expression && whole.len() <= MOST
}

/// Compares both with this `late_binding`; what XDP has made of the hellos.
fn verdicts(late_binding: &str) -> Result<BTreeMap<String, u64>> {
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let beside = &topology.nodes[3];
    let _haproxy = haproxy(&topology, beside)?;
    let lb = Lb::start(&topology, &config(&topology, late_binding))?;
    let (start, cases) = (Instant::now(), all()?);
    let mut wrong = Vec::new();
    for case in &cases {
        let said = (|| {
            let ours = ask(topology.client(), VIP, case).context("lb")?;
            let theirs = ask(beside, beside.address, case).context("HAProxy")?;
            anyhow::Ok((ours, theirs))
        })();
        let (ours, theirs) = match said {
            Ok(said) => said,
            Err(error) => {
                wrong.push(format!("{}: {error:#}", case.what));
                continue;
            }
        };
        let expected = (case.ours, expected_of_haproxy(case));
        if (ours.as_deref(), theirs.as_deref()) != expected {
            let words = format!(
                "{} ({}): lb {ours:?}, HAProxy {theirs:?}",
                case.what, case.kind
            );
            wrong.push(format!("{words}, not {expected:?}"));
        }
    }
    println!("{} hellos each in {:.1?}", cases.len(), start.elapsed());
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    hellos(&lb)
}

/// What is listed is there once, differs, and occurs.
#[test]
fn differences_occur() -> Result<()> {
    let cases = all()?;
    let mut kinds = BTreeSet::new();
    for (kind, theirs, _) in DIFFERENCES {
        ensure!(kinds.insert(kind), "{kind} is listed twice");
        let mut of_kind = cases.iter().filter(|case| case.kind == kind).peekable();
        ensure!(of_kind.peek().is_some(), "{kind} does not occur");
        ensure!(
            of_kind.all(|case| case.ours != theirs),
            "{kind} is no difference"
        );
    }
    Ok(())
}

fn expected_of_haproxy(case: &Case) -> Option<&'static str> {
    let listed = DIFFERENCES.iter().find(|(kind, ..)| *kind == case.kind);
    listed.map_or(case.ours, |(_, theirs, _)| *theirs)
}

fn ask(from: &Host, address: std::net::Ipv4Addr, case: &Case) -> Result<Option<String>> {
    let to = SocketAddrV4::new(address, case.port);
    let pieces: Vec<&[u8]> = case.pieces.iter().map(Vec::as_slice).collect();
    let pause = PAUSE.min(MAX_DELAY / u32::try_from(pieces.len())?);
    from.netns.inside(|| teller::ask(to, &pieces, pause))?
}

fn tellers(topology: &Topology) -> Result<Vec<Teller>> {
    let nodes = topology.nodes.iter().zip(POOLS);
    let start = |(node, pool): (&Host, &str)| {
        Teller::start(&node.netns, SocketAddrV4::new(node.address, PORT), pool)
    };
    nodes.map(start).collect()
}

/// HAProxy with the lines of <https://linuxera.org/exposing-multiple-kubernetes-clusters-single-lb-and-ip/>
/// that route by SNI, unchanged but for the delay and the name in the captures.
fn haproxy(topology: &Topology, host: &Host) -> Result<Process> {
    let backends = topology.nodes.iter().zip(POOLS).map(|(node, pool)| {
        format!(
            "backend be_{pool}\n  mode tcp\n  server {pool} {}:{PORT}\n",
            node.address
        )
    });
    let backends: String = backends.collect();
    let address = host.address;
    let text = format!(
        r"global
  maxconn 4000
defaults
  mode tcp
  retries 3
  timeout connect 10s
  timeout client 1m
  timeout server 1m
  maxconn 3000
frontend apis-6443
  bind {address}:{API}
  mode tcp
  tcp-request inspect-delay 3s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  acl ACL_hub req_ssl_sni -i api.hub-cluster.linuxera.lab
  acl ACL_managed1 req_ssl_sni -i api.managed1.linuxera.lab
  acl ACL_managed2 req_ssl_sni -i api.managed2.linuxera.lab
  acl ACL_captured req_ssl_sni -i hub.example.test
  use_backend be_hub if ACL_hub
  use_backend be_managed1 if ACL_managed1
  use_backend be_managed2 if ACL_managed2
  use_backend be_captured if ACL_captured
frontend routers-https-443
  bind {address}:{APPS}
  mode tcp
  tcp-request inspect-delay 3s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  acl ACL_hub req_ssl_sni -m reg -i ^[^\.]+\.apps\.hub\.linuxera\.lab
  acl ACL_managed1 req_ssl_sni -m reg -i ^[^\.]+\.apps\.managed1\.linuxera\.lab
  acl ACL_managed2 req_ssl_sni -m reg -i ^[^\.]+\.apps\.managed2\.linuxera\.lab
  use_backend be_hub if ACL_hub
  use_backend be_managed1 if ACL_managed1
  use_backend be_managed2 if ACL_managed2
{backends}"
    );
    let file = topology.write("haproxy.cfg", &text)?;
    let file = file.to_str().context("a path")?;
    let dir = topology.dir();
    let process = Process::start(
        &host.netns.path(),
        dir,
        "haproxy",
        "haproxy",
        &["-db", "-f", file],
    )?;
    let listens = || {
        let sockets = host.netns.run("ss -Hltn")?;
        let is_there = |port: u16| sockets.contains(&format!("{address}:{port} "));
        Ok([API, APPS].into_iter().all(is_there).then_some(()))
    };
    poll::until("HAProxy listens", SOON, listens).with_context(|| process.stderr())?;
    Ok(process)
}

/// The same site for `lb`: two of its clusters by a name with a star, one by its expression.
fn config(topology: &Topology, late_binding: &str) -> Config {
    let pools = topology.nodes.iter().zip(POOLS);
    let config = pools.fold(Config::poc(), |config, (node, pool)| {
        config.mgmt_pool(pool, [SocketAddrV4::new(node.address, PORT)])
    });
    config
        .service("apis", |apis| {
            let apis = apis.on("tenant-a").tcp(SocketAddrV4::new(VIP, API));
            apis.set(
                "sni",
                Keys::from(API_ROUTES).set("late_binding", late_binding),
            )
        })
        .service("apps", |apps| {
            let apps = apps.on("tenant-a").tcp(SocketAddrV4::new(VIP, APPS));
            apps.set(
                "sni",
                Keys::from(APP_ROUTES).set("late_binding", late_binding),
            )
        })
}

const API_ROUTES: &str = "hello_timeout: 3s, routes: [
    { names: [api.hub-cluster.linuxera.lab], pool: hub },
    { names: [api.managed1.linuxera.lab], pool: managed1 },
    { names: [api.managed2.linuxera.lab], pool: managed2 },
    { names: [hub.example.test], pool: captured }]";
const APP_ROUTES: &str = r#"hello_timeout: 3s, routes: [
    { names: ["*.apps.hub.linuxera.lab"], pool: hub },
    { names: ["*.apps.managed2.linuxera.lab"], pool: managed2 },
    { regex: ['^[^\.]+\.apps\.managed1\.linuxera\.lab'], pool: managed1 }]"#;
