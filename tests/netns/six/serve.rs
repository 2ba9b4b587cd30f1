//! FEATURES A17: connections to an IPv6 VIP.

use anyhow::{Context as _, Result};
use lb_tests::{
    oracle::wire::Wire,
    product::{config::Config, lb::Lb},
    servers::{answers::Answers, echo::EchoServer},
    topology::{ECHO_NODE_PORT, ECHO6, MGMT_NIC, SNAT6, TENANT_NIC, VIP6, address6},
    traffic::{
        client,
        conn_pair::{hear, say},
    },
};

use super::given::{at, config, open, topology};

/// Bytes of the transfers.
const MUCH: u64 = 1 << 20;

/// Data each way is what was sent, the backend sees the SNAT address, and the host's own stack has nothing
/// to do with it.
#[privileged_test]
fn a17_a_megabyte_goes_each_way_through_ipv6() -> Result<()> {
    let topology = topology()?;
    let node = &topology.nodes[0];
    let _echo = EchoServer::start(&node.netns, at(node, ECHO_NODE_PORT), node.name)?;
    let lb = Lb::start(&topology, &config())?;
    // The host sees what hosts on mgmt say to all, such as who listens to which group.
    let ours = "ip6 and not ip6 multicast";
    let seen = |nic| Wire::received(&topology.lb, nic, ours, topology.dir());
    let seen = [seen(TENANT_NIC)?, seen(MGMT_NIC)?];
    let client = &topology.client().netns;
    for seed in 1..4 {
        let up = client.inside(|| client::upload(ECHO6, MUCH, seed))?;
        let up = up.with_context(|| format!("{:?}", lb.drops()))?;
        assert_eq!((up.bytes, up.sent), (MUCH, up.received));
        let down = client.inside(|| client::download(ECHO6, MUCH, seed))?;
        let down = down.with_context(|| format!("{:?}", lb.drops()))?;
        assert_eq!((down.bytes, down.sent), (MUCH, down.received));
    }
    for at_host in seen {
        assert_eq!(at_host.stop()?, Vec::<Vec<u8>>::new());
    }
    Ok(())
}

/// Bytes each way; which peer each end sees.
#[privileged_test]
fn a17_a_backend_sees_the_snat_address_and_a_client_the_vip() -> Result<()> {
    let topology = topology()?;
    let _lb = Lb::start(&topology, &config())?;
    let pair = open(&topology)?;
    say(&pair.client, &pair.server, b"request")?;
    say(&pair.server, &pair.client, b"reply")?;
    assert_eq!(pair.snat.ip(), SNAT6);
    assert_eq!(pair.client.peer_addr()?.ip(), VIP6);
    let client = topology.client();
    assert_eq!(pair.client.local_addr()?.ip(), address6(client));
    // An end that closes is an end for the other one.
    drop(pair.client);
    assert!(hear(&pair.server, b"more").is_err());
    Ok(())
}

#[privileged_test]
fn a17_curl_gets_an_answer_over_ipv6() -> Result<()> {
    let topology = topology()?;
    let node = &topology.nodes[0];
    let answers = Answers::start(&node.netns, at(node, ECHO_NODE_PORT))?;
    let lb = Lb::start(&topology, &config())?;
    let client = &topology.client().netns;
    for count in 1..=5 {
        let what = "%{http_code}|%{remote_ip}";
        let curl =
            format!("curl -q -6 -sS -g --max-time 20 -o /dev/null -w {what} http://{ECHO6}/");
        let said = client.run(&curl);
        let said = said.with_context(|| format!("{:?}", lb.drops()))?;
        assert_eq!(said, format!("200|{VIP6}"));
        assert_eq!(answers.asked(), count);
    }
    Ok(())
}

/// Both families at once on the same hosts.
#[privileged_test]
fn a17_ipv4_goes_on_beside_it() -> Result<()> {
    use lb_tests::topology::ECHO;
    let topology = topology()?;
    let node = &topology.nodes[0];
    let four = std::net::SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    let _six = EchoServer::start(&node.netns, at(node, ECHO_NODE_PORT), node.name)?;
    let _four = EchoServer::start(&node.netns, four, node.name)?;
    let config = Config::poc_dual()
        .mgmt_pool("four", [four])
        .mgmt_pool("six", [at(node, ECHO_NODE_PORT)])
        .tcp_service("four", ECHO)
        .tcp_service("six", ECHO6);
    let _lb = Lb::start(&topology, &config)?;
    let client = &topology.client().netns;
    for seed in 1..3 {
        let six = client.inside(|| client::upload(ECHO6, MUCH, seed))??;
        assert_eq!(six.sent, six.received);
        let four = client.inside(|| client::download(ECHO, MUCH, seed))??;
        assert_eq!(four.sent, four.received);
    }
    Ok(())
}
