//! Prefixes, and the rule of each.

use std::collections::BTreeMap;

use ipnet::IpNet;

/// The prefixes of a rule set, and the rule of each: `ALLOW`, `DENY` or `NEIGHBOUR`, or of classes of clients the number of
/// the class. The longest match decides.
pub type Rules = BTreeMap<IpNet, u32>;
