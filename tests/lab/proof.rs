//! What the lab claims and how it looks.
//!
//! Every line is one observation from outside the product, except the three that say what the
//! product itself counted. A line that cannot be observed does not hold.

use std::{
    cell::OnceCell,
    collections::BTreeSet,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_tests::{
    netns::Netns,
    oracle::{
        capture::{Capture, Frame},
        observe,
        packet_accounting::Ledger,
    },
    product::lb::Lb,
    servers::peers::Peers,
    topology::{API, APPS_HTTPS, ECHO, MGMT_NIC, SNAT, TENANT_NIC, TENANT_SNAT, Trunk, VIP},
    traffic::{
        client,
        ping::{Ping, ping},
        programs,
        secret::SecretFlow,
    },
};

use crate::{
    table::{Row, Seen, join, row},
    tenant::OneTenant,
};

/// Requests per client and service.
pub(crate) const REQUESTS: usize = 8;
/// A port that the clients of both tenants use at the same time.
const SAME_PORT: u16 = 20_000;
/// Rounds of two connections that differ in nothing but their tenant.
const ROUNDS: usize = 200;
/// Payload of the bulk transfer each way.
const BULK_BYTES: u64 = 32 << 20;
const LIMIT: Duration = Duration::from_secs(10);

/// Drives the traffic and observes; a failure is a line that does not hold.
pub(crate) fn collect(trunk: &Trunk, peers: &[Peers<'_>; 2], lb: &Lb<'_>) -> Vec<Row> {
    let lab = Lab {
        trunk,
        peers,
        lb,
        frames: OnceCell::new(),
    };
    let before = Ledger::read(trunk, lb);
    let stack = observe::ip_in_receives(&trunk.lb);
    let captures = lab.capture();

    let mut rows = Vec::new();
    for (tenant, peers) in trunk.tenants.iter().zip(peers) {
        let one = OneTenant { tenant, peers };
        let says = |words: &str| format!("{}: {words}", tenant.name);
        rows.extend([
            row(
                &says(&format!("curl {API}")),
                "its own control plane, TLS verified",
                one.api(),
            ),
            row(
                &says(&format!("dig @{VIP}")),
                "its own control plane, from the VIP",
                one.dns(),
            ),
            row(
                &says(&format!("curl {APPS_HTTPS}")),
                "both of its own workers",
                one.apps(),
            ),
            row(
                &says("sources at its workers"),
                &format!("{TENANT_SNAT} only"),
                one.sources_at_workers(),
            ),
        ]);
    }
    let nics = format!("native on {TENANT_NIC} and {MGMT_NIC}");
    rows.extend([
        row(
            &format!(
                "both at once: {}:{SAME_PORT}",
                trunk.tenants[0].client().address
            ),
            "each its own control plane",
            lab.same_tuple(),
        ),
        row(
            "tenant-a's authority in tenant-b",
            "verifies nothing",
            lab.foreign_authority(),
        ),
        row(
            "a client that a service denies",
            "silence, and a count",
            lab.denied(),
        ),
        row(
            "sources at the nodes, tcpdump",
            &format!("{SNAT} only"),
            lab.sources(captures),
        ),
        row(
            "ports at the nodes, tcpdump",
            "the 6 NodePorts of both",
            lab.ports(),
        ),
        row("bulk TCP", "32 MiB each way, equal SHA-256", lab.bulk()),
        row(
            "route from a tenant to a node",
            "none; lost when sent to the VIP",
            lab.direct(),
        ),
        row("route from a node to a tenant", "none", lab.back()),
        row("the host", "no forwarding, address or nft rule", lab.host()),
        row("XDP program", &nics, lab.xdp()),
        row(
            "packets in the host's stack",
            "0, all are handled in XDP",
            lab.stack(stack),
        ),
        row(
            "verdicts = drivers' counters",
            "equal per hook",
            lab.ledger(before),
        ),
    ]);
    rows
}

struct Lab<'l> {
    trunk: &'l Trunk,
    peers: &'l [Peers<'l>; 2],
    lb: &'l Lb<'l>,
    /// What tcpdump saw on the nodes, once the captures are stopped.
    frames: OnceCell<Vec<Frame>>,
}

impl Lab<'_> {
    fn capture(&self) -> Result<Vec<Capture>> {
        let nodes = self.trunk.nodes.iter();
        nodes
            .map(|node| {
                let filter = format!("ip and dst host {}", node.address);
                Capture::start(&node.netns, "eth0", &filter, self.trunk.dir())
            })
            .collect()
    }

    fn same_tuple(&self) -> Seen {
        let mut flows = Vec::new();
        for tenant in &self.trunk.tenants {
            let client = tenant.client();
            let from = SocketAddrV4::new(client.address, SAME_PORT);
            flows.push(SecretFlow::open(&client.netns, Some(from), ECHO)?);
        }
        for _ in 0..ROUNDS {
            flows.iter_mut().try_for_each(SecretFlow::round)?;
        }
        let servers: Vec<&str> = flows.iter().map(SecretFlow::server).collect();
        let mut tenants = self.trunk.tenants.iter().zip(&servers);
        let own = tenants.all(|(tenant, server)| server.starts_with(tenant.name));
        let mixed_up = self.peers.iter().map(|peers| peers.mixed_up().len());
        let mixed_up: usize = mixed_up.sum();
        let seen = format!(
            "{}; {mixed_up} mixed up",
            servers.join(", ").replace("tenant-", "")
        );
        Ok((seen, own && mixed_up == 0))
    }

    fn foreign_authority(&self) -> Seen {
        let [_, b] = &self.trunk.tenants;
        let [of_a, _] = self.peers;
        let answer = programs::curl(b.client(), of_a.certificate(), API);
        let (seen, holds) = match answer {
            Ok(answer) => (format!("answered by {}", answer.node), false),
            Err(error) => {
                let words = format!("{error:#}");
                let refused = words.contains("SSL certificate problem");
                let seen = if refused {
                    "curl refuses the certificate"
                } else {
                    &words
                };
                (seen.to_owned(), refused)
            }
        };
        Ok((seen, holds))
    }

    fn denied(&self) -> Seen {
        let [a, _] = &self.trunk.tenants;
        let [_, second] = a.clients.as_slice() else {
            anyhow::bail!("a tenant has two clients");
        };
        let before = self.lb.dropped("denied")?;
        let patience = Duration::from_millis(500);
        let connected = second
            .netns
            .inside(|| TcpStream::connect_timeout(&ECHO.into(), patience))?;
        let counted = self.lb.dropped("denied")? - before;
        let how = match &connected {
            Ok(_) => "connected".to_owned(),
            Err(error) if error.kind() == ErrorKind::TimedOut => "nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        let seen = format!("{}: {how}, {counted} counted", second.address);
        Ok((seen, connected.is_err() && counted == 1))
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

    fn expected_ports(&self) -> BTreeSet<u16> {
        let tenants = self.trunk.tenants.iter();
        tenants
            .flat_map(|tenant| [tenant.ports.api, tenant.ports.dns, tenant.ports.echo])
            .collect()
    }

    fn ports(&self) -> Seen {
        let frames = self.frames.get().map(Vec::as_slice).unwrap_or_default();
        let ports: BTreeSet<u16> = frames.iter().filter_map(|f| f.destination_port).collect();
        let holds = ports == self.expected_ports();
        let seen = if holds {
            format!("{} ports", ports.len())
        } else {
            join(&ports)
        };
        Ok((seen, holds))
    }

    fn bulk(&self) -> Seen {
        let [a, b] = &self.trunk.tenants;
        let up = a
            .client()
            .netns
            .inside(|| client::upload(ECHO, BULK_BYTES, 1))??;
        let down = b
            .client()
            .netns
            .inside(|| client::download(ECHO, BULK_BYTES, 2))??;
        let holds = up.sent == up.received && down.sent == down.received;
        let rates = [up.megabits_per_second(), down.megabits_per_second()];
        let seen = format!("{} and {} Mbit/s", rates[0], rates[1]);
        Ok((seen, holds))
    }

    fn direct(&self) -> Seen {
        let mut seen = BTreeSet::new();
        let mut routed = BTreeSet::new();
        for tenant in &self.trunk.tenants {
            let client = tenant.client();
            for node in &self.trunk.nodes {
                seen.insert(format!("{:?}", ping(&client.netns, node.address)?));
            }
            let route = format!("10.32.96.0/20 via {VIP}");
            client.netns.run(&format!("ip route add {route}"))?;
            let answer = ping(&client.netns, self.trunk.nodes[0].address);
            client.netns.run(&format!("ip route del {route}"))?;
            routed.insert(format!("{:?}", answer?));
        }
        let holds = seen == BTreeSet::from([format!("{:?}", Ping::NoRoute)])
            && routed == BTreeSet::from([format!("{:?}", Ping::Lost)]);
        Ok((format!("{}, {}", join(&seen), join(&routed)), holds))
    }

    fn back(&self) -> Seen {
        let addresses: BTreeSet<Ipv4Addr> = self
            .trunk
            .tenants
            .iter()
            .flat_map(|tenant| tenant.clients.iter().chain(&tenant.workers))
            .map(|host| host.address)
            .collect();
        ensure!(!addresses.is_empty(), "no tenant hosts");
        let mut routes = 0;
        for node in &self.trunk.nodes {
            for &address in &addresses {
                routes += usize::from(programs::has_route(node, address)?);
            }
        }
        Ok((format!("{routes} routes"), routes == 0))
    }

    fn host(&self) -> Seen {
        let host = &self.trunk.lb;
        let forwarding = host.sysctl("ipv4/ip_forward")?;
        let addresses = observe::addresses(host)?;
        let rules = observe::nft_rules(host)?;
        let holds = forwarding == "0" && addresses.is_empty() && rules.is_empty();
        let (addresses, rules) = (addresses.len(), rules.lines().count());
        let seen = format!("ip_forward {forwarding}, {addresses} addresses, {rules} rules");
        Ok((seen, holds))
    }

    fn xdp(&self) -> Seen {
        let seen = [TENANT_NIC, MGMT_NIC].map(|nic| mode(&self.trunk.lb, nic));
        let [tenant, mgmt] = seen;
        let modes = [tenant?, mgmt?];
        let holds = modes == ["native"; 2];
        Ok((
            format!("{TENANT_NIC} {}, {MGMT_NIC} {}", modes[0], modes[1]),
            holds,
        ))
    }

    fn stack(&self, before: Result<u64>) -> Seen {
        let received = observe::ip_in_receives(&self.trunk.lb)? - before?;
        let verdicts = self.lb.status()?.verdicts.nic;
        let [total, forwarded] = [verdicts.total, verdicts.forwarded];
        let seen = format!("{received} of {total}");
        Ok((seen, received == 0 && forwarded > 0))
    }

    fn ledger(&self, before: Result<Ledger>) -> Seen {
        let now = Ledger::read(self.trunk, self.lb)?;
        now.ensure_balanced_since(&before?)?;
        let seen = format!("{} at NICs, {} at cells", now.nic_rx, now.cell_rx);
        Ok((seen, true))
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
