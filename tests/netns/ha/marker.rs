//! keepalived on both boxes: one has the marker, whatever is cut. `lb` is not there, or runs on both by itself.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll, process,
    product::{config::Config, lb::Lb},
    servers::keepalived::Keepalived,
    topology::{BoxName, Topology, TwoBoxes, VIP},
};

use super::{PROBE, PROBE_PORT, seen_as, server};

/// Of the second box, where it is not one of a pair.
const OTHER_VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 111);
/// How long the first one takes to find itself alone.
const START: Duration = Duration::from_secs(5);
/// How long no box may have it.
const MOVED: Duration = Duration::from_secs(3);
/// How long a cut lasts through which the marker must stay: many adverts.
const CUT: Duration = Duration::from_secs(2);

/// What happens to the sync LAN.
type Trouble = fn(&TwoBoxes) -> Result<()>;

/// It moves when the box with it stops keepalived or loses its power, and never else: not for a cut of either LAN, not
/// when that is mended, not for one cut after the other, and not because a box of higher priority comes back.
#[privileged_test]
fn the_marker_moves_when_its_box_is_gone_and_never_else() -> Result<()> {
    let pair = Topology::pair()?;
    let mut first = Keepalived::start(&pair, BoxName::Lb1)?;
    wait_for(&pair, BoxName::Lb1, START).with_context(|| first.log())?;
    let second = Keepalived::start(&pair, BoxName::Lb2)?;
    ensure_stays(&pair, BoxName::Lb1, "the other one starts")?;

    first.begin_stop()?;
    moved(&pair, BoxName::Lb2, "keepalived ends").with_context(|| second.log())?;
    first.stop()?;
    first = Keepalived::start(&pair, BoxName::Lb1)?;
    ensure_stays(&pair, BoxName::Lb2, "the one of higher priority comes back")?;

    let troubles: [(&str, Trouble); 6] = [
        ("no carrier", |pair| pair.sync.set_carrier(false)),
        ("carrier", |pair| pair.sync.set_carrier(true)),
        ("cut", |pair| pair.sync.cut()),
        ("cut from lb1", |pair| pair.sync.cut_from(BoxName::Lb1)),
        ("cut from lb2", |pair| pair.sync.cut_from(BoxName::Lb2)),
        ("mended", |pair| pair.sync.mend()),
    ];
    for (what, begin) in troubles {
        begin(&pair)?;
        ensure_stays(&pair, BoxName::Lb2, what).with_context(|| first.log())?;
    }

    // What the other one has missed meanwhile counts no more.
    silence(&pair, BoxName::Lb2, true)?;
    ensure_stays(&pair, BoxName::Lb2, "silent on the management LAN")
        .with_context(|| first.log())?;
    silence(&pair, BoxName::Lb2, false)?;
    ensure_stays(&pair, BoxName::Lb2, "heard again").with_context(|| first.log())?;
    pair.sync.cut()?;
    ensure_stays(&pair, BoxName::Lb2, "cut again").with_context(|| first.log())?;
    pair.sync.mend()?;

    pair.power_off(BoxName::Lb2)?;
    second.kill()?;
    moved(&pair, BoxName::Lb1, "the box has no power").with_context(|| first.log())?;
    first.stop()
}

/// The host's address on the NIC that `lb` has as well is reached: with the sync LAN cut the adverts of the other one keep
/// a box from the marker, and the lack of them gives it.
#[privileged_test]
fn adverts_on_the_management_lan_come_through_lb() -> Result<()> {
    let pair = Topology::pair()?;
    let _server = server(&pair, PROBE_PORT)?;
    let mut boxes = Vec::new();
    for (name, vip) in BoxName::ALL.into_iter().zip([VIP, OTHER_VIP]) {
        let at = SocketAddrV4::new(vip, PROBE.port());
        let node = SocketAddrV4::new(pair.nodes[0].address, PROBE_PORT);
        let config = Config::poc()
            .network("mgmt", |mgmt| mgmt.snat([name.snat()]))
            .mgmt_pool("probe", [node])
            .tcp_service("probe", at);
        boxes.push(Lb::start(pair.site(name), &config)?);
        poll::until("a connection through the box", START, || {
            let seen = seen_as(pair.client(), at)?;
            Ok((seen == Some(name.snat())).then_some(()))
        })
        .with_context(|| name.name())?;
    }
    let first = Keepalived::start(&pair, BoxName::Lb1)?;
    wait_for(&pair, BoxName::Lb1, START).with_context(|| first.log())?;
    let second = Keepalived::start(&pair, BoxName::Lb2)?;
    pair.sync.cut()?;
    ensure_stays(&pair, BoxName::Lb1, "the sync LAN is cut")?;
    first.kill()?;
    pair.take_marker(BoxName::Lb1)?;
    moved(&pair, BoxName::Lb2, "keepalived is killed").with_context(|| second.log())?;
    boxes.into_iter().try_for_each(Lb::down)
}

/// Has no advert of a box come to the other one over the management LAN, or all of them again.
fn silence(pair: &TwoBoxes, name: BoxName, is_silent: bool) -> Result<()> {
    let lines: &[&str] = if is_silent {
        &[
            "add table ip silent",
            "add chain ip silent out { type filter hook output priority 0 ; }",
            "add rule ip silent out oifname eth1 ip protocol vrrp drop",
        ]
    } else {
        &["delete table ip silent"]
    };
    let site = pair.site(name);
    lines
        .iter()
        .try_for_each(|line| process::succeed(site.lb.command("nft").arg(line)).map(drop))
}

/// Waits until the box has the marker; how long that took is printed.
fn moved(pair: &TwoBoxes, to: BoxName, what: &str) -> Result<()> {
    let took = wait_for(pair, to, MOVED).with_context(|| what.to_owned())?;
    println!("{what}: {} has the marker after {took:.0?}", to.name());
    Ok(())
}

fn wait_for(pair: &TwoBoxes, name: BoxName, limit: Duration) -> Result<Duration> {
    let start = Instant::now();
    poll::until(&format!("the marker at {}", name.name()), limit, || {
        Ok(pair.has_marker(name)?.then_some(()))
    })?;
    Ok(start.elapsed())
}

/// For a while the box has the marker at each look, and the other one at none.
fn ensure_stays(pair: &TwoBoxes, name: BoxName, what: &str) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < CUT {
        let has = [name, name.other()].map(|name| pair.has_marker(name));
        let [this, other] = has;
        ensure!(this? && !other?, "{what}: not at {} alone", name.name());
    }
    Ok(())
}
