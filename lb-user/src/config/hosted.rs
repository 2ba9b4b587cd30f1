//! Hosted clusters that the API of their hub has: which ones become `clusters` of the configuration, and what it is with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Declaration, address,
    discover::{ObjectName, service_name},
    file_marks::Files,
    files,
    model::{Config, Pool, ProxyProtocol, Service},
    place::quote,
    problem::Findings,
    resolve,
};

/// What stands for the file in problems of hosted clusters.
const FILE: &str = "the expanded file";

/// Hosted clusters of a hub, and what they become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedClusters {
    /// Which ones.
    #[serde(rename = "name")]
    pub of: HostedName,
    /// The network of the clients and the VIPs.
    pub network: String,
    /// The network of the nodes of the hub.
    pub hub_network: String,
    /// Where the VIPs are, one for each hosted cluster.
    pub vips: Vec<VipRange>,
    /// The Service of the ingress shard, for what is published as `Route`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ObjectName>,
    /// The header that the shard expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The clients; none: those of the network, and of the API those that the hosted cluster allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<IpNet>>,
    /// The worker nodes; none: all clients may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<IpNet>>,
}

/// `NAMESPACE/NAME`, or `NAMESPACE/*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostedName {
    namespace: String,
    /// None: all of the namespace.
    name: Option<String>,
}

impl HostedName {
    /// Whether a hosted cluster is meant.
    #[must_use]
    pub fn has(&self, cluster: &ObjectName) -> bool {
        let name = self.name.as_ref();
        self.namespace == cluster.namespace && name.is_none_or(|name| *name == cluster.name)
    }
}

impl fmt::Display for HostedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("*");
        write!(f, "{}/{name}", self.namespace)
    }
}

impl From<HostedName> for String {
    fn from(name: HostedName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for HostedName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        hosted_name(&text)
    }
}

/// Reads `NAMESPACE/NAME` or `NAMESPACE/*`.
pub(super) fn hosted_name(text: &str) -> Result<HostedName, String> {
    let (one, is_all) = match text.strip_suffix("/*") {
        Some(namespace) => (format!("{namespace}/all"), true),
        None => (text.to_owned(), false),
    };
    match service_name(&one) {
        Ok(ObjectName { namespace, name }) => Ok(HostedName {
            namespace,
            name: (!is_all).then_some(name),
        }),
        Err(_) => Err(format!(
            "{} is no hosted cluster; expected NAMESPACE/NAME, or NAMESPACE/* for all of it",
            quote(text)
        )),
    }
}

/// Addresses from a first to a last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VipRange {
    /// The first.
    pub first: IpAddr,
    /// The last, of the same family and not before the first.
    pub last: IpAddr,
}

/// The most addresses of a range.
const MAX_VIPS: u128 = 1024;

impl VipRange {
    /// All of them, in their order.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> + Clone {
        let range = number(self.first)..=number(self.last);
        range.map(move |number| match self.first {
            IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
        })
    }
}

impl fmt::Display for VipRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        match first == last {
            true => first.fmt(f),
            false => write!(f, "{first}-{last}"),
        }
    }
}

impl From<VipRange> for String {
    fn from(range: VipRange) -> Self {
        range.to_string()
    }
}

impl TryFrom<String> for VipRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        vip_range(&text)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Reads an address, or the first and the last one with a `-` between them.
pub(super) fn vip_range(text: &str) -> Result<VipRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (address::address(first)?, address::address(last)?);
    let is_range = first.is_ipv4() == last.is_ipv4() && first <= last;
    match is_range && number(last) - number(first) < MAX_VIPS {
        true => Ok(VipRange { first, last }),
        false => Err(format!(
            "{} is not a range; expected FIRST-LAST of one family, with at most {MAX_VIPS} addresses",
            quote(text)
        )),
    }
}

/// A hosted cluster, as it is in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedCluster {
    /// The hub, by the name of a [`KubernetesCluster`](super::KubernetesCluster).
    pub hub: String,
    /// Its namespace and name there.
    pub name: ObjectName,
    /// When it was made there, in the order of time.
    pub created: String,
    /// Its VIP.
    pub vip: IpAddr,
    /// The Services that wait for the VIP in their status.
    pub load_balancers: Vec<ObjectName>,
    /// The entry of `clusters`.
    pub entry: Value,
}

impl HostedCluster {
    /// The name of the entry of `clusters`. That of an object may have dots.
    #[must_use]
    pub fn entry_name(&self) -> String {
        self.name.name.replace('.', "-")
    }

    /// Whether it has a pool or service of a configuration.
    #[must_use]
    pub fn has(&self, hosted: Option<&String>) -> bool {
        hosted == Some(&self.to_string())
    }
}

impl fmt::Display for HostedCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostedCluster {} of {}", self.name, self.hub)
    }
}

impl Config {
    /// What is of the file alone: neither backends nor hosted clusters that were discovered.
    #[must_use]
    pub fn literal(&self) -> Self {
        let mut config = self.without_hosted();
        for pool in &mut config.pools {
            pool.backends.retain(|backend| backend.discovered.is_none());
        }
        config
    }

    /// What is not of hosted clusters.
    #[must_use]
    pub fn without_hosted(&self) -> Self {
        let mut config = self.clone();
        config.pools.retain(|pool| pool.hosted.is_none());
        config.services.retain(|service| service.hosted.is_none());
        config.hosted.clear();
        config
    }
}

/// A configuration with hosted clusters, and those of them that were refused, a line each. Of two that claim the same the
/// first one has it; what is wrong with one of them costs no other one anything, and where it was good `before`, it stays as
/// it was then.
///
/// # Errors
///
/// If the configuration itself cannot be written out, or read again.
pub fn with_hosted(
    base: &Config,
    before: &[HostedCluster],
    mut hosted: Vec<HostedCluster>,
) -> Result<(Config, BTreeSet<String>), String> {
    let text = base.expanded();
    let text = text.map_err(|error| format!("write the configuration out: {error}"))?;
    let mut refused = BTreeSet::new();
    loop {
        let problems = match read(&text, &hosted) {
            Ok((pools, services)) => {
                let mut config = base.clone();
                config.pools.extend(pools);
                config.services.extend(services);
                config.hosted = hosted;
                return Ok((config, refused));
            }
            Err(problems) => problems,
        };
        let mut blamed: Vec<String> = hosted.iter().map(ToString::to_string).collect();
        blamed.retain(|name| problems.contains_key(name));
        if blamed.is_empty() {
            // It is blamed on the file, which is valid without the last one.
            let words = problems.values().next().cloned().unwrap_or_default();
            let last = hosted.last().ok_or_else(|| words.clone())?.to_string();
            refused.insert(format!("{last}: {words}"));
            blamed.push(last);
        }
        for name in blamed {
            let words = problems.get(&name);
            refused.extend(words.map(|words| format!("{name}: {words}")));
            put_back(&mut hosted, before, &name);
        }
    }
}

/// Puts a hosted cluster as it was in the place of one that is wrong, or takes that away.
fn put_back(hosted: &mut Vec<HostedCluster>, before: &[HostedCluster], name: &str) {
    let Some(place) = hosted.iter().position(|one| one.to_string() == name) else {
        return;
    };
    let had = before.iter().find(|one| one.to_string() == name);
    match had.filter(|had| **had != hosted[place]) {
        Some(had) => hosted[place] = had.clone(),
        None => drop(hosted.remove(place)),
    }
}

/// The pools and services of hosted clusters; or by the name of the one that is to blame the first problem of it.
fn read(
    main: &str,
    hosted: &[HostedCluster],
) -> Result<(Vec<Pool>, Vec<Service>), BTreeMap<String, String>> {
    let text = |one: &HostedCluster| json!({ "clusters": { one.entry_name(): one.entry } });
    let others: Vec<Declaration> = hosted
        .iter()
        .map(|one| Declaration::Text {
            name: one.to_string(),
            text: text(one).to_string(),
        })
        .collect();
    let main = Declaration::Text {
        name: FILE.to_owned(),
        text: main.to_owned(),
    };
    let mut findings = Findings::of_text(FILE);
    let raw = files::read(&main, &others, &mut Files::default(), &mut findings);
    let loaded = resolve(raw, findings).map_err(|problems| {
        let mut first = BTreeMap::new();
        for problem in problems.as_slice() {
            let words = format!("{}: {}", problem.key, problem.words);
            first.entry(problem.file.clone()).or_insert(words);
        }
        first
    })?;
    // The main one is the first file.
    let of = |name: &str| {
        let file = loaded.origins.files.get(name)?.checked_sub(1)?;
        hosted.get(file).map(ToString::to_string)
    };
    let pools = loaded.config.pools.into_iter().filter_map(|pool| {
        let hosted = Some(of(&pool.name)?);
        Some(Pool { hosted, ..pool })
    });
    let services = loaded.config.services.into_iter().filter_map(|service| {
        let hosted = Some(of(&service.name)?);
        Some(Service { hosted, ..service })
    });
    Ok((pools.collect(), services.collect()))
}
