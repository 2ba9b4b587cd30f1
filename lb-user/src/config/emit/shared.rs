//! Where the flows of a service go.

use std::fmt::{self, Write as _};

use super::{flow, nets, scalar, text};
use crate::config::shared::{Http, NameRoute, Otherwise, Sni, Target, To};

pub(super) fn target(out: &mut String, target: &Target) -> fmt::Result {
    match target {
        Target::Pool(pool) => writeln!(out, "    pool: {}", scalar(pool)),
        Target::Sni(sni) => write_sni(out, sni),
        Target::Http(http) => write_http(out, http),
    }
}

fn write_sni(out: &mut String, sni: &Sni) -> fmt::Result {
    let Sni {
        routes,
        no_name,
        no_match,
        ech,
        hello_timeout,
        max_hello,
        proxies,
    } = sni;
    out.push_str("    sni:\n");
    write_routes(out, routes)?;
    writeln!(out, "      no_name: {}", otherwise(no_name))?;
    writeln!(out, "      no_match: {}", otherwise(no_match))?;
    writeln!(out, "      ech: {ech}")?;
    writeln!(out, "      hello_timeout: {}", text(*hello_timeout))?;
    writeln!(out, "      max_hello: {max_hello}")?;
    if !proxies.is_empty() {
        writeln!(out, "      proxy_protocol_from: {}", nets(proxies))?;
    }
    Ok(())
}

fn write_http(out: &mut String, http: &Http) -> fmt::Result {
    let Http {
        routes,
        no_match,
        balance,
        header_timeout,
        body_timeout,
        response_timeout,
        max_header,
    } = http;
    out.push_str("    http:\n");
    write_routes(out, routes)?;
    writeln!(out, "      no_match: {}", otherwise(no_match))?;
    writeln!(out, "      balance: {balance}")?;
    writeln!(out, "      header_timeout: {}", text(*header_timeout))?;
    writeln!(out, "      body_timeout: {}", text(*body_timeout))?;
    writeln!(out, "      response_timeout: {}", text(*response_timeout))?;
    writeln!(out, "      max_header: {max_header}")
}

fn write_routes(out: &mut String, routes: &[NameRoute]) -> fmt::Result {
    out.push_str("      routes:\n");
    for route in routes {
        let NameRoute {
            names,
            expressions,
            no_name,
            clusters,
            proxies,
            alpn,
            from,
            to,
        } = route;
        let mut keys = Vec::new();
        if *no_name {
            keys.push("no_name: true".to_owned());
        }
        for (key, texts) in [
            ("names", names),
            ("regex", expressions),
            ("cluster_ids", clusters),
            ("alpn", alpn),
        ] {
            if !texts.is_empty() {
                let texts = texts.iter().map(|text| scalar(text));
                keys.push(format!("{key}: {}", flow(texts)));
            }
        }
        if !proxies.is_empty() {
            keys.push(format!("proxies: {}", nets(proxies)));
        }
        if !from.is_empty() {
            keys.push(format!("from: {}", nets(from)));
        }
        keys.push(match to {
            To::Pool(pool) => format!("pool: {}", scalar(pool)),
            To::Https => "redirect: https".to_owned(),
        });
        writeln!(out, "        - {{ {} }}", keys.join(", "))?;
    }
    Ok(())
}

fn otherwise(otherwise: &Otherwise) -> String {
    match otherwise {
        Otherwise::Alert => "alert".to_owned(),
        Otherwise::Close => "close".to_owned(),
        Otherwise::Pool(pool) => format!("{{ pool: {} }}", scalar(pool)),
    }
}
