//! Local peers: the addresses and ports that the sockets of the cells talk to. Of what comes to the cells'
//! local ports the data plane lets in only what these send.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData};
use lb_common::{
    addr::{Be16, Be32},
    maps::cell_peer::{IS_PEER, PeerKey},
};

/// How long a peer stays that nothing talks to any more: its last words are still on their way.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// The pinned map of them, which only this process writes.
pub struct LocalPeers {
    map: aya::maps::HashMap<MapData, PeerKey, u32>,
    /// Those in the map; and of those that are wanted no more, since when.
    there: HashMap<PeerKey, Option<Instant>>,
}

impl LocalPeers {
    /// Opens the map that is pinned in `folder`. Those that an earlier process has left stay until
    /// [`Self::set`] has the peers that are wanted.
    ///
    /// # Errors
    ///
    /// If the pin is missing, or cannot be read.
    pub fn open(folder: &Path) -> Result<Self> {
        let pin = MapData::from_pin(folder.join("LOCAL_PEERS"));
        let map = Map::HashMap(pin.context("open the pinned map LOCAL_PEERS")?);
        let map: aya::maps::HashMap<_, PeerKey, u32> = map.try_into()?;
        let there = map.keys().map(|key| Ok((key?, None)));
        let there = there
            .collect::<Result<_>>()
            .context("read the local peers")?;
        Ok(Self { map, there })
    }

    /// Lets these in from now on. Others go a while after `now`: see [`Self::forget`]. Those that the
    /// kernel refuses are in the answer.
    pub fn set(&mut self, wanted: &HashSet<PeerKey>, now: Instant) -> Vec<PeerKey> {
        for (key, leaves) in &mut self.there {
            *leaves = match wanted.contains(key) {
                true => None,
                false => leaves.or(Some(now)),
            };
        }
        let new = wanted.iter().filter(|key| !self.there.contains_key(key));
        let mut refused: Vec<PeerKey> = new.copied().collect();
        refused.retain(|key| !self.add(*key));
        if !refused.is_empty() {
            // Peers that are wanted no more have had the room: it goes to those that are.
            self.remove(|_, _| true);
            refused.retain(|key| !self.add(*key));
        }
        refused
    }

    /// Takes out the peers that are wanted no more since long enough before `now`, and are not `held`.
    pub fn forget(&mut self, now: Instant, held: impl Fn(&PeerKey) -> bool) {
        let is_over = |since| now.saturating_duration_since(since) >= LINGER_TIME;
        self.remove(|key, since| is_over(since) && !held(key));
    }

    fn add(&mut self, key: PeerKey) -> bool {
        let added = self.map.insert(&key, &IS_PEER, 0).is_ok();
        if added {
            self.there.insert(key, None);
        }
        added
    }

    fn remove(&mut self, is_over: impl Fn(&PeerKey, Instant) -> bool) {
        let Self { map, there } = self;
        there.retain(|key, leaves| {
            let stays = !leaves.is_some_and(|since| is_over(key, since));
            if !stays {
                // Refused only if another process has removed it.
                let _gone = map.remove(key);
            }
            stays
        });
    }
}

/// The key of a peer in the network with this id: `address` as in records, `port` in host order.
pub const fn peer(network: u16, address: Be32, port: u16) -> PeerKey {
    PeerKey {
        address,
        port: Be16::new(port),
        network,
    }
}
