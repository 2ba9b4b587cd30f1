//! Which client a flow of IPv6 belongs to: `lb flows` and `lb who`.

use anyhow::{Context as _, Result};
use lb_tests::{
    product::lb::Lb,
    topology::{DNS_NODE_PORT, DNS6, ECHO_NODE_PORT, ECHO6, SNAT6},
    traffic::conn_pair::say,
};

use super::given::{at, config, open, receive, topology, udp_client, udp_server};

#[privileged_test]
fn flows_and_who_name_clients_of_ipv6() -> Result<()> {
    let topology = topology()?;
    let lb = Lb::start(&topology, &config())?;
    let node = &topology.nodes[0];
    let pair = open(&topology)?;
    say(&pair.client, &pair.server, b"request")?;
    let server = udp_server(&topology)?;
    let socket = udp_client(&topology.clients[1])?;
    socket.send(b"who?").context("send")?;
    let (_, from) = receive(&server)?;
    let flows = lb.flows()?;
    let expected = [
        (
            "tcp",
            pair.client.local_addr()?,
            ECHO6,
            at(node, ECHO_NODE_PORT),
            pair.snat,
        ),
        (
            "udp",
            socket.local_addr()?,
            DNS6,
            at(node, DNS_NODE_PORT),
            from,
        ),
    ];
    assert_eq!(flows.len(), expected.len(), "{flows:?}");
    for (protocol, client, vip, backend, snat) in expected {
        let flow = flows.iter().find(|flow| flow.protocol == protocol);
        let flow = flow.with_context(|| format!("a flow of {protocol}"))?;
        let found = [&flow.client, &flow.vip, &flow.backend, &flow.snat];
        let wanted = [
            client.to_string(),
            vip.to_string(),
            backend.to_string(),
            snat.to_string(),
        ];
        assert_eq!(
            found.map(String::as_str),
            wanted.each_ref().map(String::as_str)
        );
        assert_eq!(snat.ip(), SNAT6);
        let who = lb.who(snat)?;
        assert_eq!(who.len(), 1, "{who:?}");
        assert!(who[0].live);
        assert_eq!(who[0].flow.client, client.to_string());
    }
    Ok(())
}
