//! A NIC that goes down and comes up again, and one that gets another MAC: RELIABILITY 26 and 28.

use std::{
    io::Write as _,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    oracle::{observe, wire::Wire},
    poll,
    product::lb::Lb,
    topology::{MGMT_NIC, SNAT, TENANT_NIC, Topology, VIP},
    traffic::{
        conn_pair::{Line, Pair, hear},
        hello::named,
    },
};

use crate::{
    flows::life::{LIMIT, config, line},
    lifecycle::takeover::{self, LONG, LONG_DIRECT, LONG_PORT, NAME},
};

/// How long the NIC is down.
const DOWN: Duration = Duration::from_secs(2);
/// A client that has sent into the void for so long sends again in this time.
const RESUMED: Duration = Duration::from_secs(3);
/// RELIABILITY 28: from another MAC of our own NIC until all is as before.
const FOLLOWED: Duration = Duration::from_secs(3);
/// How often the addresses are announced, and how long that takes.
const TIMES: usize = 3;
const ANNOUNCED: Duration = Duration::from_secs(4);

/// Whether a frame announces to all hosts that `address` is at `mac`.
pub(crate) fn announces(frame: &[u8], address: Ipv4Addr, mac: Mac) -> bool {
    let (mac, address) = (mac.bytes(), address.octets());
    let asks = [0, 1, 8, 0, 6, 4, 0, 1].as_slice();
    frame.get(..12) == Some([[0xff; 6].as_slice(), &mac].concat().as_slice())
        && frame.get(14..32) == Some([asks, &mac, &address].concat().as_slice())
        && frame.get(38..42) == Some(address.as_slice())
}

/// The program stays, what was sent meanwhile arrives, and the VIP is announced, however short the NIC was
/// down and wherever the cable was pulled out.
#[privileged_test]
fn reliability_26_a_nic_that_was_down_goes_on_and_is_announced() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    let client = &topology.client().netns;
    let program = topology.lb.run("ip -d link show dev eth0")?;
    let program = prog_id(&program)?.to_owned();
    let mac = topology.mac(TENANT_NIC)?;
    thread::sleep(ANNOUNCED);
    let wire = Wire::received(client, "eth0", "arp", topology.dir())?;
    let count = || -> Result<usize> {
        let frames = wire.frames()?;
        let ours = frames.iter().filter(|frame| announces(frame, VIP, mac));
        Ok(ours.count())
    };

    let nic = &topology.lb;
    let flaps: [(&str, &dyn Fn() -> Result<()>); 3] = [
        ("down for long", &|| {
            nic.ip_batch("link set eth0 down\n")?;
            thread::sleep(DOWN);
            nic.ip_batch("link set eth0 up\n")
        }),
        ("down for a moment", &|| {
            nic.ip_batch("link set eth0 down\nlink set eth0 up\n")
        }),
        ("without a cable", &|| {
            topology.tenant_lan.ip_batch("link set p-lb down\n")?;
            thread::sleep(DOWN);
            topology.tenant_lan.ip_batch("link set p-lb up\n")
        }),
    ];
    for (how, flap) in flaps {
        let before = count()?;
        (&pair.client).write_all(b"into the void").context("send")?;
        hear(&pair.server, b"into the void")?;
        flap()?;
        let start = Instant::now();
        (&pair.client).write_all(b"and again").context("send")?;
        hear(&pair.server, b"and again").context(how)?;
        println!("{how}: resumed after {:?}", start.elapsed());
        ensure!(start.elapsed() < RESUMED, "{how}: {:?}", start.elapsed());
        wire.wait_for(how, before + TIMES - 1, LIMIT, |frame| {
            announces(frame, VIP, mac)
        })?;
        thread::sleep(ANNOUNCED);
        let announced = count()? - before;
        ensure!(announced <= TIMES, "{how}: {announced} times");
        assert!(observe::link(&topology.lb, TENANT_NIC)?.xdp.is_some());
        let now = topology.lb.run("ip -d link show dev eth0")?;
        assert_eq!(prog_id(&now)?, program, "{how}");
    }
    pair.talk()?;
    assert_eq!(lb.status()?.networks[1].mode, "native");
    Ok(())
}

/// Our own NICs get other MACs while flows go on: those at both sides hear it, flows of the data plane and
/// of a shared VIP talk on, and new ones are made.
#[privileged_test]
fn reliability_28_our_own_nic_that_gets_another_mac_is_followed() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
    let line = line.saying(named(NAME.as_bytes()));
    let _lb = Lb::start(&topology, &takeover::config(&topology))?;
    let pairs = [line.open()?, line.open_at(LONG_DIRECT)?];
    for number in 1..=3 {
        for (nic, asks, address) in [(TENANT_NIC, topology.client(), VIP), (MGMT_NIC, node, SNAT)] {
            let mac = format!("02:00:00:00:88:{number:02x}");
            let start = Instant::now();
            let words = || format!("{nic}, change {number}");
            topology
                .lb
                .run(&format!("ip link set {nic} address {mac}"))?;
            poll::until("the new MAC at who talks to it", FOLLOWED, || {
                let neighbour = asks.netns.run(&format!("ip neigh show {address}"))?;
                Ok(neighbour.contains(&mac).then_some(()))
            })
            .with_context(words)?;
            pairs.iter().try_for_each(Pair::talk).with_context(words)?;
            for to in [LONG, LONG_DIRECT] {
                line.open_at(to).with_context(words)?;
            }
            println!("{nic}: followed after {:?}", start.elapsed());
            ensure!(start.elapsed() < FOLLOWED, "{:?}", start.elapsed());
        }
    }
    Ok(())
}

/// The id of the program in the words of `ip link`.
fn prog_id(words: &str) -> Result<&str> {
    let (_, id) = words.split_once("prog/xdp id ").context("a program")?;
    id.split_ascii_whitespace().next().context("its id")
}
