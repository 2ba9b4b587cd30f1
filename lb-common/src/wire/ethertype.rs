//! Ethertypes that are between a switch and the host, on any network.

/// Lengths, as in IEEE 802.3 frames such as those of spanning tree, are below.
const FIRST_ETHERTYPE: u16 = 0x600;
/// Slow protocols: LACP, OAM (IEEE 802.3 annex 57A).
const SLOW: u16 = 0x8809;
/// MAC control: pause (IEEE 802.3 annex 31B).
const MAC_CONTROL: u16 = 0x8808;
/// Port access (IEEE 802.1X).
const EAPOL: u16 = 0x888e;
/// Link layer discovery (IEEE 802.1AB).
const LLDP: u16 = 0x88cc;

/// Whether a frame with this type (host order) is link control, which passes on every network.
#[inline(always)]
pub const fn is_link_control(ethertype: u16) -> bool {
    ethertype < FIRST_ETHERTYPE || matches!(ethertype, SLOW | MAC_CONTROL | EAPOL | LLDP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_carries_data_is_no_link_control() {
        for link_control in [0x0027, 0x05dc, 0x8808, 0x8809, 0x888e, 0x88cc] {
            assert!(is_link_control(link_control), "{link_control:04x}");
        }
        // IPv4, RARP, IPv6, MPLS, PPPoE, MACsec, RoCE, TIPC, another vendor's stacked tag.
        for data in [
            0x0800, 0x8035, 0x86dd, 0x8847, 0x8864, 0x88e5, 0x8915, 0x88ca, 0x9100,
        ] {
            assert!(!is_link_control(data), "{data:04x}");
        }
    }
}
