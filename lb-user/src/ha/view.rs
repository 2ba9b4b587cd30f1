//! What the control plane has the boxes' session go by.

use lb_common::maps::snat::base;

use crate::model::{
    registry::{Ids, Kind},
    snat::{SnatSlot, parse_name},
};

/// The names of this box, and whether it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaView {
    /// All ids that it has given out.
    pub ids: Ids,
    /// Whether it is the active box.
    pub is_active: bool,
}

impl HaView {
    /// All SNAT addresses of this box and its peer, and those that finish flows, with their ids.
    pub fn addresses(&self) -> impl Iterator<Item = (u32, SnatSlot)> {
        let ids = self.ids.of(Kind::Snat);
        ids.filter_map(|(name, id)| Some((id, slot(name, id, &self.ids)?)))
    }

    /// The ids of what flows may newly refer to: of what is configured no more they are about to be freed.
    pub fn usable(&self) -> Ids {
        let mut ids = self.ids.clone();
        for (kind, name, _) in self.ids.unassigned() {
            if kind != Kind::Label {
                ids.free(kind, name);
            }
        }
        ids
    }

    /// The SNAT address with this id.
    pub fn address(&self, id: u32) -> Option<SnatSlot> {
        slot(self.ids.name(Kind::Snat, id)?, id, &self.ids)
    }
}

fn slot(name: &str, id: u32, ids: &Ids) -> Option<SnatSlot> {
    let (_, snat) = parse_name(name)?;
    let slot = u16::try_from(id.checked_sub(1)?).ok()?;
    Some(SnatSlot::new(slot, snat, ids))
}

/// The place of an id among those of its address.
pub fn offset(slot: &SnatSlot, id: u32) -> usize {
    usize::try_from(id.wrapping_sub(base(slot.slot))).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flow_comes_to_what_is_configured_no_more() {
        let mut ids = Ids::default();
        for name in ["mgmt/10.32.96.50:1024-2047", "mgmt/10.32.96.51:1024-2047"] {
            ids.assign(Kind::Snat, name, 8).unwrap();
        }
        ids.assign(Kind::Service, "api", 8).unwrap();
        ids.begin();
        ids.assign(Kind::Snat, "mgmt/10.32.96.51:1024-2047", 8)
            .unwrap();
        let view = HaView {
            ids,
            is_active: true,
        };
        let usable = view.usable();
        assert_eq!(usable.get(Kind::Service, "api"), None);
        let left: Vec<_> = usable.of(Kind::Snat).collect();
        assert_eq!(left, [("mgmt/10.32.96.51:1024-2047", 2)]);
        // Those that are left still have their flows, which are sent.
        let addresses: Vec<_> = view.addresses().map(|(id, slot)| (id, slot.slot)).collect();
        assert_eq!(addresses, [(1, 0), (2, 1)]);
        let slot = view.address(2).unwrap();
        assert_eq!(offset(&slot, base(1) + 7), 7);
    }
}
