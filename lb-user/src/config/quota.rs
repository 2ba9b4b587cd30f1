//! What each network's clients may have of the SNAT ports that others use too, with nothing configured.
//! Pure.
//!
//! The SNAT addresses of one family in a network are a bank, whose ports all networks share whose services have
//! backends there. What the networks with `max_flows` leave of a bank is divided among the others in equal
//! parts, each at least three quarters of what an equal part of the whole bank is. A part holds what is half-open,
//! what is UDP, and what is established: a ring has a quarter of it unless the file says otherwise, and the quota
//! is the rest. So the bank is enough for all of them at once. A network that has a bank for itself may have all
//! of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lb_common::maps::half_open::DEFAULT_PLACES;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    listen::Protocol,
    model::{Config, Network, Pool, Service},
};

/// The part of a network's part of a bank that a ring has, at most [`DEFAULT_PLACES`] places.
const RING_PART: u32 = 4;
/// The fewest places of a ring: fewer are churned by a few clients that come at once.
pub(super) const MIN_PLACES: u32 = 64;

/// What the clients of one network may have of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Quota<'c> {
    /// The network of the clients.
    pub network: &'c str,
    /// The network of the backends, and of the SNAT addresses.
    pub backends: &'c str,
    /// Whether the SNAT addresses are of IPv6.
    pub ipv6: bool,
    /// Ports of the bank.
    pub ports: u32,
    /// How many networks share it.
    pub networks: u32,
    /// The most flows in full use; none: `max_flows` says how many, or no other network uses the bank.
    pub most: Option<u32>,
}

/// The quotas of all networks, in the order of the banks' networks.
pub fn quotas(config: &Config) -> Vec<Quota<'_>> {
    let banks = banks(&config.networks, &config.pools, &config.services);
    let quotas = banks.iter().flat_map(|bank| {
        bank.users.iter().map(|user| Quota {
            network: &user.network.name,
            backends: &bank.network.name,
            ipv6: bank.is_ipv6,
            ports: bank.ports,
            networks: bank.count(),
            most: bank.most(user),
        })
    });
    quotas.collect()
}

impl Quota<'_> {
    /// The family of the SNAT addresses.
    #[must_use]
    pub const fn family(&self) -> &'static str {
        family(self.ipv6)
    }
}

const fn family(is_ipv6: bool) -> &'static str {
    match is_ipv6 {
        true => "IPv6",
        false => "IPv4",
    }
}

/// What a network's rings have in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrittenRings {
    pub(super) half_open: bool,
    pub(super) udp_flows: bool,
}

/// Gives the rings that are not in the file their places; `written` says which ones are.
pub(super) fn size_rings(
    networks: &mut [Network],
    pools: &[Pool],
    services: &[Service],
    written: impl Fn(&str) -> WrittenRings,
) {
    // What is left to the others depends on the rings of the networks with `max_flows`.
    for has_budget in [true, false] {
        let banks = banks(networks, pools, services);
        let places = |network: &Network, uses: fn(&User<'_>) -> bool| {
            let parts = banks.iter().filter_map(|bank| {
                let user = bank
                    .users
                    .iter()
                    .find(|user| user.network.name == network.name)?;
                let part = match has_budget {
                    true => bank.equal_part(),
                    false => bank.part(),
                };
                (bank.is_shared() && uses(user)).then_some(part / RING_PART)
            });
            parts.min().map_or(DEFAULT_PLACES, |places| {
                places.clamp(MIN_PLACES, DEFAULT_PLACES)
            })
        };
        let sizes: Vec<_> = networks
            .iter()
            .map(|network| {
                (
                    places(network, |user| user.tcp),
                    places(network, |user| user.udp),
                )
            })
            .collect();
        let sized = networks.iter_mut().zip(sizes);
        for (network, (half_open, udp_flows)) in
            sized.filter(|(network, _)| network.max_flows.is_some() == has_budget)
        {
            let written = written(&network.name);
            if !written.half_open {
                network.half_open = half_open;
            }
            if !written.udp_flows {
                network.udp_flows = udp_flows;
            }
        }
    }
}

/// The SNAT addresses of one family in a network, and the networks whose flows have their ports.
pub(super) struct Bank<'c> {
    pub(super) network: &'c Network,
    is_ipv6: bool,
    pub(super) ports: u32,
    pub(super) users: Vec<User<'c>>,
}

/// A network with services that have backends behind a bank.
pub(super) struct User<'c> {
    pub(super) network: &'c Network,
    tcp: bool,
    udp: bool,
}

/// The banks that some service uses.
pub(super) fn banks<'c>(
    networks: &'c [Network],
    pools: &'c [Pool],
    services: &'c [Service],
) -> Vec<Bank<'c>> {
    let places: HashMap<&str, usize> = (0..)
        .zip(networks)
        .map(|(place, network)| (&*network.name, place))
        .collect();
    let pools: HashMap<&str, usize> = pools
        .iter()
        .filter_map(|pool| Some((&*pool.name, *places.get(&*pool.network)?)))
        .collect();
    // By the backends' network and family, then by the clients' network.
    let mut users: BTreeMap<(usize, bool), BTreeMap<usize, User<'_>>> = BTreeMap::new();
    for service in services {
        let place = places.get(&*service.network).copied();
        let Some((place, network)) = place.and_then(|place| Some((place, networks.get(place)?)))
        else {
            continue;
        };
        let leads_to: BTreeSet<usize> = service
            .target
            .pools()
            .filter_map(|pool| pools.get(pool).copied())
            .collect();
        for backends in leads_to {
            for listen in &service.listen {
                let bank = users
                    .entry((backends, listen.address.is_ipv6()))
                    .or_default();
                let user = bank.entry(place).or_insert(User {
                    network,
                    tcp: false,
                    udp: false,
                });
                match listen.protocol {
                    Protocol::Tcp => user.tcp = true,
                    Protocol::Udp => user.udp = true,
                }
            }
        }
    }
    let banks = users
        .into_iter()
        .filter_map(|((backends, is_ipv6), users)| {
            let network = networks.get(backends)?;
            let snat = network
                .snat
                .iter()
                .filter(|snat| snat.address.is_ipv6() == is_ipv6);
            Some(Bank {
                network,
                is_ipv6,
                ports: snat.map(|snat| u32::from(snat.ports)).sum(),
                users: users.into_values().collect(),
            })
        });
    banks.filter(|bank| bank.ports > 0).collect()
}

impl User<'_> {
    /// Ports that its half-open and UDP flows may have.
    fn rings(&self) -> u32 {
        let half_open = if self.tcp { self.network.half_open } else { 0 };
        let udp_flows = if self.udp { self.network.udp_flows } else { 0 };
        half_open + udp_flows
    }
}

impl Bank<'_> {
    /// The family of its addresses.
    pub(super) const fn family(&self) -> &'static str {
        family(self.is_ipv6)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.users.len()).unwrap_or(u32::MAX)
    }

    /// Whether more than one network uses it.
    pub(super) const fn is_shared(&self) -> bool {
        self.users.len() > 1
    }

    /// What each network had if all had the same.
    fn equal_part(&self) -> u32 {
        self.ports / self.count().max(1)
    }

    /// What each network without `max_flows` has.
    fn part(&self) -> u32 {
        let (say, others): (Vec<_>, Vec<_>) = self
            .users
            .iter()
            .partition(|user| user.network.max_flows.is_some());
        let taken = say.iter().map(|user| self.wanted(user)).sum::<u64>();
        let left = u64::from(self.ports).saturating_sub(taken);
        let each = left
            .checked_div(u64::try_from(others.len()).unwrap_or(u64::MAX))
            .unwrap_or_default();
        let least = self.equal_part() / 4 * 3;
        u32::try_from(each).unwrap_or(u32::MAX).max(least)
    }

    /// The most flows in full use of a network without `max_flows` that shares the bank.
    fn most(&self, user: &User<'_>) -> Option<u32> {
        if !self.is_shared() || user.network.max_flows.is_some() {
            return None;
        }
        let part = self.part();
        let rest = part.saturating_sub(user.rings());
        Some(rest.max(part / RING_PART).max(1))
    }

    /// Ports that a network's flows may have at a time.
    pub(super) fn wanted(&self, user: &User<'_>) -> u64 {
        let most = match user.network.max_flows {
            Some(most) => most.min(self.ports),
            None => self.most(user).unwrap_or(self.ports),
        };
        u64::from(most) + u64::from(user.rings())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::parse, *};

    /// Tenants of a hub that has these SNAT addresses, each with these keys; the first has DNS as well, and the
    /// last its applications on its own network, which is no other's.
    fn config(snat: &str, tenants: &[&str]) -> Config {
        let mut networks = String::new();
        let mut services = String::new();
        let mut pools = String::new();
        for (vlan, keys) in (1..).zip(tenants) {
            networks += &format!(
                "  t{vlan}: {{ role: tenant, interface: eth0, vlan: {vlan}, prefixes: [10.1.0.0/16], \
                 snat: [10.1.0.9]{keys} }}\n"
            );
            services += &format!(
                "  api-{vlan}: {{ network: t{vlan}, listen: [\"10.1.0.1:6443/tcp\"], pool: kas }}\n"
            );
        }
        let last = tenants.len();
        services += "  dns: { network: t1, listen: [\"10.1.0.1:53/udp\"], pool: kas }\n";
        services += &format!(
            "  apps: {{ network: t{last}, listen: [\"10.1.0.2:443/tcp\"], pool: apps }}\n"
        );
        pools += &format!("  apps: {{ network: t{last}, backends: [\"10.1.0.5:443\"] }}\n");
        let text = format!(
            "version: 1\nnetworks:\n  \
             mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.32.0.0/16], snat: [{snat}] }}\n{networks}\
             pools:\n  kas: {{ network: mgmt, backends: [\"10.32.0.5:6443\"] }}\n{pools}services:\n{services}\
             limits: {{ snat_addresses: 128 }}\n"
        );
        parse("f", &text).unwrap()
    }

    /// Quotas and rings of each tenant on mgmt.
    fn parts(config: &Config) -> Vec<(Option<u32>, u32, u32)> {
        let quotas = quotas(config)
            .into_iter()
            .filter(|quota| quota.backends == "mgmt");
        let of = |quota: Quota<'_>| {
            let network = config.network(quota.network).unwrap();
            (quota.most, network.half_open, network.udp_flows)
        };
        quotas.map(of).collect()
    }

    /// Whether there is a port for each flow that there may be.
    fn fits(config: &Config) -> bool {
        let banks = banks(&config.networks, &config.pools, &config.services);
        let mut shared = banks.iter().filter(|bank| bank.is_shared());
        shared.all(|bank| {
            let wanted = bank.users.iter().map(|user| bank.wanted(user));
            wanted.sum::<u64>() <= bank.ports.into()
        })
    }

    #[test]
    fn one_network_may_have_all() {
        let config = config("10.32.0.9", &[""]);
        assert_eq!(parts(&config), [(None, 8192, 8192)]);
    }

    #[test]
    fn networks_that_say_nothing_have_equal_parts() {
        let two = config("10.32.0.9", &["", ""]);
        // 28160 each, of which the first has a quarter for UDP as well.
        assert_eq!(
            parts(&two),
            [(Some(14_080), 7040, 7040), (Some(21_120), 7040, 8192)]
        );
        assert!(fits(&two));
        let fifty = config("10.32.0.9", &[""; 50]);
        assert_eq!(parts(&fifty)[1], (Some(1126 - 281), 281, 8192));
        assert!(fits(&fifty));
        let addresses = "10.32.0.9, 10.32.0.10, 10.32.0.11, 10.32.0.12";
        let more = config(addresses, &["", ""]);
        assert_eq!(parts(&more)[1], (Some(2 * 56_320 - 8192), 8192, 8192));
        assert!(fits(&more));
    }

    #[test]
    fn a_bank_that_nobody_else_uses_is_without_a_limit() {
        let config = config("10.32.0.9", &["", ""]);
        let apps = quotas(&config)
            .into_iter()
            .find(|quota| quota.backends == "t2");
        let wanted = Quota {
            network: "t2",
            backends: "t2",
            ipv6: false,
            ports: 56_320,
            networks: 1,
            most: None,
        };
        assert_eq!(apps, Some(wanted));
    }

    #[test]
    fn what_is_written_comes_first_and_the_others_have_the_rest() {
        let ten = [
            ", max_flows: 4000",
            ", max_flows: 100, half_open: 100",
            "",
            "",
        ];
        let config = config("10.32.0.9", &ten);
        // 14080 is an equal part, and a ring a quarter of it; two have the rest of 56320 - 4000 - 2 * 3520 - 200.
        let part = (56_320 - 4000 - 2 * 3520 - 200) / 2;
        let other = (Some(part - part / 4), part / 4, 8192);
        let first = [(None, 3520, 3520), (None, 100, 8192)];
        assert_eq!(parts(&config), [first, [other; 2]].concat());
        assert!(fits(&config));
    }

    #[test]
    fn nobody_has_less_than_three_quarters_of_an_equal_part() {
        let config = config("10.32.0.9", &[", max_flows: 4294967295", "", ""]);
        let part = 56_320 / 3 / 4 * 3;
        assert_eq!(parts(&config)[1], (Some(part - part / 4), part / 4, 8192));
        assert!(!fits(&config));
    }

    #[test]
    fn rings_that_are_written_leave_a_quarter_at_least() {
        let config = config("10.32.0.9", &["", ", half_open: 65536"]);
        assert_eq!(parts(&config)[1], (Some(7040), 65_536, 8192));
        assert!(!fits(&config));
    }

    #[test]
    fn a_few_ports_are_divided_as_well() {
        let config = config("{ address: 10.32.0.9, ports: 2000-2002 }", &[""; 4]);
        assert_eq!(parts(&config)[3], (Some(1), 64, 8192));
        assert!(!fits(&config), "the rings alone are larger");
    }

    /// Whatever is written of any number of networks, the defaults of the others fit as long as all that is
    /// written does.
    #[test]
    fn defaults_always_fit() {
        for count in 2..120 {
            let mut tenants = vec![""; count];
            assert!(fits(&config("10.32.0.9", &tenants)), "{count}");
            tenants[count / 2] = ", max_flows: 50";
            assert!(fits(&config("10.32.0.9", &tenants)), "{count}");
            tenants[0] = ", max_flows: 70";
            assert!(fits(&config("10.32.0.9", &tenants)), "{count}");
        }
    }
}
