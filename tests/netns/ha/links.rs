//! What the tests of two boxes rely on, without the product: the LAN between them and its cuts, and a loss of power.

use std::{
    net::{SocketAddrV4, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    netns::Netns,
    oracle::observe,
    product::group::Group,
    topology::{BoxName, MGMT_NIC, SYNC_NIC, TENANT_NIC, Topology, TwoBoxes},
    traffic::ping::{Ping, ping},
};

/// How long a datagram may take to the other box.
const LATE: Duration = Duration::from_secs(1);
const MANY: usize = 200;
const PORT: u16 = 7000;

/// The boxes hear each other, but for what is lost by a cut, in the direction of the cut, without a loss of carrier.
#[privileged_test]
fn the_sync_lan_is_cut_and_mended() -> Result<()> {
    let pair = Topology::pair()?;
    let [first, second] = BoxName::ALL.map(|name| pair.site(name));
    let hears = || -> Result<[bool; 2]> {
        let count = |from| arrived(&pair, from, 1).map(|count| count == 1);
        Ok([count(BoxName::Lb2)?, count(BoxName::Lb1)?])
    };
    ensure!(ping(&first.lb, *BoxName::Lb2.sync().ip())? == Ping::Answered);
    assert_eq!(hears()?, [true, true]);
    pair.sync.cut()?;
    assert_eq!(hears()?, [false, false]);
    for site in [first, second] {
        ensure!(has_carrier(&site.lb)?, "{} has none", site.run());
    }
    pair.sync.cut_from(BoxName::Lb1)?;
    assert_eq!(hears()?, [true, false]);
    pair.sync.lose_some(50)?;
    let count = arrived(&pair, BoxName::Lb1, MANY)?;
    ensure!((MANY / 5..MANY * 4 / 5).contains(&count), "{count} arrived");
    pair.sync.mend()?;
    assert_eq!(hears()?, [true, true]);
    Ok(())
}

/// A box without power has no links, and the other one has its own; then it has new ones.
#[privileged_test]
fn a_box_without_power_is_gone_and_comes_back() -> Result<()> {
    let pair = Topology::pair()?;
    let [first, second] = BoxName::ALL;
    pair.give_marker(first)?;
    assert_eq!(
        BoxName::ALL.map(|name| pair.has_marker(name).ok()),
        [Some(true), Some(false)]
    );
    pair.power_off(first)?;
    let names = |name| -> Result<Vec<String>> {
        let links = observe::links(&pair.site(name).lb)?;
        Ok(links.into_iter().map(|link| link.name).collect())
    };
    assert_eq!(names(first)?, ["lo"]);
    assert_eq!(names(second)?.len(), 4);
    ensure!(has_carrier(&pair.site(second).lb)?);
    pair.power_on(first)?;
    ensure!(!pair.has_marker(first)?);
    for nic in [TENANT_NIC, MGMT_NIC, SYNC_NIC] {
        ensure!(names(first)?.iter().any(|name| name == nic), "no {nic}");
    }
    ensure!(ping(&pair.site(second).lb, *first.sync().ip())? == Ping::Answered);
    Ok(())
}

/// Each box has a certificate for its name that the authority has signed, for both ends of a connection.
#[privileged_test]
fn certificates_are_good_for_both_ends() -> Result<()> {
    let pair = Topology::pair()?;
    let group = Group::create(&pair)?;
    for name in BoxName::ALL {
        let certificate = group.identity(name).certificate().display();
        for purpose in ["sslclient", "sslserver"] {
            let authority = group.authority().certificate().display();
            let host = name.name();
            let verified = pair.lb.run(&format!(
                "openssl verify -purpose {purpose} -verify_hostname {host} -CAfile {authority} {certificate}"
            ))?;
            ensure!(verified.trim().ends_with(": OK"), "{verified}");
        }
    }
    let [one, other] = BoxName::ALL.map(|name| group.config(super::config(&pair), name));
    let differ = one.lines().zip(other.lines()).filter(|(a, b)| a != b);
    let differ: Vec<_> = differ.collect();
    ensure!(
        differ.len() == 1 && differ[0].0.starts_with("ha: "),
        "{differ:?}"
    );
    Ok(())
}

/// How many of so many datagrams of this box come to the other one.
fn arrived(pair: &TwoBoxes, from: BoxName, count: usize) -> Result<usize> {
    let open = |name: BoxName, port| {
        let address = SocketAddrV4::new(*name.sync().ip(), port);
        let socket = pair.site(name).lb.inside(|| UdpSocket::bind(address))?;
        socket.with_context(|| format!("a socket of {}", name.name()))
    };
    let receiver = open(from.other(), PORT)?;
    receiver.set_read_timeout(Some(LATE))?;
    let sender = open(from, 0)?;
    for _ in 0..count {
        sender.send_to(b"?", receiver.local_addr()?)?;
    }
    let mut heard = 0;
    while heard < count && receiver.recv(&mut [0]).is_ok() {
        heard += 1;
    }
    Ok(heard)
}

fn has_carrier(netns: &Netns) -> Result<bool> {
    let link = netns.run(&format!("ip -o link show dev {SYNC_NIC}"))?;
    Ok(link.contains("LOWER_UP"))
}
