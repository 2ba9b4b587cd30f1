//! `lb check FILE`: load and validate, and print what a configuration can hold, and what its maps take of the kernel's
//! memory. Nothing is applied, and neither a running `lb` is looked at nor the host, but for how many CPUs that may have.

use std::{
    io::{self, Write},
    net::IpAddr,
    path::Path,
    process::ExitCode,
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::table;
use crate::{
    config::{self, Config, Declaration, Loaded, Problem, Problems, Quota, Warning, quotas},
    control::map_contents::map_contents,
    dataplane::footprint::{Footprint, footprint, possible_cpus},
    model::report::Versioned,
    system::output,
};

/// Exit code for a wrong configuration, as for a wrong command line.
const REFUSED: u8 = 2;

/// How long a SNAT port is of no use to the same backend port after its flow: what the backend's
/// kernel keeps a closed connection in TIME_WAIT for (`TCP_TIMEWAIT_LEN`), in seconds.
const TIME_WAIT_SECS: u32 = 60;

/// What a valid file is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutput {
    /// The configuration with everything written out, as a file.
    Expanded,
    /// One object with all there is to know.
    Json,
    /// A line, and a table of capacities.
    Summary,
}

/// Checks the file at `path`. Exit code 0: valid, the answer is on stdout. Exit code 2: every problem
/// is on stderr, or with JSON on stdout as part of the object; so are warnings, which change no exit
/// code. Exit code 1: the answer could not be written, but for a reader that wants no more of it.
pub fn check(path: &Path, answer: CheckOutput) -> ExitCode {
    let declared = match declaration(path) {
        Ok(declared) => declared,
        Err(error) => {
            output::print_error(format_args!("lb: read standard input: {error}"));
            return ExitCode::from(REFUSED);
        }
    };
    let result = config::load_declared(&declared);
    let memory = result.as_ref().ok();
    let memory = memory.and_then(|loaded| memory_of(&loaded.config));
    let code = match result {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(REFUSED),
    };
    let written = match (&result, answer) {
        (_, CheckOutput::Json) => serde_json::to_string_pretty(&report_of(&result, memory))
            .map_err(io::Error::from)
            .and_then(|text| writeln!(io::stdout(), "{text}")),
        (Ok(loaded), CheckOutput::Expanded) => {
            warn(&loaded.warnings).and_then(|()| write!(io::stdout(), "{}", loaded.expanded()?))
        }
        (Ok(loaded), CheckOutput::Summary) => {
            let config = &loaded.config;
            let line = format!("{}: ok: {}", path.display(), summary(config));
            let capacities = report(&capacities(config));
            let parts = parts(&quotas(config));
            let maps = memory.as_ref().map_or_else(String::new, maps_line);
            writeln!(io::stdout(), "{line}{maps}{capacities}{parts}")
                .and_then(|()| warn(&loaded.warnings))
        }
        (Err(problems), _) => writeln!(io::stderr(), "{problems}"),
    };
    match written {
        Ok(()) => code,
        // The reader wants no more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => code,
        Err(error) => {
            output::print_error(format_args!("lb: write what the check has found: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The file; `-` is standard input.
fn declaration(path: &Path) -> io::Result<Declaration> {
    if path != Path::new("-") {
        return Ok(Declaration::File(path.to_owned()));
    }
    Ok(Declaration::Text {
        name: "standard input".to_owned(),
        text: io::read_to_string(io::stdin())?,
    })
}

/// The warnings for people, a line each.
fn warn(warnings: &[Warning]) -> io::Result<()> {
    let mut out = io::stderr();
    warnings
        .iter()
        .try_for_each(|warning| writeln!(out, "warning: {warning}"))
}

/// What is in the configuration, and how many flows it can hold at a time.
fn summary(config: &Config) -> String {
    let backends = config.pools.iter().map(|pool| pool.backends.len()).sum();
    let capacities = capacities(config);
    let flows: u32 = capacities.iter().map(|capacity| capacity.flows).sum();
    format!(
        "{}, {}, {}, {}, {} ({flows} flows)",
        count(config.networks.len(), "network", "s"),
        count(config.pools.len(), "pool", "s"),
        count(config.services.len(), "service", "s"),
        count(backends, "backend", "s"),
        count(capacities.len(), "SNAT address", "es"),
    )
}

/// What one SNAT address can hold.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct Capacity<'a> {
    network: &'a str,
    address: IpAddr,
    first_port: u16,
    last_port: u16,
    /// At a time, to all backends together.
    flows: u32,
    /// To one backend address and port, lasting.
    connections_per_second: u32,
}

fn capacities(config: &Config) -> Vec<Capacity<'_>> {
    let addresses = config.networks.iter().flat_map(|network| {
        let snat = network.snat.iter();
        snat.map(|snat| Capacity {
            network: &network.name,
            address: snat.address,
            first_port: snat.first_port,
            last_port: snat.first_port + (snat.ports - 1),
            flows: snat.ports.into(),
            connections_per_second: u32::from(snat.ports) / TIME_WAIT_SECS,
        })
    });
    addresses.collect()
}

/// The capacities as a table behind the summary; nothing without a SNAT address.
fn report(capacities: &[Capacity<'_>]) -> String {
    if capacities.is_empty() {
        return String::new();
    }
    let header = ["NETWORK", "SNAT ADDRESS", "PORTS", "FLOWS", "NEW/S *"];
    let rows = capacities.iter().map(|capacity| {
        [
            capacity.network.to_owned(),
            capacity.address.to_string(),
            format!("{}-{}", capacity.first_port, capacity.last_port),
            capacity.flows.to_string(),
            capacity.connections_per_second.to_string(),
        ]
    });
    format!(
        "\n\n{}\n* new TCP connections to one backend address and port: a backend that closes first \
         keeps a port in TIME_WAIT for {TIME_WAIT_SECS} s",
        table::text(header, rows)
    )
}

/// What each network may have of SNAT ports that others use too, as a table; nothing where none do.
fn parts(quotas: &[Quota<'_>]) -> String {
    let shared = quotas.iter().filter(|quota| quota.networks > 1);
    let rows: Vec<_> = shared
        .map(|quota| {
            let most = quota.most.map(|most| most.to_string());
            [
                quota.network.to_owned(),
                format!("{} {}", quota.backends, quota.family()),
                quota.ports.to_string(),
                quota.networks.to_string(),
                most.unwrap_or_else(|| "max_flows".to_owned()),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "NETWORK",
        "SNAT PORTS OF",
        "PORTS",
        "SHARED BY",
        "MOST FLOWS",
    ];
    format!("\n\n{}", table::text(header, rows))
}

/// What the maps of `config` take on a machine such as this; nothing where that is not known.
fn memory_of(config: &Config) -> Option<Footprint> {
    let contents = map_contents(config).ok()?;
    Some(footprint(
        &config.limits.room(),
        &contents,
        possible_cpus().ok()?,
    ))
}

/// What the maps take, as a line behind the summary, in MB of a million bytes, rounded up.
fn maps_line(memory: &Footprint) -> String {
    let tenths = memory.bytes.div_ceil(100_000);
    let (whole, tenth, cpus) = (tenths / 10, tenths % 10, memory.cpus);
    let plural = if cpus == 1 { "" } else { "s" };
    format!("\nmaps: {whole}.{tenth} MB of the kernel's memory with {cpus} CPU{plural}")
}

fn count(number: usize, what: &str, plural: &str) -> String {
    let plural = if number == 1 { "" } else { plural };
    format!("{number} {what}{plural}")
}

/// The answer of `-o json`.
#[derive(Serialize, JsonSchema)]
pub(super) struct CheckReport<'a> {
    /// Whether it is valid.
    ok: bool,
    /// The configuration with every key that has a default, times in the words of the file; of a valid file, as is what
    /// follows but the problems.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Map<String, Value>")]
    config: Option<&'a Config>,
    /// What each SNAT address can hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<Vec<Capacity<'a>>>,
    /// What each network may have of the SNAT ports that its backends are reached from.
    #[serde(skip_serializing_if = "Option::is_none")]
    quotas: Option<Vec<Quota<'a>>>,
    /// What its maps take of the kernel's memory after a first start, before there is any flow; not there where the system
    /// does not say how many CPUs it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Footprint>,
    /// What is valid, and yet hardly what was meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<&'a [Warning]>,
    /// Why a file is not valid: all of its problems.
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<&'a [Problem]>,
}

fn report_of(
    result: &Result<Loaded, Problems>,
    memory: Option<Footprint>,
) -> Versioned<CheckReport<'_>> {
    let loaded = result.as_ref().ok();
    let config = loaded.map(|loaded| &loaded.config);
    Versioned::new(CheckReport {
        ok: result.is_ok(),
        config,
        capacity: config.map(capacities),
        quotas: config.map(quotas),
        memory,
        warnings: loaded.map(|loaded| loaded.warnings.as_slice()),
        problems: result.as_ref().err().map(Problems::as_slice),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
version: 1
networks:
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.1] }
pools:
  p: { network: mgmt, backends: [\"10.0.0.2:80\"] }
services:
  s: { network: mgmt, listen: [\"10.0.0.3:80/udp\"], pool: p }
";

    fn as_json(result: &Result<Loaded, Problems>) -> serde_json::Result<String> {
        serde_json::to_string(&report_of(result, None))
    }

    /// What is loaded from a file called `f`.
    fn loaded(text: &str) -> Result<Loaded, Problems> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, text).unwrap();
        config::load_text(&path)
    }

    #[test]
    fn the_summary_counts_and_says_what_fits() {
        let one = config::parse("f", SMALL).unwrap();
        assert_eq!(
            summary(&one),
            "1 network, 1 pool, 1 service, 1 backend, 1 SNAT address (56320 flows)"
        );
        let two = SMALL.replace("snat: [10.0.0.1]", "snat: [10.0.0.1, 10.0.0.4]");
        let two = config::parse("f", &two).unwrap();
        assert!(summary(&two).ends_with("2 SNAT addresses (112640 flows)"));
    }

    #[test]
    fn the_report_has_a_line_for_each_snat_address() {
        let ports = "snat: [10.0.0.1, { address: 10.0.0.4, ports: 2000-2599 }]";
        let config = config::parse("f", &SMALL.replace("snat: [10.0.0.1]", ports)).unwrap();
        let report = report(&capacities(&config));
        let lines: Vec<&str> = report.lines().map(str::trim_end).collect();
        assert_eq!(
            lines[..5],
            [
                "",
                "",
                " NETWORK  SNAT ADDRESS  PORTS       FLOWS  NEW/S *",
                " mgmt     10.0.0.1      1024-57343  56320  938",
                " mgmt     10.0.0.4      2000-2599   600    10",
            ]
        );
        assert!(lines[5].starts_with("* new TCP connections to one backend"));
        assert!(summary(&config).ends_with("2 SNAT addresses (56920 flows)"));
        let none = SMALL.split("pools:").next().unwrap();
        let none = config::parse("f", &none.replace(", snat: [10.0.0.1]", "")).unwrap();
        assert_eq!(super::report(&capacities(&none)), "");
    }

    #[test]
    fn the_parts_of_networks_that_share_addresses_have_a_line_each() {
        let one = config::parse("f", SMALL).unwrap();
        assert_eq!(parts(&quotas(&one)), "");
        let second = "networks:\n  t: { role: tenant, interface: eth0, prefixes: [10.1.0.0/24] }\n";
        let text = SMALL.replace("networks:\n", second);
        let service = "  a: { network: t, listen: [\"10.1.0.3:80/tcp\"], pool: p }\n";
        let both = config::parse("f", &format!("{text}{service}")).unwrap();
        let parts = parts(&quotas(&both));
        let lines: Vec<&str> = parts.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "",
                "",
                " NETWORK  SNAT PORTS OF  PORTS  SHARED BY  MOST FLOWS",
                " t        mgmt IPv4      56320  2          21120",
                " mgmt     mgmt IPv4      56320  2          21120",
            ]
        );
    }

    #[test]
    fn the_memory_of_maps_is_a_line_in_mb_rounded_up() {
        let line = |bytes, cpus| {
            let maps = Vec::new();
            maps_line(&Footprint { bytes, cpus, maps })
        };
        assert_eq!(
            line(107_400_001, 2),
            "\nmaps: 107.5 MB of the kernel's memory with 2 CPUs"
        );
        assert_eq!(
            line(2_000_000, 1),
            "\nmaps: 2.0 MB of the kernel's memory with 1 CPU"
        );
    }

    #[test]
    fn json_has_the_memory_of_each_map() {
        let loaded = loaded(SMALL);
        let memory = memory_of(&loaded.as_ref().unwrap().config);
        let json = serde_json::to_string(&report_of(&loaded, memory)).unwrap();
        let (_, memory) = json.split_once(r#","memory":{"bytes":"#).unwrap();
        let map = r#"{"name":"MAGLEV","bytes":65856,"inner_maps":1,"inner_bytes":"#;
        assert!(memory.contains(map), "{memory}");
        assert!(memory.ends_with(r#"}]},"warnings":[]}"#), "{memory}");
    }

    #[test]
    fn json_of_a_valid_file_has_the_whole_configuration() {
        let health = "health: { https: { path: /readyz, sni: api }, on_dead: reset }";
        let text = SMALL.replace("p: { network", &format!("p: {{ {health}, network"));
        assert_eq!(
            as_json(&loaded(&text)).unwrap(),
            concat!(
                r#"{"version":1,"ok":true,"config":{"networks":[{"name":"mgmt","role":"mgmt","interface":"eth1","#,
                r#""vlan":null,"host":false,"prefixes":["10.0.0.0/24"],"routes":[],"#,
                r#""sources":["10.0.0.0/24"],"backends":["10.0.0.0/24"],"#,
                r#""snat":[{"address":"10.0.0.1","first_port":1024,"ports":56320}],"#,
                r#""reject":false,"max_flows":null,"half_open":8192,"udp_flows":8192,"mss":null,"second_segment":"at_once"}],"#,
                r#""pools":[{"name":"p","network":"mgmt","backends":["#,
                r#"{"name":"10.0.0.2:80","address":"10.0.0.2","port":80,"weight":1,"backup":false}],"proxy_protocol":null,"#,
                r#""health":{"check":{"https":{"sni":"api","ca":null,"#,
                r#""path":"/readyz","host":null,"status":[200,299]}},"port":null,"#,
                r#""interval":"5s","timeout":"3s","rise":2,"fall":3,"fast_interval":"1s","#,
                r#""flap_hold":"30s","on_dead":"reset"},"drain_timeout":"5m","slow_start":"0s","#,
                r#""min_up":0,"below_min_up":"refuse"}],"#,
                r#""services":[{"name":"s","network":"mgmt","listen":["#,
                r#"{"address":"10.0.0.3","port":80,"protocol":"udp"}],"pool":"p","rules":[],"#,
                r#""idle_timeout":"2m","udp_idle_timeout":"2m","keepalive":null,"#,
                r#""reject":false,"max_flows":null}],"#,
                r#""limits":{"snat_addresses":8,"services":16384,"backends":32768,"pools":2048,"handed_over":65536},"#,
                r#""timeouts":{"half_open":"30s","half_closed":"2m","udp":"30s"},"flow_log":null,"#,
                r#""watch":false,"on_stop":"forward"},"#,
                r#""capacity":[{"network":"mgmt","address":"10.0.0.1","first_port":1024,"#,
                r#""last_port":57343,"flows":56320,"connections_per_second":938}],"#,
                r#""quotas":[{"network":"mgmt","backends":"mgmt","ipv6":false,"ports":56320,"#,
                r#""networks":1,"most":null}],"warnings":[]}"#
            )
        );
    }

    #[test]
    fn json_has_the_warnings_with_their_names() {
        let slow = "p: { health: { tcp: {}, interval: 10s, timeout: 10s }, network";
        let loaded = loaded(&SMALL.replace("p: { network", slow)).unwrap();
        assert_eq!(loaded.warnings.len(), 1);
        let file = loaded.warnings[0].problem.file.clone();
        let json = as_json(&Ok(loaded)).unwrap().replace(&file, "f");
        let (_, warnings) = json.split_once(r#","warnings":"#).unwrap();
        assert_eq!(
            warnings,
            concat!(
                r#"[{"name":"slow-check","file":"f","line":6,"key":"pools.p.health","#,
                r#""words":"a backend of pool p that fails is out after at most 41s, and one that "#,
                r#"recovers is back after at most 31s; OpenShift expects at most 30s of an API"}]}"#
            )
        );
    }

    #[test]
    fn json_of_a_refused_file_has_the_problems() {
        let text = SMALL.replace("version: 1", "version: 2");
        let problems = config::parse("f", &text).unwrap_err();
        assert_eq!(
            as_json(&Err(problems)).unwrap(),
            r#"{"version":1,"ok":false,"problems":[{"file":"f","line":2,"key":"version","words":"found 2, expected 1"}]}"#
        );
    }
}
