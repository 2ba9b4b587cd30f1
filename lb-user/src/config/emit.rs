//! The configuration as a file in which everything is written out, and that means the same.

mod shared;

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    net::SocketAddr,
};

use ipnet::IpNet;
use lb_common::maps::snat::{FIRST_FLOW_PORT, FLOWS_PER_ADDRESS};

use super::{
    duration::{text, text_or_never},
    expand::Origins,
    health::Health,
    listen::Protocol,
    model::{
        Backend, BelowMinUp, Config, DRAIN_TIMEOUT, Limits, Network, OnStop, Pool, Service, Snat,
        TCP_IDLE, Timeouts, UDP_IDLE, any, reachable,
    },
    quota::{Quota, quotas},
};

/// The text of the file. Comments say which parts were expanded from what.
pub(super) fn emit(config: &Config, origins: &Origins) -> String {
    let mut text = String::new();
    // A `String` takes everything.
    let _infallible: fmt::Result = write(&mut text, config, origins);
    text
}

fn write(out: &mut String, config: &Config, origins: &Origins) -> fmt::Result {
    let Config {
        networks,
        pools,
        services,
        limits,
        timeouts,
        flow_log,
        watch,
        on_stop,
    } = config;
    out.push_str("version: 1\n");
    if *watch {
        out.push_str("watch: true\n");
    }
    if *on_stop != OnStop::default() {
        writeln!(out, "on_stop: {on_stop}")?;
    }
    out.push_str("\nnetworks:\n");
    let quotas = quotas(config);
    for each in networks {
        let own = quotas.iter().filter(|quota| quota.network == each.name);
        network(out, each, own)?;
    }
    out.push_str("\npools:\n");
    for each in pools {
        origin(out, &origins.pools, &each.name)?;
        pool(out, each)?;
    }
    out.push_str("\nservices:\n");
    for each in services {
        origin(out, &origins.services, &each.name)?;
        service(out, each)?;
    }
    let Limits {
        snat_addresses,
        services,
        backends,
        pools,
    } = limits;
    writeln!(
        out,
        "\nlimits:\n  snat_addresses: {snat_addresses}\n  services: {services}\n  \
         backends: {backends}\n  pools: {pools}"
    )?;
    let Timeouts {
        half_open,
        half_closed,
        udp,
    } = timeouts;
    let [half_open, half_closed, udp] = [half_open, half_closed, udp].map(|time| text(*time));
    writeln!(
        out,
        "\ntimeouts:\n  half_open: {half_open}\n  half_closed: {half_closed}\n  udp: {udp}"
    )?;
    if let Some(path) = flow_log {
        writeln!(out, "\nlog:\n  flows: {}", scalar(&path.to_string_lossy()))?;
    }
    Ok(())
}

fn origin(out: &mut String, origins: &HashMap<String, String>, name: &str) -> fmt::Result {
    match origins.get(name) {
        Some(origin) => {
            let one_line: String = origin.chars().flat_map(char::escape_debug).collect();
            writeln!(out, "  # {one_line}")
        }
        None => Ok(()),
    }
}

fn network<'q>(
    out: &mut String,
    network: &Network,
    quotas: impl Iterator<Item = &'q Quota<'q>>,
) -> fmt::Result {
    let Network {
        name,
        role,
        interface,
        vlan,
        host,
        prefixes,
        routes,
        sources,
        backends,
        snat,
        reject,
        max_flows,
        half_open,
        udp_flows,
        mss,
    } = network;
    writeln!(out, "  {}:\n    role: {role}", scalar(name))?;
    writeln!(out, "    interface: {}", scalar(interface))?;
    if let Some(vlan) = vlan {
        writeln!(out, "    vlan: {vlan}")?;
    }
    if *host {
        out.push_str("    address: host\n");
    }
    writeln!(out, "    prefixes: {}", nets(prefixes))?;
    if !routes.is_empty() {
        let routes = routes
            .iter()
            .map(|route| format!("{{ to: {}, via: {} }}", quoted(route.to), quoted(route.via)));
        writeln!(out, "    routes: {}", flow(routes))?;
    }
    let usual = reachable(prefixes, routes);
    if *sources == any() {
        out.push_str("    sources: any\n");
    } else if *sources != usual {
        writeln!(out, "    sources: {}", nets(sources))?;
    }
    if *backends != usual {
        writeln!(out, "    backends: {}", nets(backends))?;
    }
    if !snat.is_empty() {
        let snat = snat.iter().map(|snat| snat_address(snat, *host));
        writeln!(out, "    snat: {}", flow(snat))?;
    }
    refusals(out, *reject, *max_flows)?;
    for quota in quotas {
        part(out, quota)?;
    }
    writeln!(
        out,
        "    half_open: {half_open}\n    udp_flows: {udp_flows}"
    )?;
    match mss {
        Some(mss) => writeln!(out, "    mss: {mss}"),
        None => Ok(()),
    }
}

/// What holds without `max_flows`, which would be for all backends together.
fn part(out: &mut String, quota: &Quota<'_>) -> fmt::Result {
    let Quota {
        backends,
        ports,
        networks,
        ..
    } = quota;
    match quota.most {
        Some(most) => writeln!(
            out,
            "    # at most {most} flows on the {ports} SNAT ports of {backends} ({}), which {networks} networks share",
            quota.family()
        ),
        None => Ok(()),
    }
}

fn refusals(out: &mut String, reject: bool, max_flows: Option<u32>) -> fmt::Result {
    if reject {
        out.push_str("    reject: true\n");
    }
    match max_flows {
        Some(max_flows) => writeln!(out, "    max_flows: {max_flows}"),
        None => Ok(()),
    }
}

fn snat_address(snat: &Snat, host: bool) -> String {
    let Snat {
        address,
        first_port,
        ports,
    } = snat;
    let all = (*first_port, *ports) == (FIRST_FLOW_PORT, FLOWS_PER_ADDRESS);
    if all && !host {
        return quoted(address);
    }
    let last_port = first_port + (ports - 1);
    format!(
        "{{ address: {}, ports: {first_port}-{last_port} }}",
        quoted(address)
    )
}

fn pool(out: &mut String, pool: &Pool) -> fmt::Result {
    let Pool {
        name,
        network,
        backends,
        balance,
        proxy_protocol,
        health: checks,
        drain_timeout,
        slow_start,
        min_up,
        below_min_up,
    } = pool;
    writeln!(out, "  {}:\n    network: {}", scalar(name), scalar(network))?;
    if !balance.is_default() {
        writeln!(out, "    balance: {balance}")?;
    }
    if let Some(version) = proxy_protocol {
        writeln!(out, "    proxy_protocol: {version}")?;
    }
    if let Some(checks) = checks {
        health(out, checks)?;
    }
    if *drain_timeout != Some(DRAIN_TIMEOUT) {
        writeln!(out, "    drain_timeout: {}", text_or_never(*drain_timeout))?;
    }
    if !slow_start.is_zero() {
        writeln!(out, "    slow_start: {}", text(*slow_start))?;
    }
    if *min_up != 0 {
        writeln!(out, "    min_up: {min_up}%")?;
    }
    if *below_min_up != BelowMinUp::default() {
        writeln!(out, "    below_min_up: {below_min_up}")?;
    }
    if backends.is_empty() {
        out.push_str("    backends: []\n");
    } else {
        out.push_str("    backends:\n");
    }
    for Backend {
        name,
        address,
        port,
        weight,
    } in backends
    {
        let tuple = SocketAddr::new(*address, *port).to_string();
        if *name == tuple && *weight == 1 {
            writeln!(out, "      - \"{tuple}\"")?;
            continue;
        }
        write!(out, "      - {{ address: \"{tuple}\"")?;
        if *name != tuple {
            write!(out, ", name: {}", scalar(name))?;
        }
        if *weight != 1 {
            write!(out, ", weight: {weight}")?;
        }
        out.push_str(" }\n");
    }
    Ok(())
}

fn health(out: &mut String, health: &Health) -> fmt::Result {
    let Health {
        check,
        port,
        interval,
        timeout,
        rise,
        fall,
        fast_interval,
        flap_hold,
        on_dead,
    } = health;
    let (kind, keys) = check.written();
    let keys = keys
        .iter()
        .map(|(key, text)| format!("{key}: {}", scalar(text)));
    let mut keys: Vec<String> = keys.collect();
    keys.extend(port.map(|port| format!("port: {port}")));
    let keys = if keys.is_empty() {
        "{}".to_owned()
    } else {
        format!("{{ {} }}", keys.join(", "))
    };
    let [interval, timeout, fast_interval, flap_hold] =
        [interval, timeout, fast_interval, flap_hold].map(|time| text(*time));
    writeln!(
        out,
        "    health:\n      {kind}: {keys}\n      interval: {interval}\n      \
         timeout: {timeout}\n      rise: {rise}\n      fall: {fall}\n      \
         fast_interval: {fast_interval}\n      flap_hold: {flap_hold}\n      on_dead: {on_dead}"
    )
}

fn service(out: &mut String, service: &Service) -> fmt::Result {
    let Service {
        name,
        network,
        listen,
        target,
        rules,
        idle_timeout,
        udp_idle_timeout,
        keepalive,
        reject,
        max_flows,
    } = service;
    let usual = if service.listens(Protocol::Tcp) {
        TCP_IDLE
    } else {
        UDP_IDLE
    };
    let listen = listen.iter().map(|listen| format!("\"{listen}\""));
    writeln!(out, "  {}:\n    network: {}", scalar(name), scalar(network))?;
    writeln!(out, "    listen: {}", flow(listen))?;
    shared::target(out, target)?;
    for (key, allow) in [("allow", true), ("deny", false)] {
        let prefixes = rules.iter().filter(|rule| rule.allow == allow);
        let prefixes: Vec<IpNet> = prefixes.map(|rule| rule.prefix).collect();
        if !prefixes.is_empty() {
            writeln!(out, "    {key}: {}", nets(&prefixes))?;
        }
    }
    // One key says both, except that UDP has a default of its own.
    if (*idle_timeout, *udp_idle_timeout) != (Some(usual), UDP_IDLE) {
        writeln!(out, "    idle_timeout: {}", text_or_never(*idle_timeout))?;
    }
    if let Some(keepalive) = keepalive {
        writeln!(out, "    keepalive: {}", text(*keepalive))?;
    }
    refusals(out, *reject, *max_flows)
}

/// A list in one line.
fn flow(elements: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let elements = elements.into_iter().map(|element| element.to_string());
    format!("[{}]", elements.collect::<Vec<_>>().join(", "))
}

/// Prefixes in one line.
fn nets(prefixes: &[IpNet]) -> String {
    flow(prefixes.iter().map(quoted))
}

/// An address or prefix; in quotes if it is of IPv6, because a colon may also end a key.
fn quoted(address: impl fmt::Display) -> String {
    let text = address.to_string();
    if text.contains(':') {
        format!("\"{text}\"")
    } else {
        text
    }
}

/// A text in quotes, unless it cannot be taken for anything else. An interface's name can have any
/// character but a space.
fn scalar(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && text.bytes().all(plain) && !text.eq_ignore_ascii_case("null") {
        return text.to_owned();
    }
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_ascii_graphic() => quoted.push(c),
            c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}
