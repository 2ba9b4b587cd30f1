//! The outer VLAN tag of a frame: which network it stands for, and whether we look behind it.

use network_types::eth::EtherType;

use super::{
    Packet,
    header::{Ethernet, Vlan},
};
use crate::addr::Be16;

/// The VLAN id in a tag's control information (IEEE 802.1Q section 9.6).
const VLAN_ID: u16 = 0x0fff;

/// A tag as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// 0x8100, or 0x88a8 for a service tag.
    pub protocol: Be16,
    /// Priority, drop eligible, VLAN id.
    pub tci: Be16,
}

impl Tag {
    /// The tag that sends a frame to the VLAN with this id, without a priority.
    #[inline(always)]
    pub const fn of(vlan: u16) -> Self {
        Self {
            protocol: Be16::from_raw(EtherType::Ieee8021q as u16),
            tci: Be16::new(vlan),
        }
    }

    /// The VLAN id; with 0 the tag has a priority only.
    #[inline(always)]
    pub const fn vlan(self) -> u16 {
        self.tci.get() & VLAN_ID
    }
}

/// What stands between a frame's addresses and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    /// No tag.
    Untagged,
    /// One tag that we look behind: 802.1Q, or any with VLAN id 0.
    Tagged(Tag),
    /// A tag that we look behind, and another one there.
    Stacked(Tag),
    /// A service tag with an id: another operator's network.
    Foreign,
}

/// Reads the outer tag of `packet`; `None` if the frame ends in the middle of it.
///
/// A tag with id 0 counts as none for the host's stack, so a frame that hides behind one must be
/// judged like an untagged frame, whatever the tag's protocol.
#[inline(always)]
pub fn tagging<P: Packet>(packet: &P, ethernet: &Ethernet) -> Option<Tagging> {
    let protocol = ethernet.ethertype.get();
    if !is_tag(protocol) {
        return Some(Tagging::Untagged);
    }
    let header: &Vlan = packet.header(size_of::<Ethernet>())?;
    let tag = Tag {
        protocol,
        tci: header.tci.get(),
    };
    if tag.vlan() != 0 && protocol.raw() != EtherType::Ieee8021q as u16 {
        Some(Tagging::Foreign)
    } else if is_tag(header.ethertype.get()) {
        Some(Tagging::Stacked(tag))
    } else {
        Some(Tagging::Tagged(tag))
    }
}

#[inline(always)]
const fn is_tag(ethertype: Be16) -> bool {
    ethertype.raw() == EtherType::Ieee8021q as u16
        || ethertype.raw() == EtherType::Ieee8021ad as u16
}

#[cfg(test)]
mod tests {
    use super::{super::Slice, *};

    fn read(behind_the_addresses: &[u8]) -> Option<Tagging> {
        let mut bytes = [&[2; 12], behind_the_addresses].concat();
        let packet = Slice::new(&mut bytes);
        tagging(&packet, packet.header(0)?)
    }

    fn tag(protocol: u16, tci: u16) -> Tag {
        Tag {
            protocol: Be16::new(protocol),
            tci: Be16::new(tci),
        }
    }

    #[test]
    fn one_tag_is_looked_behind_and_a_service_tag_is_not() {
        assert_eq!(read(&[8, 0, 0x45, 0]), Some(Tagging::Untagged));
        let vlan = Some(Tagging::Tagged(tag(0x8100, 0x67d3)));
        assert_eq!(
            read(&[0x81, 0, 0x67, 0xd3, 8, 0]),
            vlan,
            "priority 3, id 2003"
        );
        assert_eq!(tag(0x8100, 0x67d3).vlan(), 2003);
        assert_eq!(
            tag(0x8100, 0xf7d3).vlan(),
            2003,
            "drop eligible is no part of the id"
        );
        assert_eq!(read(&[0x88, 0xa8, 7, 0xd3, 8, 0]), Some(Tagging::Foreign));
        assert_eq!(
            read(&[0x88, 0xa8, 7, 0xd3, 0x81, 0]),
            Some(Tagging::Foreign)
        );
    }

    #[test]
    fn a_priority_tag_hides_nothing() {
        let priority = |protocol| Some(Tagging::Tagged(tag(protocol, 0xe000)));
        assert_eq!(read(&[0x81, 0, 0xe0, 0, 8, 0]), priority(0x8100));
        assert_eq!(read(&[0x88, 0xa8, 0xe0, 0, 8, 0]), priority(0x88a8));
        let stacked = Some(Tagging::Stacked(tag(0x88a8, 0)));
        assert_eq!(read(&[0x88, 0xa8, 0, 0, 0x81, 0]), stacked);
        let stacked = Some(Tagging::Stacked(tag(0x8100, 2003)));
        assert_eq!(read(&[0x81, 0, 7, 0xd3, 0x88, 0xa8]), stacked);
    }

    #[test]
    fn a_frame_that_ends_in_its_tag_is_no_frame() {
        assert_eq!(read(&[0x81, 0, 7, 0xd3, 8]), None);
        assert_eq!(read(&[0x81, 0]), None);
    }

    #[test]
    fn our_own_tag_has_no_priority() {
        assert_eq!(Tag::of(2003), tag(0x8100, 2003));
    }
}
