//! `lb check FILE`: load and validate, and say what a configuration can hold. Nothing is applied,
//! and neither the host nor a running `lb` is asked.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use lb_common::maps::snat::FLOWS_PER_ADDRESS;
use serde::Serialize;

use crate::config::{self, Config, Problem, Problems};

/// Exit code for a wrong configuration, as for a wrong command line.
const REFUSED: u8 = 2;

/// Checks the file at `path`. Exit code 0: valid, one line of summary on stdout. Exit code 2: every
/// problem on stderr. With `json` both go to stdout as one object. Exit code 1: the answer could
/// not be written.
pub fn check(path: &Path, json: bool) -> ExitCode {
    let result = config::load(path);
    let code = match result {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(REFUSED),
    };
    let written = if json {
        as_json(&result)
            .map_err(io::Error::from)
            .and_then(|text| writeln!(io::stdout(), "{text}"))
    } else {
        match &result {
            Ok(config) => writeln!(io::stdout(), "{}: ok: {}", path.display(), summary(config)),
            Err(problems) => writeln!(io::stderr(), "{problems}"),
        }
    };
    match written {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What is in the configuration, and how many flows it can hold at a time.
fn summary(config: &Config) -> String {
    let backends = config.pools.iter().map(|pool| pool.backends.len()).sum();
    let snat = config.snat_addresses();
    let flows = u64::try_from(snat)
        .unwrap_or(u64::MAX)
        .saturating_mul(FLOWS_PER_ADDRESS.into());
    format!(
        "{}, {}, {}, {}, {} ({flows} flows)",
        count(config.networks.len(), "network", "s"),
        count(config.pools.len(), "pool", "s"),
        count(config.services.len(), "service", "s"),
        count(backends, "backend", "s"),
        count(snat, "SNAT address", "es"),
    )
}

fn count(number: usize, what: &str, plural: &str) -> String {
    let plural = if number == 1 { "" } else { plural };
    format!("{number} {what}{plural}")
}

/// The answer of `-o json`.
#[derive(Serialize)]
struct Answer<'a> {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a Config>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<&'a [Problem]>,
}

fn as_json(result: &Result<Config, Problems>) -> serde_json::Result<String> {
    serde_json::to_string(&Answer {
        ok: result.is_ok(),
        config: result.as_ref().ok(),
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
    fn json_of_a_valid_file_has_the_whole_configuration() {
        assert_eq!(
            as_json(&config::parse("f", SMALL)).unwrap(),
            concat!(
                r#"{"ok":true,"config":{"networks":[{"name":"mgmt","role":"mgmt","interface":"eth1","#,
                r#""prefixes":["10.0.0.0/24"],"snat":["10.0.0.1"]}],"#,
                r#""pools":[{"name":"p","network":"mgmt","backends":["#,
                r#"{"name":"10.0.0.2:80","address":"10.0.0.2","port":80,"weight":1}]}],"#,
                r#""services":[{"name":"s","network":"mgmt","listen":["#,
                r#"{"address":"10.0.0.3","port":80,"protocol":"udp"}],"pool":"p"}],"#,
                r#""limits":{"snat_addresses":8,"services":1024,"backends":4096,"pools":256}}}"#
            )
        );
    }

    #[test]
    fn json_of_a_refused_file_has_the_problems() {
        let text = SMALL.replace("version: 1", "version: 2");
        assert_eq!(
            as_json(&config::parse("f", &text)).unwrap(),
            r#"{"ok":false,"problems":[{"file":"f","line":2,"key":"version","words":"found 2, expected 1"}]}"#
        );
    }
}
