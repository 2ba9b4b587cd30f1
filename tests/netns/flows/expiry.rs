//! Idle flows end, loudly: FEATURES A7, RELIABILITY 8.

use std::{
    io::Write as _,
    net::SocketAddrV4,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::wire::header::{ACK, RST, SYN};
use lb_tests::{
    frames::{packet, raw::RawPort, segment::Segment},
    oracle::wire::Wire,
    poll,
    product::lb::Lb,
    topology::{ECHO, ECHO_NODE_PORT, MGMT_NIC, SNAT, TENANT_NIC, Topology, mac_of},
    traffic::conn_pair::{refused, say, wait_for_reset},
};

use crate::flows::life::{
    AT_ONCE, LIMIT, config, ensure_all_ids_are_free, line, only_flow, udp_client, udp_server,
};

/// A flow's clock is coarse: it may look older than it is by this much.
const COARSE: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// A7: after its idle timeout both ends of a connection are reset, and nothing of it is left.
#[privileged_test]
fn an_idle_connection_is_reset_at_both_ends() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| service.with("idle_timeout: 1s"));
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;

    let pair = line.open()?;
    let flow = only_flow(&lb)?;
    assert_eq!(flow.state, "established", "{flow:?}");
    assert!(flow.expires_in_seconds <= Some(1), "{flow:?}");
    // What it took to ask is time in which the flow was idle.
    pair.talk()?;
    let [first, second] = pair.wait_for_resets(LIMIT)?;

    ensure!(first + COARSE >= SECOND, "ended after {first:?}");
    ensure!(first <= 4 * SECOND, "ended after {first:?}");
    ensure!(second <= AT_ONCE, "the backend learned {second:?} later");
    ensure_all_ids_are_free(&topology, &lb)?;
    let who = lb.who(pair.snat)?;
    assert_eq!(who.len(), 1, "{who:?}");
    assert_eq!((who[0].live, who[0].flow.state.as_str()), (false, "ended"));
    assert_eq!(who[0].flow.client, pair.client.local_addr()?.to_string());
    // The way is free for the next one.
    line.open()?.talk()
}

/// A7: the end whose reset was lost learns of the end with the next word that it says.
#[privileged_test]
fn a_late_segment_is_reset_when_the_reset_was_lost() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| service.with("idle_timeout: 500ms"));
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    for (host, is_client) in [(topology.client(), true), (&topology.nodes[0], false)] {
        host.netns.run("nft add table ip lossy")?;
        let chain = "nft add chain ip lossy in { type filter hook input priority 0 ; }";
        host.netns.run(chain)?;
        host.netns
            .run("nft add rule ip lossy in tcp flags & rst == rst drop")?;
        let pair = line.open()?;
        let (mut deaf, other) = if is_client {
            (&pair.client, &pair.server)
        } else {
            (&pair.server, &pair.client)
        };
        wait_for_reset(other, LIMIT)?;
        ensure_all_ids_are_free(&topology, &lb)?;
        host.netns.run("nft delete table ip lossy")?;

        deaf.write_all(b"late")
            .context("send into a dead connection")?;
        let reset = wait_for_reset(deaf, LIMIT)
            .with_context(|| format!("at {}: {:?}", host.name, lb.drops()))?;
        ensure!(reset <= AT_ONCE, "{} learned {reset:?} later", host.name);
        assert_eq!(lb.status()?.flows.live, 0);
    }
    Ok(())
}

/// The numbers of such a reset, for a segment of a connection that there never was.
#[privileged_test]
fn a_stray_segment_gets_a_reset_with_its_own_number() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let (client, node) = (topology.client(), &topology.nodes[0]);
    let sides = [
        (client, TENANT_NIC, ECHO, "no_flow"),
        (
            node,
            MGMT_NIC,
            SocketAddrV4::new(SNAT, 2000),
            "reply_mismatch",
        ),
    ];
    for (host, nic, to, reason) in sides {
        let filter = format!("src host {} and tcp", to.ip());
        let wire = Wire::received(&host.netns, "eth0", &filter, topology.dir())?;
        let port = RawPort::open(&host.netns, "eth0")?;
        let hops = [mac_of(&host.netns, "eth0")?, topology.mac(nic)?];
        let from = SocketAddrV4::new(host.address, ECHO_NODE_PORT);
        let send = |flags: u8| {
            let frame = packet::tcp(&from.to_string(), &to.to_string(), flags);
            let frame = frame.numbers(0x1111_1111, 0xffff_fff0).payload(b"stray");
            port.send(&frame.between(hops[0], hops[1]).bytes())
        };
        // Resets are never answered; else two of us would go on for ever.
        send(RST)?;
        send(RST | ACK)?;
        send(ACK)?;

        wire.wait_for("a reset", 1, LIMIT, |_| true)?;
        poll::until("both resets counted", LIMIT, || {
            Ok((lb.dropped(reason)? == 2).then_some(()))
        })?;
        let frames = wire.stop()?;
        let segments: Vec<Segment> = frames.iter().filter_map(|f| Segment::read(f)).collect();
        let expected = Segment {
            from: to,
            to: from,
            sequence: 0xffff_fff0,
            acknowledgment: 0,
            flags: RST,
            payload: 0,
        };
        assert_eq!(segments, [expected], "{reason}");
        assert_eq!(lb.refused(reason)?, 1, "{:?}", lb.drops()?);
    }
    assert_eq!(lb.status()?.flows.live, 0);
    Ok(())
}

/// A word in either direction is enough to keep a connection.
#[privileged_test]
fn a_connection_that_talks_never_ends() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| service.with("idle_timeout: 2s"));
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let pairs = [line.open()?, line.open()?, line.open()?];

    let start = Instant::now();
    while start.elapsed() < 6 * SECOND {
        thread::sleep(SECOND / 3);
        say(&pairs[0].client, &pairs[0].server, b"request")?;
        say(&pairs[1].server, &pairs[1].client, b"reply")?;
    }

    // The third said nothing.
    let flows = lb.flows()?;
    let mut live: Vec<String> = flows.into_iter().map(|flow| flow.snat).collect();
    live.sort();
    let mut expected = [&pairs[0], &pairs[1]].map(|pair| pair.snat.to_string());
    expected.sort();
    assert_eq!(live, expected);
    pairs[0].talk()?;
    pairs[1].talk()?;
    wait_for_reset(&pairs[2].client, LIMIT)?;
    Ok(())
}

/// A SYN to a backend that says nothing has its own, shorter time, and ends in silence: neither end has a
/// connection.
#[privileged_test]
fn a_half_open_flow_ends_after_its_time() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().set("timeouts.half_open", "500ms");
    let lb = Lb::start(&topology, &config)?;
    let (client, node) = (topology.client(), &topology.nodes[0]);
    node.netns.run("nft add table ip quiet")?;
    node.netns
        .run("nft add chain ip quiet in { type filter hook input priority 0 ; policy drop ; }")?;
    let filter = format!("src host {}", ECHO.ip());
    let at_client = Wire::received(&client.netns, "eth0", &filter, topology.dir())?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let hops = [mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    let from = format!("{}:20000", client.address);
    let syn = packet::tcp(&from, &ECHO.to_string(), SYN).between(hops[0], hops[1]);

    let start = Instant::now();
    port.send(&syn.bytes())?;
    poll::until("a half-open flow", SECOND / 2, || {
        Ok((lb.flows()?.len() == 1).then_some(()))
    })?;
    let flow = only_flow(&lb).map(|flow| flow.state);
    ensure_all_ids_are_free(&topology, &lb)?;
    let elapsed = start.elapsed();

    assert_eq!(flow?, "new");
    ensure!(elapsed + COARSE >= SECOND / 2, "ended after {elapsed:?}");
    ensure!(elapsed <= 4 * SECOND, "ended after {elapsed:?}");
    assert_eq!(at_client.stop()?, Vec::<Vec<u8>>::new());
    assert_eq!(lb.status()?.networks[1].half_open.taken, 1);
    Ok(())
}

/// UDP: what was never replied to ends sooner than what was; neither end gets an error, and the next datagram
/// is served again.
#[privileged_test]
fn a_udp_flow_ends_after_its_time() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config()
        .service("dns-a", |service| service.with("idle_timeout: 3s"))
        .set("timeouts.udp", "500ms");
    let lb = Lb::start(&topology, &config)?;
    let server = udp_server(&topology)?;
    let [asks, listens] = [
        udp_client(topology.client())?,
        udp_client(topology.client())?,
    ];
    let mut words = [0; 16];
    // Twice, so that the flow is no chance reply.
    for _ in 0..2 {
        listens.send(b"answered").context("send")?;
        let (length, peer) = server.recv_from(&mut words).context("a request")?;
        server.send_to(&words[..length], peer).context("reply")?;
        assert_eq!(listens.recv(&mut words).context("a reply")?, length);
    }
    let replied = Instant::now();
    asks.send(b"unanswered").context("send")?;
    server.recv_from(&mut words).context("a request")?;
    let asked = Instant::now();
    assert_eq!(lb.flows()?.len(), 2, "{:?}", lb.flows()?);

    poll::until("the end of what was not replied to", LIMIT, || {
        Ok((lb.flows()?.len() == 1).then_some(()))
    })?;
    let (short, left) = (asked.elapsed(), only_flow(&lb)?);
    assert_eq!(left.client, listens.local_addr()?.to_string());
    ensure_all_ids_are_free(&topology, &lb)?;
    let long = replied.elapsed();

    ensure!(
        short + COARSE >= SECOND / 2 && short < 3 * SECOND,
        "{short:?}"
    );
    ensure!(
        long + COARSE >= 3 * SECOND && long <= 8 * SECOND,
        "{long:?}"
    );
    listens.send(b"again").context("send")?;
    let (length, peer) = server.recv_from(&mut words).context("a request")?;
    server.send_to(&words[..length], peer).context("reply")?;
    assert_eq!(listens.recv(&mut words).context("a reply")?, length);
    Ok(())
}

/// What ended for being idle counts against no budget any more, of the network or of the service.
#[privileged_test]
fn an_idle_connection_gives_its_budget_back() -> Result<()> {
    for (network, tcp) in [
        ("max_flows: 1", "idle_timeout: 1s"),
        ("", "max_flows: 1, idle_timeout: 1s"),
    ] {
        let topology = Topology::poc()?;
        let config = config()
            .network("tenant-a", |tenant| tenant.with(network))
            .service("echo-a", |service| service.with(tcp));
        let lb = Lb::start(&topology, &config)?;
        let line = line(&topology)?;
        for _ in 0..3 {
            let pair = line.open()?;
            refused(topology.client(), ECHO)?;
            pair.wait_for_resets(LIMIT)?;
            ensure_all_ids_are_free(&topology, &lb)?;
        }
    }
    Ok(())
}
