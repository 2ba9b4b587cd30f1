//! The maps of IPv6 that userspace alone writes: labels, the key of clients' hashes, and rules.

use std::{collections::BTreeMap, net::Ipv6Addr, path::Path};

use anyhow::{Context as _, Result};
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, lpm_trie::Key};
use ipnet::{IpNet, Ipv6Net};
use lb_common::{
    addr::Be128,
    maps::{
        addr6::HashKey,
        rule::{RuleKey6, SET_BITS},
    },
};

use super::ids::random;

/// Those of one instance, opened from their pins.
pub struct Ipv6Maps {
    labels: HashMap<MapData, Be128, u32>,
    addresses: Array<MapData, Be128>,
    hash_key: Array<MapData, HashKey>,
    rules: LpmTrie<MapData, RuleKey6, u32>,
}

impl Ipv6Maps {
    /// Opens the maps that are pinned in `folder`; none of a data plane that is older than they are.
    ///
    /// # Errors
    ///
    /// If one of them is missing, or has another layout.
    pub(super) fn open(folder: &Path) -> Result<Option<Self>> {
        let pin = |name: &str| {
            MapData::from_pin(folder.join(name))
                .with_context(|| format!("open the pinned map {name}"))
        };
        if !folder.join("LABELS").exists() {
            return Ok(None);
        }
        Ok(Some(Self {
            labels: Map::HashMap(pin("LABELS")?).try_into()?,
            addresses: Map::Array(pin("ADDRESSES6")?).try_into()?,
            hash_key: Map::Array(pin("HASH_KEY")?).try_into()?,
            rules: Map::LpmTrie(pin("RULES6")?).try_into()?,
        }))
    }

    /// Addresses that have a label, with its index.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn labels(&self) -> Result<Vec<(Ipv6Addr, u32)>> {
        let labels = self.labels.iter();
        let labels = labels.map(|entry| entry.map(|(address, index)| (address.into(), index)));
        labels.collect::<Result<_, _>>().context("read the labels")
    }

    /// How many labels there is room for: index 0 is no label.
    pub fn label_room(&self) -> u32 {
        self.addresses.len() - 1
    }

    /// Gives an address its label. The way back first: a reader that finds a label finds its address.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a write.
    pub fn set_label(&mut self, address: Ipv6Addr, index: u32) -> Result<()> {
        let address = Be128::from(address);
        self.addresses.set(index, &address, 0)?;
        Ok(self.labels.insert(&address, &index, 0)?)
    }

    /// Takes its label from an address; nothing has it any more.
    ///
    /// # Errors
    ///
    /// If it has none.
    pub fn remove_label(&mut self, address: Ipv6Addr) -> Result<()> {
        let address = Be128::from(address);
        let index = self.labels.get(&address, 0)?;
        self.labels.remove(&address)?;
        Ok(self.addresses.set(index, &Be128::default(), 0)?)
    }

    /// Makes the key of the hash of clients' addresses, if there is none: with another one no flow of
    /// before would be found.
    ///
    /// # Errors
    ///
    /// If the kernel has no random numbers or refuses the write.
    pub fn make_hash_key(&mut self) -> Result<()> {
        if self.hash_key.get(&0, 0)? != HashKey::default() {
            return Ok(());
        }
        let mut key = HashKey::default();
        for word in &mut key.0 {
            let mut bytes = [0; 8];
            random(&mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(self.hash_key.set(0, &key, 0)?)
    }

    /// Adds the prefixes of every rule set to `sets`, which has them by number.
    pub(super) fn add_rules(&self, sets: &mut BTreeMap<u32, BTreeMap<IpNet, u32>>) -> Result<()> {
        for entry in self.rules.iter() {
            let (key, verdict) = entry.context("read the rule sets of IPv6")?;
            let RuleKey6 { set, address } = key.data();
            let length = u8::try_from(key.prefix_len().saturating_sub(SET_BITS))?;
            let prefix = Ipv6Net::new(Ipv6Addr::from(address), length)?;
            sets.entry(set).or_default().insert(prefix.into(), verdict);
        }
        Ok(())
    }

    pub(super) fn write_rule(
        &mut self,
        set: u32,
        prefix: Ipv6Net,
        verdict: u32,
    ) -> Result<(), MapError> {
        self.rules.insert(&rule_key(set, prefix), &verdict, 0)
    }

    pub(super) fn clear_rule(&mut self, set: u32, prefix: Ipv6Net) -> Result<(), MapError> {
        self.rules.remove(&rule_key(set, prefix))
    }
}

fn rule_key(set: u32, prefix: Ipv6Net) -> Key<RuleKey6> {
    let address = prefix.network().into();
    Key::new(
        SET_BITS + u32::from(prefix.prefix_len()),
        RuleKey6 { set, address },
    )
}
