//! The maps of flows, copied to larger ones: each entry to its own id, and every flow that requests find there findable here.
//!
//! A pass copies what differs. The first one goes beside the data plane, which changes entries meanwhile; the one after the
//! data plane has stopped leaves no difference.

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData},
};
use lb_common::{
    addr::Be128,
    maps::{
        cell_socket::CellSocket,
        cookies::CookieKeys,
        flow::{Flow, FlowKey},
        pending::Pending,
        snat::PortPage,
        splice::{Binding, Splice, SpliceName},
    },
};

use super::{flow_lines::FlowLines, flows::FlowTable, mapped::MappedArray};

/// An entry of the flow table, as it stands in memory.
type Entry = [u64; size_of::<Flow>() / 8];

/// Maps of flows and the larger ones that they are copied to.
pub struct FlowCopy {
    from: FlowMaps,
    to: FlowMaps,
}

struct FlowMaps {
    entries: MappedArray<Entry>,
    flows: FlowTable,
    lines: FlowLines,
    pending: Array<MapData, Pending>,
    bindings: MappedArray<Binding>,
    clients6: MappedArray<Be128>,
    splices: MappedArray<Splice>,
    names: HashMap<MapData, u32, SpliceName>,
    pages: MappedArray<PortPage>,
    cookies: Option<CookieMaps>,
}

/// What clients that were answered by cookies are known by; an older data plane answers none.
struct CookieMaps {
    keys: MappedArray<CookieKeys>,
    sockets: HashMap<MapData, FlowKey, CellSocket>,
}

impl CookieMaps {
    fn open(folder: &Path) -> Option<Self> {
        let sockets = MapData::from_pin(folder.join("CELL_SOCKETS")).ok()?;
        Some(Self {
            keys: MappedArray::open(folder, "COOKIES").ok()?,
            sockets: Map::HashMap(sockets).try_into().ok()?,
        })
    }
}

impl FlowMaps {
    fn open(folder: &Path) -> Result<Self> {
        let pin = |name: &str| {
            let map = MapData::from_pin(folder.join(name));
            map.with_context(|| format!("open the pinned map {name}"))
        };
        Ok(Self {
            entries: MappedArray::open(folder, "FLOWS")?,
            flows: FlowTable::open(folder)?,
            lines: FlowLines::open(folder)?,
            pending: Map::Array(pin("PENDING")?).try_into()?,
            bindings: MappedArray::open(folder, "BINDINGS")?,
            clients6: MappedArray::open(folder, "CLIENTS6")?,
            splices: MappedArray::open(folder, "SPLICES")?,
            names: Map::HashMap(pin("SPLICE_NAMES")?).try_into()?,
            pages: MappedArray::open(folder, "SNAT_PORTS")?,
            cookies: CookieMaps::open(folder),
        })
    }

    /// The key of the flow with this id, if there is one.
    fn key(&self, id: u32) -> Option<FlowKey> {
        let (word, flow) = self.flows.flow(id)?;
        Some(flow.key(word.is_udp()))
    }
}

impl FlowCopy {
    /// The maps that are pinned in these folders. Those in `to` are at least as large, and nothing else writes them.
    ///
    /// # Errors
    ///
    /// If a pin is missing, the kernel refuses a mapping, or has no random numbers.
    pub fn open(from: &Path, to: &Path) -> Result<Self> {
        let mut to = FlowMaps::open(to)?;
        to.lines.make_key()?;
        let from = FlowMaps::open(from)?;
        Ok(Self { from, to })
    }

    /// Copies what differs, and returns how many entries did.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a write, or the larger index has no room for a flow.
    pub fn pass(&mut self) -> Result<usize> {
        let Self { from, to } = self;
        copy(&from.pages, &to.pages);
        copy(&from.splices, &to.splices);
        copy(&from.bindings, &to.bindings);
        copy(&from.clients6, &to.clients6);
        let mut changed = Vec::new();
        for (id, entry) in differing(&from.entries, &to.entries) {
            changed.push((id, to.key(id)));
            to.entries.write(id, entry);
            if from.key(id).is_none() {
                continue;
            }
            let numbers = from.pending.get(&id, 0);
            let copied = to.pending.set(id, &numbers.context("read PENDING")?, 0);
            copied.context("write PENDING")?;
        }
        for (id, before) in &changed {
            self.index(*id, *before)?;
        }
        self.copy_names()?;
        self.copy_cookies()?;
        Ok(changed.len())
    }

    /// Makes a flow findable by its key if it is where it comes from, and no more by the key that the entry had here before.
    fn index(&self, id: u32, before: Option<FlowKey>) -> Result<()> {
        let Self { from, to } = self;
        let now = to.key(id);
        let is_found = |key: &FlowKey| from.lines.has(key, id);
        let now = now.map(|key| Ok::<_, anyhow::Error>(is_found(&key)?.then_some(key)));
        let now = now.transpose()?.flatten();
        if let Some(before) = before.filter(|before| Some(*before) != now) {
            to.lines.remove(&before, id)?;
        }
        if let Some(now) = now
            && !to.lines.has(&now, id)?
        {
            to.lines.index(&now, id)?;
        }
        Ok(())
    }

    /// Of what was handed over: names are few, and each is written once.
    fn copy_names(&mut self) -> Result<()> {
        for entry in self.from.names.iter() {
            let (id, name) = entry.context("read SPLICE_NAMES")?;
            let copied = self.to.names.insert(&id, &name, 0);
            copied.context("write SPLICE_NAMES")?;
        }
        Ok(())
    }

    /// With their keys, so that the hello of a client goes on that was answered before.
    fn copy_cookies(&mut self) -> Result<()> {
        let (Some(from), Some(to)) = (&self.from.cookies, &mut self.to.cookies) else {
            return Ok(());
        };
        copy(&from.keys, &to.keys);
        for entry in from.sockets.iter() {
            let (key, socket) = entry.context("read CELL_SOCKETS")?;
            let copied = to.sockets.insert(&key, &socket, 0);
            copied.context("write CELL_SOCKETS")?;
        }
        Ok(())
    }
}

/// The values of `from` that are others in `to`.
fn differing<'a, T: Pod + PartialEq>(
    from: &'a MappedArray<T>,
    to: &'a MappedArray<T>,
) -> impl Iterator<Item = (u32, T)> + 'a {
    let all = (0..from.len()).filter_map(|index| Some((index, from.read(index)?)));
    all.filter(|(index, value)| to.read(*index).is_some_and(|copy| copy != *value))
}

fn copy<T: Pod + PartialEq>(from: &MappedArray<T>, to: &MappedArray<T>) {
    for (index, value) in differing(from, to) {
        to.write(index, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_what_there_was_and_room_for_more() {
        let [from, to] = [3, 5].map(MappedArray::<[u64; 2]>::anonymous);
        from.write(0, [1, 2]);
        from.write(2, [3, 4]);
        copy(&from, &to);
        from.write(2, [5, 6]);
        let changed: Vec<_> = differing(&from, &to).collect();
        assert_eq!(changed, [(2, [5, 6])]);
        copy(&from, &to);
        assert_eq!(differing(&from, &to).count(), 0);
        let copied: Vec<_> = (0..5).filter_map(|index| to.read(index)).collect();
        assert_eq!(copied, [[1, 2], [0, 0], [5, 6], [0, 0], [0, 0]]);
    }
}
