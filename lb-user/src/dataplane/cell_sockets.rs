//! The connections of clients that sockets of cells have behind cookies, as the data plane knows them.

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData, MapError};
use lb_common::maps::{cell_socket::CellSocket, flow::FlowKey};
use nix::errno::Errno;

use super::flows::coarse_now;

/// The map `CELL_SOCKETS`.
#[derive(Debug)]
pub struct CellSocketMap {
    map: HashMap<MapData, FlowKey, CellSocket>,
}

/// What has become of an entry that was to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It is there now.
    New,
    /// It has been there: the client has repeated its hello.
    Repeated,
    /// One of an earlier connection of the same tuple is there.
    Other,
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

    /// Enters the connection of a client whose SYN had this number.
    ///
    /// # Errors
    ///
    /// If the map is full.
    pub fn enter(&mut self, key: &FlowKey, isn: u32) -> Result<Entered> {
        const NOEXIST: u64 = 1;
        match self.map.insert(key, &entry(isn)?, NOEXIST) {
            Ok(()) => Ok(Entered::New),
            Err(MapError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(Errno::EEXIST as i32) =>
            {
                let is_same = self.map.get(key, 0).is_ok_and(|known| known.isn == isn);
                Ok(if is_same {
                    Entered::Repeated
                } else {
                    Entered::Other
                })
            }
            Err(error) => Err(error).context("enter the connection of a client of a shared VIP"),
        }
    }

    /// Marks a connection as live, and takes the place of one of the same tuple.
    ///
    /// # Errors
    ///
    /// If the map is full.
    pub fn mark(&mut self, key: &FlowKey, isn: u32) -> Result<()> {
        let known = self.map.get(key, 0).ok();
        let known = known.filter(|known| known.isn == isn);
        let state = known.map_or(0, |known| known.state);
        let entry = CellSocket {
            state,
            ..entry(isn)?
        };
        Ok(self.map.insert(key, &entry, 0)?)
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
