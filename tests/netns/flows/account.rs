//! Every packet and every flow is accounted for: FEATURES G3, G4 and G5.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::SocketAddrV4,
    path::Path,
    thread,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::wire::header::{ACK, SYN};
use lb_tests::{
    frames::{packet, raw::RawPort},
    oracle::{
        ids,
        packet_accounting::Ledger,
        wire::{self, Wire},
    },
    poll,
    product::lb::Lb,
    topology::{ECHO, Host, SNAT, TENANT_NIC, Topology, VIP, mac_of},
    traffic::conn_pair::{self, Pair, refused},
};
use serde::Deserialize;

use crate::flows::life::{LIMIT, config, ensure_all_ids_are_free, line, udp_client};

/// Connections that finish, and of each other end.
const FINISHED: usize = 970;
const OTHERS: usize = 10;
/// More answers than a CPU gives in one go.
const STRAYS: u64 = 3000;
/// The longest segment without data.
const BARE: u64 = 14 + 20 + 60;

/// One line of the flow log.
#[derive(Clone, Debug, Deserialize)]
struct Record {
    event: String,
    network: String,
    service: String,
    protocol: String,
    client: SocketAddrV4,
    vip: SocketAddrV4,
    snat: SocketAddrV4,
    backend: SocketAddrV4,
    bytes_request: u64,
    bytes_reply: u64,
    reason: Option<String>,
    duration_ms: Option<u64>,
}

/// G3: whatever comes, each packet has one verdict, and each that is not served one reason, whether
/// its sender got an answer or not.
#[privileged_test]
fn g3_every_packet_is_in_the_ledger_with_refusals_in_the_mix() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config()
        .service("echo-a", |service| service.with("max_flows: 5"))
        .service("dns-a", |service| {
            service.with("deny: [192.168.203.50/32], reject: true")
        });
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let client = topology.client();
    let port = RawPort::open(&client.netns, "eth0")?;
    let hops = [mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    let before = Ledger::read(&topology, &lb)?;

    let pairs = line.open_many(5)?;
    for _ in 0..20 {
        refused(client, ECHO)?;
        let socket = udp_client(client)?;
        socket.send(b"denied").context("send")?;
        let error = socket.recv(&mut [0]).err().map(|error| error.kind());
        assert_eq!(error, Some(std::io::ErrorKind::ConnectionRefused));
    }
    let from = |port: u64| format!("{}:{}", client.address, 20_000 + port);
    for number in 0..STRAYS {
        let stray = packet::tcp(&from(number), &ECHO.to_string(), ACK).numbers(1, 2);
        port.send(&stray.between(hops[0], hops[1]).bytes())?;
    }
    for number in 0..100 {
        let nothing = packet::tcp(&from(number), &format!("{VIP}:9"), SYN);
        port.send(&nothing.between(hops[0], hops[1]).bytes())?;
    }
    pairs.iter().try_for_each(Pair::talk)?;

    let after = Ledger::read(&topology, &lb)?;
    println!("{after}");
    after.ensure_balanced_since(&before)?;
    assert_eq!(lb.refused("budget_spent")?, 20, "{:#?}", lb.drops()?);
    assert_eq!(lb.refused("denied")?, 20);
    assert_eq!(lb.dropped("no_service")?, 100);
    let (answered, lost) = (lb.refused("no_flow")?, lb.dropped("no_flow")?);
    // One in two thousand is taken for a later segment behind a SYN cookie, whose first one may come yet.
    let unordered = lb.dropped("hello_unordered")?;
    assert_eq!(answered + lost + unordered, STRAYS);
    ensure!(unordered < STRAYS / 200, "{unordered} unordered");
    // Answers have a rate, about a thousand in a second and CPU.
    ensure!(answered > 500, "{answered} of {STRAYS} answered");
    Ok(())
}

/// G4: a thousand connections are a thousand pairs of lines, with both tuples, the bytes that were on
/// the wire, and how each of them ended.
#[privileged_test]
fn g4_a_thousand_connections_are_in_the_flow_log() -> Result<()> {
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let config = config()
        .service("echo-a", |service| service.with("idle_timeout: 3s"))
        .set("log.flows", &log);
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let (client, node) = (topology.client(), &topology.nodes[0]);
    let filter = format!("tcp and host {VIP}");
    let replies = Wire::received_heads(&client.netns, "eth0", &filter, topology.dir())?;
    let requests = Wire::received_heads(&topology.tenant_lan, "p-c1", &filter, topology.dir())?;
    let mut expected = BTreeMap::new();
    let mut note = |pair: &Pair, reason| -> Result<()> {
        let ends = (local(&pair.client)?, pair.snat);
        expected.insert(ends, reason);
        Ok(())
    };

    for number in 0..FINISHED {
        let pair = line.open()?;
        if number == 0 {
            bulk(&pair)?;
        }
        note(&pair, "finished")?;
    }
    for _ in 0..OTHERS {
        let Pair { client, server, .. } = noted(line.open()?, "reset_by_client", &mut note)?;
        conn_pair::reset(client)?;
        conn_pair::wait_for_reset(&server, LIMIT)?;
        let Pair { client, server, .. } = noted(line.open()?, "reset_by_backend", &mut note)?;
        conn_pair::reset(server)?;
        conn_pair::wait_for_reset(&client, LIMIT)?;
    }
    for pair in line.open_many(OTHERS)? {
        noted(pair, "expired", &mut note)?.wait_for_resets(LIMIT)?;
    }
    ensure_all_ids_are_free(&topology, &lb)?;

    let count = 2 * expected.len();
    poll::until("the flow log", LIMIT, || {
        Ok((read(&log)?.len() >= count).then_some(()))
    })?;
    let records = read(&log)?;
    assert_eq!(
        expected.len(),
        FINISHED + 3 * OTHERS,
        "ports were used twice"
    );
    let [sent, received] = [bytes(requests, 34)?, bytes(replies, 36)?];
    let mut ended = BTreeMap::new();
    let mut began = BTreeMap::new();
    for record in &records {
        assert_eq!(record.network, "tenant-a", "{record:?}");
        assert_eq!(record.service, "echo-a", "{record:?}");
        assert_eq!(record.protocol, "tcp", "{record:?}");
        assert_eq!(record.vip, ECHO, "{record:?}");
        assert_eq!(record.snat.ip(), &SNAT, "{record:?}");
        let address = SocketAddrV4::new(node.address, 30_700);
        assert_eq!(record.backend, address, "{record:?}");
        let ends = (record.client, record.snat);
        if record.event == "began" {
            assert_eq!((&record.reason, record.duration_ms), (&None, None));
            began.insert(ends, ());
            continue;
        }
        assert!(began.contains_key(&ends), "ended first: {record:?}");
        assert!(record.duration_ms.is_some(), "{record:?}");
        ensure_bytes(
            record.bytes_request,
            sent.get(&record.client.port()),
            record,
        )?;
        ensure_bytes(
            record.bytes_reply,
            received.get(&record.client.port()),
            record,
        )?;
        ended.insert(ends, record.reason.as_deref().unwrap_or_default());
    }
    assert_eq!(records.len(), count);
    assert_eq!(began.len(), expected.len());
    assert_eq!(ended, expected);
    ensure_counted(&lb, expected.len(), &[sent, received])
}

/// What is counted of the service, its network and its backend is what was on the wire: of each of so many connections, and
/// what came late, too. What the balancer itself sends to an end is not the other's.
fn ensure_counted(lb: &Lb<'_>, flows: usize, wire: &[BTreeMap<u16, u64>; 2]) -> Result<()> {
    let [sent, received] = wire.each_ref().map(|bytes| bytes.values().sum::<u64>());
    let services = lb.services()?;
    let service = services.iter().find(|service| service.name == "echo-a");
    let counted = service.and_then(|service| service.counts);
    let counted = counted.context("what is counted of the service")?;
    println!("{sent} bytes sent, {received} received; {counted:?}");
    assert_eq!(counted.flows, u64::try_from(flows)?);
    assert_eq!(counted.connects, counted.flows);
    assert_eq!((counted.failed, counted.repeated_syns), (0, 0));
    let resets = BARE * u64::try_from(3 * OTHERS)?;
    ensure!((sent - resets..=sent).contains(&counted.bytes_request));
    ensure!((received - resets..=received).contains(&counted.bytes_reply));
    let backends = lb.backends()?;
    let backend = backends
        .iter()
        .find(|backend| backend.address.ends_with(":30700"));
    assert_eq!(backend.and_then(|backend| backend.counts), Some(counted));
    Ok(())
}

/// G5: a backend's operator asks who was behind a SNAT port, while the connection lives and after.
#[privileged_test]
fn g5_a_snat_port_tells_its_client() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    let (client, snat) = (local(&pair.client)?, pair.snat);
    for is_live in [true, false] {
        let who = lb.who(snat)?;
        assert_eq!(who.len(), 1, "{who:?}");
        assert_eq!(who[0].live, is_live, "{who:?}");
        let flow = &who[0].flow;
        assert_eq!(flow.client, client.to_string());
        assert_eq!(flow.vip, ECHO.to_string());
        assert_eq!(flow.snat, snat.to_string());
        assert_eq!(flow.backend, format!("{}:30700", topology.nodes[0].address));
        assert_eq!(
            (flow.network.as_str(), flow.service.as_str()),
            ("tenant-a", "echo-a")
        );
        if is_live {
            pair.client.shutdown(std::net::Shutdown::Both)?;
            pair.server.shutdown(std::net::Shutdown::Both)?;
            ensure_all_ids_are_free(&topology, &lb)?;
        }
    }
    let another = SocketAddrV4::new(SNAT, if snat.port() == 2000 { 2001 } else { 2000 });
    let said = lb.tell(&["who", &another.to_string()])?;
    let words = format!("lb: no flow has the SNAT port {another}, and none had it");
    ensure!(
        said.code == Some(1) && said.stdout.is_empty() && said.stderr.starts_with(&words),
        "{said:?}"
    );
    let stranger = SocketAddrV4::new(VIP, 2000);
    let error = lb
        .who(stranger)
        .err()
        .context("an answer about no SNAT port")?;
    ensure!(
        format!("{error:#}").contains("not a SNAT port"),
        "{error:#}"
    );
    Ok(())
}

/// A process that was killed between the end of a flow and what belongs to it leaves a number of live
/// flows that is too high; the next one counts anew.
#[privileged_test]
fn a_number_of_flows_that_is_wrong_is_corrected() -> Result<()> {
    let topology = Topology::poc()?;
    let words = config()
        .network("tenant-a", |network| network.with("max_flows: 2"))
        .service("echo-a", |service| service.with("max_flows: 2"));
    let mut lb = Lb::start(&topology, &words)?;
    let line = line(&topology)?;
    let client = topology.client();
    let first = line.open()?;
    lb.process().stop()?;
    ids::miscount(topology.run(), "tenant-a", "echo-a", 1)?;
    refused(client, ECHO)?;

    lb.restart(&words)?;

    let second = poll::until("a budget that is not spent", LIMIT, || Ok(line.open().ok()))?;
    refused(client, ECHO)?;
    let status = lb.status()?;
    let flows: u64 = status.networks.iter().map(|network| network.flows).sum();
    assert_eq!(flows, 2);
    [first, second].iter().try_for_each(Pair::talk)
}

/// An operator sees the latest packet of each reason.
#[privileged_test]
fn a_drop_is_shown_with_its_latest_packet() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| {
        service.with("deny: [192.168.203.51/32]")
    });
    let lb = Lb::start(&topology, &config)?;
    let denied = &topology.clients[1];
    for port in [20_001, 20_002] {
        let from = SocketAddrV4::new(denied.address, port);
        send_syn(&topology, denied, from)?;
        poll::until("a denied packet and its sample", LIMIT, || {
            let drops = lb.drops()?;
            let drop = drops.iter().find(|drop| drop.reason == "denied");
            let shown = drop.is_some_and(|drop| {
                drop.dropped == u64::from(port - 20_000)
                    && drop.samples.iter().any(|sample| {
                        sample.source == Some(from.to_string())
                            && sample.destination == Some(ECHO.to_string())
                            && sample.protocol == "tcp"
                            && sample.flags.as_deref() == Some("SYN")
                            && sample.length == 54
                            && sample.age_seconds < 5.0
                    })
            });
            Ok(shown.then_some(()))
        })
        .with_context(|| format!("{:?}", lb.drops()))?;
    }
    Ok(())
}

/// Sends a SYN to the TCP service.
pub(crate) fn send_syn(topology: &Topology, host: &Host, from: SocketAddrV4) -> Result<()> {
    let hops = [mac_of(&host.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    let syn = packet::tcp(&from.to_string(), &ECHO.to_string(), SYN);
    RawPort::open(&host.netns, "eth0")?.send(&syn.between(hops[0], hops[1]).bytes())
}

fn noted(
    pair: Pair,
    reason: &'static str,
    note: &mut impl FnMut(&Pair, &'static str) -> Result<()>,
) -> Result<Pair> {
    note(&pair, reason)?;
    Ok(pair)
}

/// Much data each way.
fn bulk(pair: &Pair) -> Result<()> {
    const BYTES: usize = 300_000;
    for [mut from, mut to] in [[&pair.client, &pair.server], [&pair.server, &pair.client]] {
        thread::scope(|scope| {
            let sending = scope.spawn(move || from.write_all(&[7; BYTES]));
            let mut heard = vec![0; BYTES];
            to.read_exact(&mut heard).context("receive")?;
            sending
                .join()
                .expect("the sender does not panic")
                .context("send")
        })?;
    }
    Ok(())
}

/// The bytes in the log are those on the wire, but for what comes after the last FIN or reset.
fn ensure_bytes(logged: u64, on_wire: Option<&u64>, record: &Record) -> Result<()> {
    let on_wire = *on_wire.context("a connection that was not on the wire")?;
    ensure!(
        logged <= on_wire && on_wire - logged <= BARE,
        "{logged} bytes logged, {on_wire} on the wire: {record:?}"
    );
    Ok(())
}

/// Bytes of the frames of each client port, which stands at `port` in a frame.
fn bytes(wire: Wire, port: usize) -> Result<BTreeMap<u16, u64>> {
    let mut sums = BTreeMap::new();
    for frame in wire.stop_heads()? {
        ensure!(wire::ipv4(&frame.bytes).is_some(), "{frame:02x?}");
        let port = frame.bytes.get(port..port + 2);
        let port = port.context("a head up to the ports")?;
        let port = u16::from_be_bytes(port.try_into().context("two bytes")?);
        *sums.entry(port).or_default() += u64::try_from(frame.length)?;
    }
    Ok(sums)
}

fn read(log: &Path) -> Result<Vec<Record>> {
    let text = fs::read_to_string(log).context("read the flow log")?;
    let whole = text.lines().filter(|line| line.ends_with('}'));
    whole
        .map(|line| serde_json::from_str(line).with_context(|| format!("flow log: {line}")))
        .collect()
}

fn local(stream: &std::net::TcpStream) -> Result<SocketAddrV4> {
    match stream.local_addr().context("a local address")? {
        std::net::SocketAddr::V4(address) => Ok(address),
        other => anyhow::bail!("{other} is not IPv4"),
    }
}
