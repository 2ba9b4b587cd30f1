//! Prefixes, and the rule of each.

use std::collections::BTreeMap;

use ipnet::IpNet;

/// The prefixes of a rule set, and the rule of each: `ALLOW`, `DENY` or `NEIGHBOUR`. The longest match
/// decides.
pub type Rules = BTreeMap<IpNet, u32>;
