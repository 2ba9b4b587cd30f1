//! `lb health --box`: whether a box of a pair is one to have the marker.

use schemars::JsonSchema;
use serde::Serialize;

use super::health::network_problem;
use crate::{api::ha::HaStatus, observe::NetworkStatus};

/// How much a box carries. It gives way only to one that carries more, so that what fails at both boxes takes the service from neither.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BoxHealth {
    /// Whether it may have the marker; null if nothing is known.
    pub fit: Option<bool>,
    /// Networks that it carries.
    pub carried: usize,
    /// Networks that are configured.
    pub networks: usize,
    /// Networks that the other box carries; null while that is not heard.
    pub peer_carried: Option<u16>,
    /// What it does not carry, or why nothing is known, a line each.
    pub problems: Vec<String>,
}

impl BoxHealth {
    /// Of these networks, by their pins, and of what its process knows of both boxes, if one answers; `is_leaving`: an operator has it leave
    /// the service to the other one.
    pub fn new(networks: &[NetworkStatus], ha: Option<&HaStatus>, is_leaving: bool) -> Self {
        let mut problems: Vec<String> = networks.iter().filter_map(network_problem).collect();
        let by_pins = networks.len() - problems.len();
        let carried = ha.map_or(by_pins, |ha| by_pins.min(ha.carried.into()));
        if let Some(silent @ 1..) = by_pins.checked_sub(carried) {
            problems.push(format!(
                "no next hop answers, or no carrier: {silent} networks"
            ));
        }
        if is_leaving {
            problems.push("an operator has it leave (`lb ha move`)".to_owned());
        }
        let peer_carried = ha.and_then(|ha| ha.peer_carried);
        let gives_way = peer_carried.is_some_and(|peer| usize::from(peer) > carried);
        Self {
            fit: Some(carried > 0 && !gives_way && !is_leaving),
            carried,
            networks: networks.len(),
            peer_carried,
            problems,
        }
    }

    /// With the reason.
    pub fn unknown(why: String) -> Self {
        Self {
            fit: None,
            carried: 0,
            networks: 0,
            peer_carried: None,
            problems: vec![why],
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let problems = self.problems.join("; ");
        let problems = match problems.is_empty() {
            true => problems,
            false => format!(": {problems}"),
        };
        let Self {
            carried, networks, ..
        } = self;
        let peer = match self.peer_carried {
            Some(peer) => format!("the other box {peer}"),
            None => "the other box is not heard".to_owned(),
        };
        match self.fit {
            Some(true) => format!("fit: {carried} of {networks} networks, {peer}{problems}"),
            Some(false) => format!("unfit: {carried} of {networks} networks, {peer}{problems}"),
            None => format!("unknown{problems}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::samples;

    fn ha(carried: u16, peer_carried: Option<u16>) -> HaStatus {
        HaStatus {
            carried,
            peer_carried,
            ..HaStatus::default()
        }
    }

    #[test]
    fn a_box_gives_way_to_one_that_carries_more() {
        let both = || [samples::network("tenant-a"), samples::network("mgmt")];
        let [well, mut one, mut none] = [both(), both(), both()];
        one[0].carrier = false;
        none.iter_mut().for_each(|network| network.stopped = true);
        for (networks, ha, wanted) in [
            (&well, None, true),
            (&well, Some(ha(2, Some(2))), true),
            (&one, None, true),
            (&one, Some(ha(2, None)), true),
            (&one, Some(ha(1, Some(1))), true),
            (&one, Some(ha(2, Some(2))), false),
            (&well, Some(ha(1, Some(2))), false),
            (&none, None, false),
            (&none, Some(ha(2, Some(0))), false),
        ] {
            let found = BoxHealth::new(networks, ha.as_ref(), false);
            assert_eq!(found.fit, Some(wanted), "{found:?}");
            assert_eq!(BoxHealth::new(networks, ha.as_ref(), true).fit, Some(false));
        }
    }

    #[test]
    fn what_a_box_does_not_carry_is_named() {
        let mut networks = [samples::network("tenant-a"), samples::network("mgmt")];
        let found = BoxHealth::new(&networks, Some(&ha(2, Some(2))), false);
        assert_eq!(found.line(), "fit: 2 of 2 networks, the other box 2");
        networks[0].mode = "detached";
        let found = BoxHealth::new(&networks, Some(&ha(2, Some(2))), true);
        assert_eq!(
            found.line(),
            "unfit: 1 of 2 networks, the other box 2: network tenant-a: no program on eth0; an operator has it leave (`lb ha move`)"
        );
        let found = BoxHealth::new(&networks, None, false);
        assert_eq!(
            found.line(),
            "fit: 1 of 2 networks, the other box is not heard: network tenant-a: no program on eth0"
        );
        let unknown = BoxHealth::unknown("instance main is not up".to_owned());
        assert_eq!(unknown.line(), "unknown: instance main is not up");
    }
}
