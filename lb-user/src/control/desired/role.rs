//! The addresses that a box has only while it is the active one of a pair.

use lb_common::maps::network::{Address, AddressKey, KIND_QUIET, KIND_SNAT};

use super::Desired;
use crate::model::ha_role::HaRole;

/// An address that checks come from and that no flow has: all of its ports are sockets' of the cell.
pub(super) const CHECKS_FROM: Address = Address {
    kind: KIND_SNAT,
    base: 0,
    first_port: 0,
    count: 0,
};

impl Desired {
    /// Holds back what a box in this `role` does not have. To be called when all addresses are there.
    pub fn take_role(&mut self, role: HaRole) {
        self.role = role;
        if role != HaRole::Alone {
            let addresses = self.addresses.iter();
            let of_active = addresses.filter(|(_, address)| address.is_of_active());
            self.of_active = of_active.map(|(key, address)| (*key, *address)).collect();
        }
        if role == HaRole::Standby {
            self.addresses
                .retain(|key, _| !self.of_active.contains_key(key));
        }
    }

    /// Has segments of no flow have no answer at the addresses of the active box.
    pub fn be_quiet(&mut self) {
        for (key, address) in &mut self.addresses {
            if self.of_active.contains_key(key) {
                address.kind |= KIND_QUIET;
            }
        }
    }

    /// The VIPs, also those that are held back.
    pub fn vips(&self) -> impl Iterator<Item = AddressKey> {
        let all = self.addresses.iter().chain(&self.of_active);
        all.filter_map(|(key, address)| address.is_vip().then_some(*key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use lb_common::maps::quota;

    use super::*;
    use crate::{
        control::desired::tests::{build, two_boxes},
        model::registry::Ids,
    };

    #[test]
    fn a_standby_has_all_but_the_addresses_of_the_active_box() {
        let mut ids = Ids::default();
        let whole = build(&two_boxes("a"), &mut ids);
        let in_role = |role| {
            let mut desired = whole.clone();
            desired.take_role(role);
            desired
        };
        let [alone, active, standby] =
            [HaRole::Alone, HaRole::Active, HaRole::Standby].map(in_role);
        assert_eq!(alone, whole);
        assert_eq!(active.addresses, whole.addresses);
        let checks = ids.stands_for([10, 32, 96, 61].into()).unwrap();
        let kept = HashMap::from([(AddressKey::new(checks, 1), CHECKS_FROM)]);
        assert_eq!(standby.addresses, kept);
        assert_eq!(active.of_active, standby.of_active);
        let mut both = standby.addresses.clone();
        both.extend(&standby.of_active);
        assert_eq!(both, whole.addresses);
        let vips = |desired: &Desired| desired.vips().collect::<HashSet<_>>();
        assert_eq!((vips(&standby), vips(&standby).len()), (vips(&whole), 1));
        let rest = Desired {
            role: HaRole::Alone,
            addresses: whole.addresses.clone(),
            of_active: HashMap::new(),
            ..standby
        };
        assert_eq!(rest, whole);
    }

    #[test]
    fn addresses_of_the_active_box_alone_are_quiet() {
        let mut ids = Ids::default();
        let mut active = build(&two_boxes("a"), &mut ids);
        active.take_role(HaRole::Active);
        let loud = active.clone();
        active.be_quiet();
        for (key, address) in &active.addresses {
            let is_of_active = loud.of_active.contains_key(key);
            assert_eq!(address.is_quiet(), is_of_active, "{key:?}");
        }
        assert_eq!(active.of_active, loud.of_active);
    }

    #[test]
    fn an_address_of_the_peer_is_opened_and_given_to_no_new_flow() {
        let mut ids = Ids::default();
        let built = build(&two_boxes("a"), &mut ids);
        let [(_, mgmt), ..] = built.networks[..] else {
            panic!("no network");
        };
        let [own, peer] = [&built.snat, &built.peer_snat].map(|all| {
            let [one] = all[..] else {
                panic!("not one address: {all:?}");
            };
            one
        });
        assert_eq!(
            [own, peer].map(|one| mgmt.has_slot(one.slot)),
            [true, false]
        );
        assert_eq!(mgmt.snat_count, 1);
        for (snat, bank) in [(own, quota::bank(1, false)), (peer, 0)] {
            let address = built.addresses[&AddressKey::new(snat.record, 1)];
            assert_eq!(address, snat.address());
            assert!(built.banks.contains(&(snat.slot, bank)));
        }
        // Seen from the other box, with the same ids.
        let other = build(&two_boxes("b"), &mut ids);
        assert_eq!(
            (&other.snat, &other.peer_snat),
            (&built.peer_snat, &built.snat)
        );
        let checks = [61, 62].map(|host| ids.stands_for([10, 32, 96, host].into()).unwrap());
        for (desired, [own, peer]) in [(&built, checks), (&other, [checks[1], checks[0]])] {
            let found = |record| desired.addresses.get(&AddressKey::new(record, 1)).copied();
            assert_eq!([own, peer].map(found), [Some(CHECKS_FROM), None]);
        }
        let but_checks = |desired: &Desired| {
            let mut addresses = desired.addresses.clone();
            addresses.retain(|_, address| *address != CHECKS_FROM);
            addresses
        };
        assert_eq!(but_checks(&other), but_checks(&built));
    }

    #[test]
    fn an_address_that_drains_is_the_active_boxes_as_well() {
        let mut ids = Ids::default();
        build(&two_boxes("a"), &mut ids);
        let moved = two_boxes("a").replace("10.32.96.50", "10.32.96.52");
        let mut standby = build(&moved, &mut ids);
        let record = ids.stands_for([10, 32, 96, 50].into()).unwrap();
        let drains = AddressKey::new(record, 1);
        assert!(standby.addresses.contains_key(&drains));
        standby.take_role(HaRole::Standby);
        let left: Vec<_> = standby.addresses.values().collect();
        assert_eq!(left, [&CHECKS_FROM]);
        assert!(standby.of_active.contains_key(&drains));
    }

    #[test]
    fn no_flow_has_an_address_that_checks_come_from() {
        assert!((0..=u16::MAX).all(|port| !CHECKS_FROM.is_of_flow(port)));
        let first = lb_common::maps::snat::FIRST_LEG_PORT;
        assert!((first..=u16::MAX).all(|port| CHECKS_FROM.is_local(port)));
        assert!(!CHECKS_FROM.is_local(first - 1));
        assert_eq!(CHECKS_FROM.flow_id(first, |_| panic!("no page")), None);
    }
}
