//! Prefixes, and what each says.

use std::collections::BTreeMap;

use ipnet::IpNet;

/// The prefixes of a rule set, and what each says: `ALLOW`, `DENY` or `NEIGHBOUR`. The longest match decides.
pub type Rules = BTreeMap<IpNet, u32>;
