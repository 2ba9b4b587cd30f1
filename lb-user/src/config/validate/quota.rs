//! Whether the SNAT ports are enough for all that the networks may have of them.

use crate::config::{
    list::{List, Named},
    model::{Config, Network, Pool, Service},
    place::Location,
    problem::Findings,
    quota::{self, Bank, User, WrittenRings, banks},
    schema::RawNetwork,
};

/// How many networks are named in a warning.
const NAMED: usize = 3;

type Raw = List<Named<RawNetwork>>;

/// Gives rings that are not written their places.
pub(super) fn size_rings(
    raw: &Raw,
    networks: &mut [Network],
    pools: &[Pool],
    services: &[Service],
) {
    let written = |name: &str| {
        let named = find(raw, name);
        named.map_or_else(WrittenRings::default, |named| WrittenRings {
            half_open: named.value.half_open.is_some(),
            udp_flows: named.value.udp_flows.is_some(),
        })
    };
    quota::size_rings(networks, pools, services, written);
}

/// Warns of SNAT addresses that several networks use, and that have not as many ports as these may have.
pub(super) fn check(config: &Config, raw: &Raw, findings: &mut Findings) {
    for bank in banks(&config.networks, &config.pools, &config.services) {
        let wanted: u64 = bank.users.iter().map(|user| bank.wanted(user)).sum();
        if bank.is_shared() && wanted > bank.ports.into() {
            let mut users: Vec<&User<'_>> = bank.users.iter().collect();
            users.sort_by_key(|user| std::cmp::Reverse(bank.wanted(user)));
            if let Some(place) = place(&bank, &users, raw) {
                findings.warn(place, "few-snat-ports", words(&bank, &users, wanted));
            }
        }
    }
}

/// What is written of the network that may have most, or else where the SNAT addresses are.
fn place<'r>(bank: &Bank<'_>, users: &[&User<'_>], raw: &'r Raw) -> Option<&'r Location> {
    let written = users.iter().find_map(|user| {
        let named = find(raw, &user.network.name)?;
        let RawNetwork {
            max_flows,
            half_open,
            udp_flows,
            ..
        } = &named.value;
        let keys = [max_flows, half_open, udp_flows];
        let at = keys.into_iter().flatten().next()?;
        Some(named.blame(&at.place))
    });
    written.or_else(|| {
        let named = find(raw, &bank.network.name)?;
        let snat = named.value.snat.elements.first();
        Some(snat.map_or(&named.place, |snat| named.blame(&snat.place)))
    })
}

fn words(bank: &Bank<'_>, users: &[&User<'_>], wanted: u64) -> String {
    let most = users.iter().take(NAMED);
    let most = most.map(|user| format!("{} up to {}", user.network.name, bank.wanted(user)));
    let mut each: Vec<String> = most.collect();
    let others = users.len().saturating_sub(NAMED);
    if others > 0 {
        each.push(format!("{others} more"));
    }
    format!(
        "{} networks share the {} SNAT ports of {} for {}, and may take {wanted} ({}); expected more SNAT \
         addresses there, or less in max_flows, half_open and udp_flows",
        users.len(),
        bank.ports,
        bank.network.name,
        bank.family(),
        each.join(", "),
    )
}

fn find<'r>(raw: &'r Raw, name: &str) -> Option<&'r Named<RawNetwork>> {
    raw.elements.iter().find(|named| named.name == name)
}
