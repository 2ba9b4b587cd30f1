//! The table of the lab: what each claim expects, what was seen, and whether it holds.
//!
//! Every line is one observation from outside the product, except the two that say what the product
//! itself counted. A line that cannot be observed does not hold.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    time::Duration,
};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use lb_tests::{
    capture::{Capture, Frame},
    client,
    lb::Lb,
    ledger::Ledger,
    netns::Netns,
    observe,
    peers::{DNS_NAME, Peers},
    ping::{Ping, ping},
    topology::{
        API, API_NODE_PORT, DNS, DNS_NODE_PORT, ECHO, ECHO_NODE_PORT, MGMT_NIC, SNAT, TENANT_NIC,
        Topology, VIP,
    },
    traffic,
};

/// Requests per client and service.
const REQUESTS: usize = 8;
/// Payload of the bulk transfer each way.
const BULK_BYTES: u64 = 32 << 20;
/// Columns of the table.
const WIDTH: u16 = 120;
const LIMIT: Duration = Duration::from_secs(10);

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    what: String,
    expected: String,
    seen: String,
    pub(crate) holds: bool,
}

/// What was seen, and whether it is what was expected.
type Seen = Result<(String, bool)>;

/// Drives the traffic and observes; a failure is a line that does not hold.
pub(crate) fn collect(topology: &Topology, peers: &Peers<'_>, lb: &Lb<'_>) -> Vec<Row> {
    let lab = Lab {
        topology,
        peers,
        lb,
        frames: OnceCell::new(),
    };
    let before = Ledger::read(topology, lb);
    let stack = observe::ip_in_receives(&topology.lb);
    let captures = lab.capture();

    let node_ports = format!("{DNS_NODE_PORT}, {ECHO_NODE_PORT}, {API_NODE_PORT}");
    let nics = format!("native on {TENANT_NIC} and {MGMT_NIC}");
    vec![
        row(
            &format!("curl https://{API}"),
            "200 from several nodes, certificate verified",
            lab.api(),
        ),
        row(
            &format!("openssl to {API}"),
            "a verified handshake with the node",
            lab.tls(),
        ),
        row(
            &format!("dig @{VIP}, UDP"),
            &format!("answers of nodes, from {VIP}"),
            lab.dns(),
        ),
        row(
            &format!("TCP to {ECHO}"),
            "an answer from every node",
            lab.tcp(),
        ),
        row(
            "sources at the nodes, tcpdump",
            &format!("{SNAT} only"),
            lab.sources(captures),
        ),
        row(
            "sources in the servers' logs",
            &format!("{SNAT} only"),
            lab.logged_sources(),
        ),
        row("ports at the nodes, tcpdump", &node_ports, lab.ports()),
        row("bulk TCP", "32 MiB each way, equal SHA-256", lab.bulk()),
        row(
            "route from a tenant to a node",
            "none, and lost when sent to the VIP",
            lab.direct(),
        ),
        row("route from a node to a tenant", "none", lab.back()),
        row(
            "the host",
            "ip_forward 0, no address, no nft rule",
            lab.host(),
        ),
        row("XDP program", &nics, lab.xdp()),
        row(
            "packets in the host's stack",
            "0, all handled in XDP",
            lab.stack(stack),
        ),
        row(
            "verdicts = drivers' counters",
            "equal per hook",
            lab.ledger(before),
        ),
    ]
}

/// The printed form.
pub(crate) fn table(rows: Vec<Row>) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(["what", "expected", "seen", "ok"]);
    for Row {
        what,
        expected,
        seen,
        holds,
    } in rows
    {
        let mark = if holds { "yes" } else { "NO" };
        table.add_row([&what, &expected, &seen, mark]);
    }
    table
}

fn row(what: &str, expected: &str, seen: Seen) -> Row {
    let (seen, holds) = seen.unwrap_or_else(|error| (format!("{error:#}"), false));
    Row {
        what: what.to_owned(),
        expected: expected.to_owned(),
        seen,
        holds,
    }
}

struct Lab<'l> {
    topology: &'l Topology,
    peers: &'l Peers<'l>,
    lb: &'l Lb<'l>,
    /// What tcpdump saw on the nodes, once the captures are stopped.
    frames: OnceCell<Vec<Frame>>,
}

impl Lab<'_> {
    fn capture(&self) -> Result<Vec<Capture>> {
        let nodes = self.topology.nodes.iter();
        nodes
            .map(|node| {
                let filter = format!("ip and dst host {}", node.address);
                Capture::start(&node.netns, "eth0", &filter, self.topology.dir())
            })
            .collect()
    }

    fn api(&self) -> Seen {
        let mut answers = Count::default();
        for client in &self.topology.clients {
            for _ in 0..REQUESTS {
                answers.add(traffic::curl(client, self.peers.certificate(), API)?.node);
            }
        }
        Ok((answers.to_string(), answers.kinds() > 1))
    }

    fn tls(&self) -> Seen {
        let line = traffic::openssl(self.topology.client(), self.peers.certificate(), API)?;
        let holds = line == "Verification: OK";
        Ok((line, holds))
    }

    fn dns(&self) -> Seen {
        let mut nodes = Count::default();
        for client in &self.topology.clients {
            for _ in 0..REQUESTS {
                traffic::dig(client, DNS, DNS_NAME, "TXT")?
                    .into_iter()
                    .for_each(|n| nodes.add(n));
            }
        }
        let address = traffic::dig(self.topology.client(), DNS, "api.lab", "A")?;
        let holds = nodes.total() == 2 * REQUESTS && address == [VIP.to_string()];
        Ok((format!("{nodes}; api.lab is {}", address.join(" ")), holds))
    }

    fn tcp(&self) -> Seen {
        let mut answers = Count::default();
        for client in &self.topology.clients {
            for _ in 0..4 * REQUESTS {
                answers.add(client.netns.inside(|| client::who(None, ECHO))??.node);
            }
        }
        Ok((
            answers.to_string(),
            answers.kinds() == self.topology.nodes.len(),
        ))
    }

    fn sources(&self, captures: Result<Vec<Capture>>) -> Seen {
        let mut frames = Vec::new();
        for capture in captures? {
            capture.wait_for(1, LIMIT)?;
            frames.extend(capture.stop()?);
        }
        let sources: BTreeSet<_> = frames.iter().map(|frame| frame.source).collect();
        let seen = format!("{} packets from {}", frames.len(), join(&sources));
        let frames = self.frames.get_or_init(|| frames);
        Ok((
            seen,
            !frames.is_empty() && sources == BTreeSet::from([SNAT]),
        ))
    }

    fn logged_sources(&self) -> Seen {
        let sources = self.peers.sources()?;
        Ok((join(&sources), sources == BTreeSet::from([SNAT])))
    }

    fn ports(&self) -> Seen {
        let frames = self.frames.get().map(Vec::as_slice).unwrap_or_default();
        let ports: BTreeSet<u16> = frames.iter().filter_map(|f| f.destination_port).collect();
        let expected = BTreeSet::from([API_NODE_PORT, DNS_NODE_PORT, ECHO_NODE_PORT]);
        Ok((join(&ports), ports == expected))
    }

    fn bulk(&self) -> Seen {
        let client = &self.topology.client().netns;
        let up = client.inside(|| client::upload(ECHO, BULK_BYTES, 1))??;
        let down = client.inside(|| client::download(ECHO, BULK_BYTES, 2))??;
        let holds = up.sent == up.received && down.sent == down.received;
        let rates = [up.megabits_per_second(), down.megabits_per_second()];
        Ok((format!("{} and {} Mbit/s", rates[0], rates[1]), holds))
    }

    fn direct(&self) -> Seen {
        let client = self.topology.client();
        let mut seen = Vec::new();
        for node in &self.topology.nodes {
            seen.push(ping(&client.netns, node.address)?);
        }
        let route = format!("10.32.96.0/20 via {VIP}");
        client.netns.run(&format!("ip route add {route}"))?;
        let routed = ping(&client.netns, self.topology.nodes[0].address);
        client.netns.run(&format!("ip route del {route}"))?;
        let routed = routed?;
        let holds = seen.iter().all(|&ping| ping == Ping::NoRoute) && routed == Ping::Lost;
        Ok((format!("{:?}, {routed:?}", seen[0]), holds))
    }

    fn back(&self) -> Seen {
        let mut routes = 0;
        for node in &self.topology.nodes {
            for client in &self.topology.clients {
                routes += usize::from(traffic::has_route(node, client.address)?);
            }
        }
        Ok((format!("{routes} routes"), routes == 0))
    }

    fn host(&self) -> Seen {
        let host = &self.topology.lb;
        let forwarding = host.sysctl("ipv4/ip_forward")?;
        let addresses = observe::addresses(host)?;
        let rules = observe::nft_rules(host)?;
        let holds = forwarding == "0" && addresses.is_empty() && rules.is_empty();
        let (addresses, rules) = (addresses.len(), rules.lines().count());
        let seen = format!("ip_forward {forwarding}, {addresses} addresses, {rules} rules");
        Ok((seen, holds))
    }

    fn xdp(&self) -> Seen {
        let seen = [TENANT_NIC, MGMT_NIC].map(|nic| mode(&self.topology.lb, nic));
        let [tenant, mgmt] = seen;
        let modes = [tenant?, mgmt?];
        let holds = modes == ["native"; 2];
        Ok((
            format!("{TENANT_NIC} {}, {MGMT_NIC} {}", modes[0], modes[1]),
            holds,
        ))
    }

    fn stack(&self, before: Result<u64>) -> Seen {
        let received = observe::ip_in_receives(&self.topology.lb)? - before?;
        let verdicts = self.lb.status()?.verdicts.nic;
        let [total, forwarded] = [verdicts.total, verdicts.forwarded];
        let seen = format!("{received}; XDP: {total}, of these {forwarded} to the other NIC");
        Ok((seen, received == 0 && forwarded > 0))
    }

    fn ledger(&self, before: Result<Ledger>) -> Seen {
        let now = Ledger::read(self.topology, self.lb)?;
        now.ensure_balanced_since(&before?)?;
        Ok((now.to_string(), true))
    }
}

/// How the program on a NIC runs.
fn mode(host: &Netns, nic: &str) -> Result<&'static str> {
    Ok(match observe::link(host, nic)?.xdp {
        Some(xdp) if xdp.native => "native",
        Some(_) => "generic",
        None => "none",
    })
}

/// How often each word came.
#[derive(Debug, Default)]
struct Count(BTreeMap<String, usize>);

impl Count {
    fn add(&mut self, word: String) {
        *self.0.entry(word).or_default() += 1;
    }

    fn kinds(&self) -> usize {
        self.0.len()
    }

    fn total(&self) -> usize {
        self.0.values().sum()
    }
}

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self
            .0
            .iter()
            .map(|(word, times)| format!("{word}: {times}"));
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

fn join(values: &BTreeSet<impl Display>) -> String {
    values
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
