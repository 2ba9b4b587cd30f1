//! Which clients may use a service of IPv6: FEATURES C1 and C3.

use std::{net::TcpStream, time::Duration};

use anyhow::Result;
use lb_tests::{
    frames::{
        packet::{self, flags::SYN_ONLY},
        raw::RawPort,
        six,
    },
    oracle::wire::Wire,
    poll,
    product::lb::Lb,
    servers::echo::EchoServer,
    topology::{ECHO_NODE_PORT, ECHO6, LB_PORT},
    traffic::client,
};

use super::given::{at, config, hops, topology};
use crate::flows::life::LIMIT;

/// A prefix lets one client in, a longer one inside it keeps the other out; nothing of it comes to the
/// nodes.
#[privileged_test]
fn c3_the_longest_prefix_decides_over_ipv6() -> Result<()> {
    let topology = topology()?;
    let node = &topology.nodes[0];
    let _echo = EchoServer::start(&node.netns, at(node, ECHO_NODE_PORT), node.name)?;
    let words = config().service("echo-a", |service| {
        service.with(r#"allow: ["fd00:203::/64"], deny: ["fd00:203::51/128"]"#)
    });
    let lb = Lb::start(&topology, &words)?;
    let [insider, outsider] = [&topology.clients[0], &topology.clients[1]];
    let upload =
        |host: &lb_tests::topology::Host| host.netns.inside(|| client::upload(ECHO6, 1000, 1));
    upload(insider)??;
    let tcp = "ip6 protochain 6";
    let out = Wire::received(&topology.mgmt_lan, LB_PORT, tcp, topology.dir())?;
    let before = lb.dropped("denied")?;
    // A kernel sends its SYN once more after a second.
    let second = Duration::from_millis(500);
    let refused = outsider
        .netns
        .inside(|| TcpStream::connect_timeout(&ECHO6.into(), second))?;
    assert!(refused.is_err(), "{refused:?}");
    let port = RawPort::open(&outsider.netns, "eth0")?;
    let [from, to] = hops(&topology, outsider)?;
    let source = at(outsider, 20_000).to_string();
    for extension in [None, Some(six::Extension::Destination(vec![]))] {
        let syn = packet::tcp(&source, &ECHO6.to_string(), SYN_ONLY).between(from, to);
        let syn = extension.into_iter().fold(syn, packet::Frame::extension);
        port.send(&syn.bytes())?;
    }
    poll::until("all to be denied", LIMIT, || {
        Ok((lb.dropped("denied")? - before == 3).then_some(()))
    })?;
    assert_eq!(out.stop()?, Vec::<Vec<u8>>::new());
    upload(insider)??;
    Ok(())
}
