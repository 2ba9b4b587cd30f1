//! Which service of a configuration the generator sends to, and who is behind it.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result, bail, ensure};
use lb_user::config::{Backend, Config, Listen, Network, Pool, Protocol, Service};

use crate::{
    path::load::Load,
    path::segments::{Stream, Wanted},
};

/// The first plain TCP service of a configuration.
#[derive(Debug)]
pub(super) struct Target {
    vip: Ipv4Addr,
    port: u16,
    first_backend: Ipv4Addr,
    backends: u32,
    node_port: u16,
    /// The first client's address.
    pub(super) clients: Ipv4Addr,
    /// The NICs of this host in the networks of the clients and of the backends.
    pub(super) interfaces: [String; 2],
    /// Places that the network has for half-open connections.
    pub(super) half_open: u32,
}

impl Target {
    /// The service, for clients from an address on, with so many flows at a time.
    ///
    /// # Errors
    ///
    /// When there is no such service, or it is not one that a generator can speak for.
    pub(super) fn of(config: &Config, clients: Ipv4Addr, flows: u32) -> Result<Self> {
        let (service, listen) =
            plain(config).context("it has no TCP service with a pool of its own to send to")?;
        let pool = service.target.pool().and_then(|pool| config.pool(pool));
        let pool = pool.with_context(|| format!("service {} has no pool", service.name))?;
        let [network, behind] = [&service.network, &pool.network].map(|name| {
            let network = config.network(name);
            network.with_context(|| format!("there is no network {name}"))
        });
        let (network, behind) = (network?, behind?);
        lets_in(network, clients)?;
        leaves_alone(service, pool)?;
        has_room(behind, flows)?;
        let (first, count) =
            row(&pool.backends).with_context(|| format!("the backends of pool {}", pool.name))?;
        Ok(Self {
            vip: v4(listen.address)?,
            port: listen.port,
            first_backend: v4(first.address)?,
            backends: count,
            node_port: first.port,
            clients,
            interfaces: [network, behind].map(|network| network.interface.clone()),
            half_open: network.half_open,
        })
    }

    /// Both ends of a load.
    pub(super) fn ends(&self, load: Load) -> (Stream, Wanted) {
        let first_backend = u32::from(self.first_backend);
        let vip = u32::from(self.vip);
        let stream = Stream {
            source: u32::from(self.clients),
            destination: vip,
            port: self.port.into(),
            first: load.first,
            flows: load.flows,
            step: load.step,
            opens: u32::from(load.data.is_none()),
            data: load.data.unwrap_or(0),
            ..Stream::default()
        };
        let wanted = Wanted {
            backend: first_backend & 0xffff,
            backends: self.backends,
            port: self.node_port.into(),
            vip,
            vips: 1,
            answers: 0,
            follows: 0,
        };
        (stream, wanted)
    }
}

/// A service that no thread of lb has a part in.
fn plain(config: &Config) -> Option<(&Service, Listen)> {
    let mut services = config.services.iter();
    services.find_map(|service| {
        let mut listen = service.listen.iter();
        let tcp = listen.find(|listen| listen.protocol == Protocol::Tcp)?;
        (!config.is_of_cell(service)).then_some((service, *tcp))
    })
}

/// Whether the generator can be a client of a network.
fn lets_in(network: &Network, clients: Ipv4Addr) -> Result<()> {
    untagged(network)?;
    let mut sources = network.sources.iter();
    ensure!(
        sources.any(|prefix| prefix.contains(&IpAddr::V4(clients))),
        "--clients {clients} is no address that network {} lets in",
        network.name
    );
    Ok(())
}

/// Whether the generator sees nothing but what it has sent.
fn leaves_alone(service: &Service, pool: &Pool) -> Result<()> {
    ensure!(
        pool.health.is_none(),
        "pool {} has its backends checked, which the generator does not answer: leave `health` out for the bench",
        pool.name
    );
    ensure!(
        service.keepalive.is_none(),
        "service {} asks idle connections, which the generator does not answer: leave `keepalive` out for the bench",
        service.name
    );
    Ok(())
}

/// Whether a network can have so many flows to each of its backends.
fn has_room(network: &Network, flows: u32) -> Result<()> {
    untagged(network)?;
    let ports: u32 = network.snat.iter().map(|snat| u32::from(snat.ports)).sum();
    ensure!(
        ports >= flows,
        "network {} has {ports} SNAT ports, and the bench needs {flows}",
        network.name
    );
    Ok(())
}

/// Whether frames have no tags, which the generator does not know.
fn untagged(network: &Network) -> Result<()> {
    ensure!(
        network.vlan.is_none(),
        "network {} is on a VLAN, and the generator sends untagged frames: measure on an untagged network",
        network.name
    );
    Ok(())
}

/// The first of backends whose addresses are in a row, and how many there are: the sink knows no others.
fn row(backends: &[Backend]) -> Result<(&Backend, u32)> {
    let mut sorted: Vec<&Backend> = backends.iter().collect();
    sorted.sort_unstable_by_key(|backend| backend.address);
    let Some(&first) = sorted.first() else {
        bail!("there are none")
    };
    for (place, backend) in (0..).zip(&sorted) {
        let expected = u32::from(v4(first.address)?) + place;
        ensure!(
            u32::from(v4(backend.address)?) == expected && backend.port == first.port,
            "{}:{} is not next to the others: the generator speaks for addresses in a row with one port",
            backend.address,
            backend.port
        );
    }
    Ok((first, u32::try_from(sorted.len())?))
}

/// An address that the generator can write.
fn v4(address: IpAddr) -> Result<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(_) => bail!("{address} is of IPv6, which the generator does not speak"),
    }
}

#[cfg(test)]
mod tests {
    use lb_tests::product::config::Config as Text;
    use lb_user::config;
    use serde_json::json;

    use super::*;

    fn backend(last: u8, port: u16) -> Backend {
        Backend {
            name: String::new(),
            address: IpAddr::from([10, 0, 0, last]),
            port,
            weight: 1,
            backup: false,
            discovered: None,
        }
    }

    const CONFIG: &str = "version: 1
networks:
  tenant: { role: tenant, interface: eth0, prefixes: [10.200.0.0/16] }
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.201.0.0/16], snat: [10.201.2.1] }
pools:
  api: { network: mgmt, backends: [\"10.201.1.2:30700\", \"10.201.1.1:30700\"] }
services:
  api: { network: tenant, listen: [\"10.200.0.10:53/udp\", \"10.200.0.10:7000/tcp\"], pool: api }
";

    /// The target of [`CONFIG`] with this change.
    fn target(change: impl FnOnce(Text) -> Text, clients: [u8; 4]) -> Result<Target> {
        let text = change(Text::read(CONFIG));
        let config =
            config::parse("lb.yaml", &text).map_err(|problems| anyhow::anyhow!("{problems}"))?;
        Target::of(&config, clients.into(), 1 << 15)
    }

    const CLIENT: [u8; 4] = [10, 200, 64, 1];

    #[test]
    fn the_first_tcp_listener_is_the_target() {
        let target = target(|config| config, CLIENT).unwrap();
        let load = Load::each(0, 10, Some(6));
        let (stream, wanted) = target.ends(load);
        assert_eq!((stream.source, stream.port), (0x0ac8_4001, 7000));
        assert_eq!(stream.destination, 0x0ac8_000a);
        assert_eq!((wanted.backend, wanted.backends), (0x0101, 2));
        assert_eq!((wanted.port, wanted.vip), (30700, 0x0ac8_000a));
        assert_eq!(target.interfaces, ["eth0", "eth1"]);
    }

    #[test]
    fn what_the_generator_cannot_speak_for_is_refused() {
        type Change = fn(Text) -> Text;
        let cases: [(Change, [u8; 4], &str); 7] = [
            (|same| same, [10, 9, 0, 1], "10.9.0.1"),
            (
                |all| all.network("tenant", |one| one.set("vlan", 5)),
                CLIENT,
                "VLAN",
            ),
            (
                |all| all.network("mgmt", |one| one.set("vlan", 5)),
                CLIENT,
                "VLAN",
            ),
            (
                |all| {
                    let few = json!({ "address": "10.201.2.1", "ports": "2000-2999" });
                    all.network("mgmt", |one| one.set("snat.0", few))
                },
                CLIENT,
                "1000 SNAT ports",
            ),
            (
                |all| all.service("api", |api| api.set("keepalive", "10m")),
                CLIENT,
                "keepalive",
            ),
            (
                |all| all.pool("api", |api| api.with("health: { tcp: {} }")),
                CLIENT,
                "health",
            ),
            (
                |all| all.service("api", |api| api.without("listen", 1)),
                CLIENT,
                "no TCP service",
            ),
        ];
        for (change, clients, words) in cases {
            let error = target(change, clients).unwrap_err();
            let said = format!("{error:#}");
            assert!(said.contains(words), "{words}: {said}");
            assert!(!said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn backends_in_a_row_are_taken_in_any_order() {
        let backends = [backend(3, 80), backend(2, 80)];
        let (first, count) = row(&backends).unwrap();
        assert_eq!((first.address, count), (IpAddr::from([10, 0, 0, 2]), 2));
    }

    #[test]
    fn others_are_refused_by_name() {
        let gap = row(&[backend(2, 80), backend(4, 80)]).unwrap_err();
        assert!(gap.to_string().contains("10.0.0.4:80"), "{gap}");
        assert!(row(&[backend(2, 80), backend(3, 81)]).is_err());
        assert!(row(&[]).is_err());
    }
}
