//! How operators and monitoring reach the control plane: nowhere that clients do, unless that is wanted.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use ipnet::IpNet;

use crate::config::{
    bearer_token::BearerToken,
    model::{Admin, AdminHttp, Network, Role, Service},
    names,
    place::{At, quote, value_of},
    problem::Findings,
    schema::{RawAdmin, RawAdminHttp},
};

/// What is written of `admin`.
pub(super) fn admin(
    raw: &RawAdmin,
    networks: &[Network],
    services: &[Service],
    findings: &mut Findings,
) -> Admin {
    let http = raw.http.as_ref();
    let http = http.and_then(|At { place, value }| {
        let At {
            place: listen_place,
            value: listen,
        } = value.listen.as_ref()?;
        let allow_tenant = value_of(&value.allow_tenant);
        if let Some(words) = exposed(*listen, networks, services).filter(|_| !allow_tenant) {
            findings.add(listen_place, words);
        }
        if value.token_file.is_none() && !listen.ip().is_loopback() {
            let words = format!(
                "missing; {} is no loopback address, so requests must have a token",
                listen.ip()
            );
            let key = format!("{}.token_file", place.key);
            findings.add(&place.with_key(key), words);
        }
        Some(AdminHttp {
            listen: *listen,
            hosts: hosts(value),
            token_file: token_file(value, findings),
            allow_tenant,
        })
    });
    Admin {
        group: group(raw.group.as_ref(), findings),
        http,
    }
}

/// The group whose members may look.
fn group(raw: Option<&At<String>>, findings: &mut Findings) -> Option<String> {
    let At { place, value } = raw?;
    let is_fit = !value.is_empty() && !value.contains([':', ',', '/', ' ']);
    if !is_fit || value.contains(char::is_control) {
        findings.add(
            place,
            format!("{} is not the name of a group", quote(value)),
        );
        return None;
    }
    Some(value.clone())
}

fn hosts(raw: &RawAdminHttp) -> Vec<String> {
    let hosts = raw.hosts.elements.iter();
    hosts.map(|at| at.value.to_ascii_lowercase()).collect()
}

fn token_file(raw: &RawAdminHttp, findings: &mut Findings) -> Option<PathBuf> {
    let at = raw.token_file.as_ref()?;
    let path = names::file_path(at, "/etc/lb/admin.token", findings)?;
    if let Err(why) = BearerToken::read(&path) {
        findings.add_of_file(&at.place, format!("{} {why}", quote(&at.value)));
    }
    Some(path)
}

/// Why clients may reach an address of the host, as far as the configuration shows it; the interfaces that have it are
/// looked at when it is opened.
fn exposed(listen: SocketAddr, networks: &[Network], services: &[Service]) -> Option<String> {
    let address = listen.ip().to_canonical();
    let remedy = "expected a loopback address, or one of the network of management; `allow_tenant: true` allows it";
    if address.is_unspecified() {
        return Some(format!(
            "{address} is every address of the host, those that clients reach as well; {remedy}"
        ));
    }
    if address.is_loopback() {
        return None;
    }
    let is_vip = |service: &&Service| service.listen.iter().any(|vip| vip.address == address);
    if let Some(service) = services.iter().find(is_vip) {
        return Some(format!(
            "{address} is a VIP of service {}, which clients reach; {remedy}",
            service.name
        ));
    }
    let (of_management, others): (Vec<_>, Vec<_>) = networks
        .iter()
        .partition(|network| network.role == Role::Mgmt);
    let find = |prefixes: &[IpNet]| {
        prefixes
            .iter()
            .copied()
            .find(|prefix| contains(prefix, address))
    };
    // The sources of others may be wide, and have it in them all the same.
    let is_of_management = of_management
        .iter()
        .any(|network| find(&network.prefixes).is_some());
    for network in others {
        let sources = if is_of_management {
            &[][..]
        } else {
            &network.sources
        };
        for (what, prefixes) in [
            ("a prefix", &network.prefixes[..]),
            ("the sources", sources),
        ] {
            if let Some(prefix) = find(prefixes) {
                return Some(format!(
                    "{address} is in {prefix}, {what} of network {} ({}); {remedy}",
                    network.name, network.role
                ));
            }
        }
    }
    None
}

/// A prefix of every address says nothing of this one.
fn contains(prefix: &IpNet, address: IpAddr) -> bool {
    prefix.prefix_len() > 0 && prefix.contains(&address)
}
