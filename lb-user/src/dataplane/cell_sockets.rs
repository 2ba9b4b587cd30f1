//! The connections of clients that sockets of cells have behind cookies, as the data plane knows them.

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};
use lb_common::maps::{cell_socket::CellSocket, flow::FlowKey};

use super::flows::coarse_now;

/// The map `CELL_SOCKETS`.
#[derive(Debug)]
pub struct CellSocketMap {
    map: HashMap<MapData, FlowKey, CellSocket>,
}

impl CellSocketMap {
    /// Opens the map that is pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing.
    pub fn open(folder: &Path) -> Result<Self> {
        let pin = MapData::from_pin(folder.join("CELL_SOCKETS"));
        let pin = pin.context("open the pinned map CELL_SOCKETS")?;
        let map = Map::HashMap(pin).try_into()?;
        Ok(Self { map })
    }

    /// The number of the client's SYN, if a connection of this tuple is there.
    #[must_use]
    pub fn isn(&self, key: &FlowKey) -> Option<u32> {
        self.map.get(key, 0).map(|known| known.isn).ok()
    }

    /// Enters a connection: what comes from its client goes into the cell. It takes the place of another one of the
    /// same tuple.
    ///
    /// # Errors
    ///
    /// If the map is full.
    pub fn enter(&mut self, key: &FlowKey, isn: u32) -> Result<()> {
        let entered = self.map.insert(key, &entry(isn)?, 0);
        entered.context("enter the connection of a client of a shared VIP")
    }

    /// Marks a connection as live, if it is there.
    ///
    /// # Errors
    ///
    /// If the kernel refuses that.
    pub fn mark(&mut self, key: &FlowKey, isn: u32) -> Result<()> {
        const EXIST: u64 = 2;
        let known = self.map.get(key, 0).ok();
        let Some(CellSocket { state, .. }) = known.filter(|known| known.isn == isn) else {
            return Ok(());
        };
        let marked = CellSocket {
            state,
            ..entry(isn)?
        };
        Ok(self.map.insert(key, &marked, EXIST)?)
    }

    /// Takes a connection out.
    pub fn remove(&mut self, key: &FlowKey) {
        // It may be gone.
        let _gone = self.map.remove(key);
    }

    /// Whether nothing has been seen of a connection for so long, in units of coarse time.
    pub fn is_silent(&self, key: &FlowKey, since: u32) -> bool {
        let seen = self.map.get(key, 0).map(|socket| socket.seen);
        match (seen, coarse_now()) {
            (Ok(seen), Ok(now)) => now.wrapping_sub(seen) > since,
            _ => true,
        }
    }

    /// The connections of which nothing has been seen for so long, in units of coarse time.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to give them.
    pub fn silent(&self, since: u32) -> Result<Vec<FlowKey>> {
        let now = coarse_now()?;
        let mut silent = Vec::new();
        for entry in self.map.iter() {
            let (key, socket) = entry.context("read the connections of cells")?;
            if now.wrapping_sub(socket.seen) > since {
                silent.push(key);
            }
        }
        Ok(silent)
    }
}

fn entry(isn: u32) -> Result<CellSocket> {
    Ok(CellSocket {
        isn,
        seen: coarse_now()?,
        state: 0,
    })
}
