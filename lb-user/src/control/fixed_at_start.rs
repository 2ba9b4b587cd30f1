//! What a running process cannot change: where its networks are attached, and low ports of the host that shared VIPs listen
//! at. It gave the privileges for that up at its start.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
};

use anyhow::{Result, ensure};

use crate::config::{self, Config};

/// Refuses what a running process cannot do: attach to an interface, leave one, make a cell, read a secret.
pub(super) fn check_networks(running: &Config, wanted: &Config) -> Result<()> {
    let moves = moved_networks(running, wanted);
    ensure!(
        moves.is_empty(),
        "{}: that needs a new process, which loses nothing: `lb reload` starts one, or {ANOTHER}",
        moves.join(", ")
    );
    Ok(())
}

/// The networks that come, go or move from one configuration to the other, in words, and the secret and boxes that change.
pub(crate) fn moved_networks(running: &Config, wanted: &Config) -> Vec<String> {
    let before: BTreeMap<_, _> = running.networks.iter().map(network_place).collect();
    let after: BTreeMap<_, _> = wanted.networks.iter().map(network_place).collect();
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let moves = names.into_iter().filter_map(|name| {
        let moves = match (before.get(name), after.get(name)) {
            (before, after) if before == after => return None,
            (None, _) => "is new",
            (_, None) => "is gone",
            _ => "has another interface, vlan or kind of address",
        };
        Some(format!("network {name} {moves}"))
    });
    let key = (running.syn_cookie_key != wanted.syn_cookie_key)
        .then(|| "syn_cookie_key is another file".to_owned());
    let ha = (session_of(running) != session_of(wanted))
        .then(|| "ha has another box, other boxes or other files".to_owned());
    moves.chain(key).chain(ha).collect()
}

/// What the session between two boxes is made with: all of `ha` but the marker.
fn session_of(config: &Config) -> Option<config::Ha> {
    let ha = config.ha.clone()?;
    Some(config::Ha {
        marker: Ipv4Addr::UNSPECIFIED.into(),
        ..ha
    })
}

/// A network's name, and where it is attached.
pub(super) fn network_place(network: &config::Network) -> (&str, (&str, Option<u16>, bool)) {
    let place = (network.interface.as_str(), network.vlan, network.host);
    (&network.name, place)
}

/// How another process takes over from this one.
pub(crate) const ANOTHER: &str = "`lb prepare` if root does not run it, then `lb run --takeover` with this file; \
                       under systemd `systemctl reload lb`";

/// Refuses shared VIPs at low ports of the host that are not open already: they may be opened at the
/// start only.
pub(super) fn check_ports(running: &Config, wanted: &Config) -> Result<()> {
    let first = first_port();
    let known = host_listeners(running);
    let mut low = host_listeners(wanted);
    low.retain(|(network, listen)| listen.port < first && !known.contains(&(*network, *listen)));
    let low: Vec<String> = low.iter().map(|(_, listen)| listen.to_string()).collect();
    ensure!(
        low.is_empty(),
        "ports of the host below {first} can be listened at only by a new process, which loses nothing: \
         {ANOTHER} ({})",
        low.join(", ")
    );
    Ok(())
}

/// The first port of the host that needs no capability.
pub(crate) fn first_port() -> u16 {
    let port = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let port = port.ok().and_then(|port| port.trim().parse().ok());
    port.unwrap_or(1024)
}

/// Where shared VIPs listen at addresses of the host.
fn host_listeners(config: &Config) -> Vec<(&str, config::Listen)> {
    let services = config.services.iter();
    let shared = services.filter(|service| config.is_of_cell(service));
    let on_host = shared.filter(|service| {
        let network = config.network(&service.network);
        network.is_some_and(|network| network.host)
    });
    on_host
        .flat_map(|service| {
            let listens = service.listen.iter();
            listens.map(|listen| (service.network.as_str(), *listen))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a shared VIP of the host at this port.
    fn config(port: u16) -> Config {
        with(port, "sni: { routes: [{ names: [a.lab], pool: p }] }", "")
    }

    /// With a service of the host at this port that goes there; its pool has these keys.
    fn with(port: u16, target: &str, keys: &str) -> Config {
        let text = format!(
            "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }}
  a: {{ role: uplink, interface: eth0, address: host, prefixes: [10.1.0.0/24] }}
pools:
  p: {{ network: mgmt, {keys} backends: [\"10.0.0.1:1\"] }}
services:
  s: {{ network: a, listen: [\"10.1.0.9:{port}/tcp\"], {target} }}
"
        );
        config::parse("lb.yaml", &text).unwrap()
    }

    #[test]
    fn a_low_port_of_the_host_is_only_kept() {
        let (low, high) = (config(443), config(8443));
        assert!(check_ports(&low, &low).is_ok());
        assert!(check_ports(&low, &high).is_ok());
        let refused = check_ports(&high, &low).unwrap_err().to_string();
        assert!(refused.contains("(10.1.0.9:443/tcp)"), "{refused}");
        let plain = with(443, "pool: p", "");
        assert!(check_ports(&high, &plain).is_ok());
        let told = with(443, "pool: p", "proxy_protocol: v2,");
        assert!(check_ports(&plain, &told).is_err());
    }

    #[test]
    fn another_box_needs_a_new_process_and_another_marker_none() {
        let config = |name: &str, marker: &str| {
            let text = format!(
                "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.0.0.0/24] }}
syn_cookie_key: /etc/lb/syn-cookie.key
ha:
  box: {name}
  boxes: {{ a: {{ sync: \"10.99.0.1:7433\" }}, b: {{ sync: \"10.99.0.2:7433\" }} }}
  marker: {marker}
  ca: /ca.pem
  certificate: /box.pem
  key: /box.key
"
            );
            config::parse("lb.yaml", &text).unwrap()
        };
        let running = config("a", "10.0.0.9");
        assert!(check_networks(&running, &config("a", "10.0.0.8")).is_ok());
        let refused = check_networks(&running, &config("b", "10.0.0.9")).unwrap_err();
        let words = "ha has another box, other boxes or other files: that needs a new process";
        assert!(refused.to_string().starts_with(words), "{refused}");
    }

    #[test]
    fn a_network_that_needs_a_new_process_is_named_with_what_is_new_of_it() {
        let networks = |networks: &str| {
            let mgmt = "mgmt: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24] }";
            let text = format!("version: 1\nnetworks:\n  {mgmt}\n{networks}");
            config::parse("lb.yaml", &text).unwrap()
        };
        let tenant = |name: &str, interface: &str| {
            format!(
                "  {name}: {{ role: tenant, interface: {interface}, prefixes: [10.1.0.0/24] }}\n"
            )
        };
        let running = networks(&(tenant("a", "eth0") + &tenant("b", "eth2")));
        assert!(check_networks(&running, &running).is_ok());
        let wanted = networks(&(tenant("b", "eth3") + &tenant("c", "eth4")));
        let refused = check_networks(&running, &wanted).unwrap_err().to_string();
        let differences = "network a is gone, network b has another interface, vlan or kind of address, \
                           network c is new: that needs a new process";
        assert!(refused.starts_with(differences), "{refused}");
    }
}
