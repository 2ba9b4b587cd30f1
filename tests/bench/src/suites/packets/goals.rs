//! Where lb stands by packets, in ratios.

use super::{FLOWS, KINDS, SMALL_UDP, SMALL6};
use crate::{measure::Rounds, report::Goal};

const LB: &str = "lb";
const BARE: &str = "bare";
const NFT: &str = "nftables";
const NAT: &str = "reference NAT";

/// What the study of the peers asks for, and what has no goal: of established flows by kind, and of new ones.
pub(super) fn goals(kinds: &[Rounds], new: &Rounds, sizes: &[(u32, &str)]) -> Vec<Goal> {
    let Some(small) = kinds.first() else {
        return Vec::new();
    };
    let of_bare = [[0.6, 0.7], [0.42, 0.6], [0.3, 0.4]];
    let of_nftables = [[6.0, 7.0], [5.0, 7.0], [5.0, 7.0]];
    let own_work = [Some([2.6, 1.7]), Some([1.4, 0.7]), None];
    let mut goals = Vec::new();
    for (column, ((_, name), wanted)) in sizes.iter().zip(of_bare).enumerate() {
        let what = format!("packets, lb / bare, {name} flows");
        goals.push(Goal::new(what, wanted, small.ratio(LB, BARE, column)));
    }
    for (column, ((_, name), wanted)) in sizes.iter().zip(of_nftables).enumerate() {
        let what = format!("packets, lb / nftables, {name} flows");
        goals.push(Goal::new(what, wanted, small.ratio(LB, NFT, column)));
    }
    for (column, ((_, name), wanted)) in sizes.iter().zip(own_work).enumerate() {
        let what = format!("own work, lb / reference NAT, {name} flows");
        let ratio = small.beyond(BARE, [LB, NAT], column);
        goals.push(match wanted {
            Some(wanted) => Goal::new(what, wanted, ratio),
            None => Goal::cost(what, ratio),
        });
    }
    goals.extend(others(kinds, small, sizes));
    let ratio = new.ratio(LB, NFT, 0);
    goals.push(Goal::new("new flows/s, lb / nftables", [10.0, 20.0], ratio));
    if sizes.len() == FLOWS.len() {
        let growth = small.growth(LB, 0, 2);
        let what = "path cost at 1M / at 1k flows";
        goals.push(Goal::new(what, [2.0, 1.5], growth));
    }
    goals
}

/// UDP and IPv6 beside TCP by IPv4.
fn others(kinds: &[Rounds], small: &Rounds, sizes: &[(u32, &str)]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let named = [(SMALL_UDP, "UDP / TCP"), (SMALL6, "TCP, IPv6 / IPv4")];
    for (title, what) in named {
        let place = KINDS.iter().position(|kind| kind.title == title);
        let Some(rounds) = place.and_then(|place| kinds.get(place)) else {
            continue;
        };
        for (column, (_, name)) in sizes.iter().enumerate().take(2) {
            let what = format!("path cost of lb, {what}, {name} flows");
            goals.push(Goal::cost(what, rounds.over(small, LB, column)));
        }
    }
    goals
}
