//! A neighbour solicitation for an address of ours becomes the advertisement that answers it (RFC 4861
//! sections 7.2.3 and 7.2.4).

use network_types::ip::IpProto;

use crate::{
    addr::{Be16, Be32, Be128, Mac},
    verdict::DropReason,
    wire::{
        Packet,
        checksum::{Sum, pseudo_header6},
        header::{Ethernet, Ipv6, Neighbour, NeighbourOption},
    },
};

/// Type of a solicitation.
pub const SOLICITATION: u8 = 135;
/// Type of an advertisement.
pub const ADVERTISEMENT: u8 = 136;
/// Hops of a message that no router has passed on.
pub const HOPS: u8 = 255;

/// Bytes of the frame of an answer.
pub const ANSWER_BYTES: usize = OPTIONS + OPTION;

const MESSAGE: usize = size_of::<Ethernet>() + size_of::<Ipv6>();
/// Where the options of a message begin, in bytes from the frame's first.
const OPTIONS: usize = MESSAGE + size_of::<Neighbour>();
/// Bytes of an option that has a MAC, and the unit of the length of any.
const OPTION: usize = size_of::<NeighbourOption>();
const UNIT: u16 = 8;
const NEIGHBOUR_BYTES: u16 = 24;
const _: () = assert!(OPTION == UNIT as usize);
const _: () = assert!(size_of::<Neighbour>() == NEIGHBOUR_BYTES as usize);

/// The options that have a MAC (RFC 4861 section 4.6.1).
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
/// Most units of options. A MAC and a nonce (RFC 7527) are two; signatures (RFC 3971), which take far more,
/// have no answer from us.
const MAX_OPTION_UNITS: u16 = 8;

/// In an advertisement: it answers a solicitation.
const SOLICITED: u32 = 1 << 30;
/// In an advertisement: what was known before is wrong.
const OVERRIDE: u32 = 1 << 29;

/// All nodes of the link, ff02::1, and its MAC (RFC 2464 section 7).
const ALL_NODES: Be128 = Be128::from_raw([0xff02_0000_u32.to_be(), 0, 0, 1_u32.to_be()]);
const ALL_NODES_MAC: Mac = Mac::new([0x33, 0x33, 0, 0, 0, 1]);

/// A valid solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// The station that it comes from.
    pub station: Mac,
    /// Its address; none (`::`) where it only looks whether the target is in use.
    pub source: Be128,
    /// The address that is solicited.
    pub target: Be128,
}

impl Solicitation {
    /// The solicitation in a frame that has one behind its IPv6 header, with [`HOPS`] hops (RFC 4861 section 7.1.1).
    ///
    /// # Errors
    ///
    /// `Malformed` where a length, the checksum or a field contradicts that; `UnsupportedProtocol` where it
    /// has more options than are read; `NeighbourForged` where its station is none, or an option has another
    /// MAC.
    #[inline(always)]
    pub fn read<P: Packet>(packet: &P) -> Result<Self, DropReason> {
        let ethernet: &Ethernet = packet.header(0).ok_or(DropReason::Malformed)?;
        let ip: &Ipv6 = packet
            .header(size_of::<Ethernet>())
            .ok_or(DropReason::Malformed)?;
        let message: &Neighbour = packet.header(MESSAGE).ok_or(DropReason::Malformed)?;
        let length = ip.payload_length.get().get();
        let options = length.wrapping_sub(NEIGHBOUR_BYTES);
        let is_whole = length >= NEIGHBOUR_BYTES && options.is_multiple_of(UNIT);
        if !is_whole || ip.version_class_label.get().get() >> 28 != 6 || message.code.get() != 0 {
            return Err(DropReason::Malformed);
        }
        let asked = Self {
            station: ethernet.source.get(),
            source: ip.source.get(),
            target: message.target.get(),
        };
        if asked.station.is_group() || asked.station.is_none() {
            return Err(DropReason::NeighbourForged);
        }
        if asked.is_probe() && ip.destination.get() != solicited_node(asked.target) {
            return Err(DropReason::Malformed);
        }
        let said = asked.options(packet, options / UNIT)?;
        let said = Sum::default()
            .add_sum(said)
            .add_sum(packet.sum::<24>(MESSAGE).ok_or(DropReason::Malformed)?)
            .add_sum(pseudo_header6(
                asked.source,
                ip.destination.get(),
                IpProto::Ipv6Icmp as u8,
                length,
            ));
        if said.checksum().raw() != 0 {
            return Err(DropReason::Malformed);
        }
        Ok(asked)
    }

    /// Whether it is sent by a station without an address: for duplicate address detection (RFC 4862 section 5.4).
    #[inline(always)]
    pub fn is_probe(&self) -> bool {
        self.source == Be128::default()
    }

    /// Checks so many units of options, and adds them up.
    #[inline(always)]
    fn options<P: Packet>(&self, packet: &P, units: u16) -> Result<u64, DropReason> {
        if units > MAX_OPTION_UNITS {
            return Err(DropReason::UnsupportedProtocol);
        }
        let (mut sum, mut left) = (0, 0);
        for unit in 0..MAX_OPTION_UNITS {
            if unit >= units {
                break;
            }
            let at = OPTIONS + usize::from(unit) * OPTION;
            let option: &NeighbourOption = packet.header(at).ok_or(DropReason::Malformed)?;
            if left == 0 {
                left = option.length.get();
                if option.kind.get() == SOURCE_MAC {
                    if left != 1 || self.is_probe() {
                        return Err(DropReason::Malformed);
                    }
                    if option.mac.get() != self.station {
                        return Err(DropReason::NeighbourForged);
                    }
                }
                if left == 0 {
                    return Err(DropReason::Malformed);
                }
            }
            left -= 1;
            sum += packet.sum::<OPTION>(at).ok_or(DropReason::Malformed)?;
        }
        if left != 0 {
            return Err(DropReason::Malformed);
        }
        Ok(sum)
    }

    /// Writes the answer, that the target is at `mac`, over a frame of [`ANSWER_BYTES`].
    #[inline(always)]
    pub fn answer<P: Packet>(&self, packet: &P, mac: Mac) -> Option<()> {
        let ethernet: &Ethernet = packet.header(0)?;
        let ip: &Ipv6 = packet.header(size_of::<Ethernet>())?;
        let message: &Neighbour = packet.header(MESSAGE)?;
        let option: &NeighbourOption = packet.header(OPTIONS)?;
        // A station without an address gets it by the group of all nodes.
        let (station, to, flags) = if self.is_probe() {
            (ALL_NODES_MAC, ALL_NODES, OVERRIDE)
        } else {
            (self.station, self.source, SOLICITED | OVERRIDE)
        };
        let length = NEIGHBOUR_BYTES + UNIT;
        ethernet.destination.set(station);
        ethernet.source.set(mac);
        ethernet.ethertype.set(Be16::new(0x86dd));
        ip.version_class_label.set(Be32::new(6 << 28));
        ip.payload_length.set(Be16::new(length));
        ip.next_header.set(IpProto::Ipv6Icmp as u8);
        ip.hop_limit.set(HOPS);
        ip.source.set(self.target);
        ip.destination.set(to);
        message.kind.set(ADVERTISEMENT);
        message.code.set(0);
        message.checksum.set(Be16::default());
        message.flags.set(Be32::new(flags));
        message.target.set(self.target);
        option.kind.set(TARGET_MAC);
        option.length.set(1);
        option.mac.set(mac);
        let addresses = pseudo_header6(self.target, to, IpProto::Ipv6Icmp as u8, length);
        let sum = Sum::default()
            .add_sum(addresses)
            .add_sum(packet.sum::<32>(MESSAGE)?);
        message.checksum.set(sum.checksum());
        Some(())
    }
}

/// Whether an address is good on its link alone: fe80::/10 (RFC 4291 section 2.5.6).
#[inline(always)]
pub const fn is_link_local(address: Be128) -> bool {
    let [first, ..] = address.raw();
    u32::from_be(first) >> 22 == 0xfe80 >> 6
}

/// The group of those that may have this address (RFC 4291 section 2.7.1).
#[inline(always)]
const fn solicited_node(address: Be128) -> Be128 {
    let [.., last] = address.raw();
    let last = u32::from_be(last) | 0xff00_0000;
    Be128::from_raw([0xff02_0000_u32.to_be(), 0, 1_u32.to_be(), last.to_be()])
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;
    use crate::wire::{Slice, checksum::full};

    const STATION: [u8; 6] = [2, 0, 0, 0, 0xc, 1];
    const OURS: [u8; 6] = [2, 0, 0, 0, 0xa, 1];
    const HOST: &str = "fd00:203::50";
    const VIP: &str = "fd00:203::1:2:110";
    const GROUP: &str = "ff02::1:ff02:110";
    const OF_MAC: [u8; 8] = [1, 1, 2, 0, 0, 0, 0xc, 1];
    const NONCE: [u8; 8] = [14, 1, 9, 8, 7, 6, 5, 4];

    fn octets(address: &str) -> [u8; 16] {
        address.parse::<Ipv6Addr>().unwrap().octets()
    }

    /// A checksum by a sum of all bytes of a packet's pseudo-header and payload, independent of [`Sum`].
    fn sum_of(frame: &[u8]) -> u16 {
        let mut bytes = frame[22..54].to_vec();
        bytes.extend(u32::try_from(frame.len() - 54).unwrap().to_be_bytes());
        bytes.extend([0, 0, 0, 58]);
        bytes.extend(&frame[54..]);
        full(&bytes, 0).get()
    }

    fn message(source: &str, destination: &str, head: [u8; 8], rest: &[&[u8]]) -> Vec<u8> {
        let rest = rest.concat();
        let length = u16::try_from(8 + rest.len()).unwrap().to_be_bytes();
        let mut frame = [OURS.as_slice(), &STATION, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        frame.extend(length);
        frame.extend([58, 255]);
        frame.extend(octets(source));
        frame.extend(octets(destination));
        frame.extend(head);
        frame.extend(rest);
        let sum = sum_of(&frame).to_be_bytes();
        frame[56..58].copy_from_slice(&sum);
        frame
    }

    fn solicitation(source: &str, destination: &str, options: &[&[u8]]) -> Vec<u8> {
        let target = octets(VIP);
        let rest = [&[target.as_slice()], options].concat();
        message(source, destination, [135, 0, 0, 0, 0, 0, 0, 0], &rest)
    }

    fn read(frame: &mut [u8]) -> Result<Solicitation, DropReason> {
        Solicitation::read(&Slice::new(frame))
    }

    /// As the answer of a kernel: a message of type 136 from the target.
    fn wanted(station: [u8; 6], to: &str, flags: u8) -> Vec<u8> {
        let option = [&[2, 1], OURS.as_slice()].concat();
        let head = [136, 0, 0, 0, flags, 0, 0, 0];
        let mut frame = message(VIP, to, head, &[&octets(VIP), &option]);
        frame[..6].copy_from_slice(&station);
        frame[6..12].copy_from_slice(&OURS);
        frame
    }

    #[test]
    fn a_solicitation_is_answered_whatever_stood_in_its_frame() {
        let all = [0x33, 0x33, 0, 0, 0, 1];
        for (source, to, options, station, flags) in [
            (HOST, GROUP, &[&OF_MAC[..]][..], STATION, 0x60),
            (HOST, VIP, &[], STATION, 0x60),
            (HOST, GROUP, &[&NONCE, &OF_MAC], STATION, 0x60),
            ("fe80::c:1", GROUP, &[&OF_MAC], STATION, 0x60),
            ("::", GROUP, &[], all, 0x20),
            ("::", GROUP, &[&NONCE], all, 0x20),
        ] {
            let mut frame = solicitation(source, to, options);
            let asked = read(&mut frame).expect("a valid one");
            assert_eq!(Ipv6Addr::from(asked.target).octets(), octets(VIP));
            assert_eq!(asked.is_probe(), source == "::");
            frame.resize(ANSWER_BYTES, 0xee);
            asked
                .answer(&Slice::new(&mut frame), Mac::new(OURS))
                .unwrap();
            let to = if source == "::" { "ff02::1" } else { source };
            assert_eq!(frame, wanted(station, to, flags), "{source}");
            assert_eq!(sum_of(&frame), 0);
        }
    }

    #[test]
    fn what_contradicts_itself_is_malformed() {
        let malformed = Err(DropReason::Malformed);
        let whole = solicitation(HOST, GROUP, &[&OF_MAC]);
        for length in 0..whole.len() {
            assert_eq!(
                read(&mut whole[..length].to_vec()),
                malformed,
                "{length} bytes"
            );
        }
        // The length, any other bit of the message, and of the addresses.
        for byte in (18..20).chain(22..whole.len()) {
            let mut frame = whole.clone();
            frame[byte] ^= 0x10;
            let found = read(&mut frame);
            assert!(found.is_err(), "byte {byte}: {found:?}");
        }
        for (number, mut frame) in [
            solicitation("::", GROUP, &[&OF_MAC]),
            solicitation("::", VIP, &[]),
            solicitation("::", "ff02::1", &[]),
            solicitation("::", "ff02::1:ff02:111", &[]),
            solicitation(HOST, GROUP, &[&[14, 0, 0, 0, 0, 0, 0, 0]]),
            solicitation(HOST, GROUP, &[&[1, 0, 2, 0, 0, 0, 0xc, 1]]),
            solicitation(HOST, GROUP, &[&[1, 2, 2, 0, 0, 0, 0xc, 1], &[0; 8]]),
            solicitation(HOST, GROUP, &[&[14, 2, 0, 0, 0, 0, 0, 0]]),
            solicitation(HOST, GROUP, &[&[14, 1, 0, 0]]),
            message(HOST, GROUP, [135, 1, 0, 0, 0, 0, 0, 0], &[&octets(VIP)]),
            message(
                HOST,
                GROUP,
                [135, 0, 0, 0, 0, 0, 0, 0],
                &[&octets(VIP)[..15]],
            ),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(read(&mut frame), malformed, "{number}");
        }
    }

    #[test]
    fn a_station_has_one_mac_in_both_places() {
        let forged = Err(DropReason::NeighbourForged);
        let other = [1, 1, 2, 0, 0, 0, 0xc, 2];
        assert_eq!(read(&mut solicitation(HOST, GROUP, &[&other])), forged);
        for station in [[0; 6], [0xff; 6], [0x33, 0x33, 0, 0, 0, 1]] {
            let mut frame = solicitation(HOST, GROUP, &[]);
            frame[6..12].copy_from_slice(&station);
            assert_eq!(read(&mut frame), forged, "{station:?}");
        }
    }

    #[test]
    fn more_options_than_are_read_have_no_answer() {
        let most = vec![&NONCE[..]; usize::from(MAX_OPTION_UNITS)];
        assert!(read(&mut solicitation(HOST, GROUP, &most)).is_ok());
        let long = [8, 0, 0, 0, 0, 0, 0, 0];
        let filled = [&[14, 8][..], &[0; 62]].concat();
        assert!(read(&mut solicitation(HOST, GROUP, &[&filled])).is_ok());
        let found = read(&mut solicitation(HOST, GROUP, &[&filled, &long]));
        assert_eq!(found, Err(DropReason::UnsupportedProtocol));
    }

    #[test]
    fn link_local_is_the_first_tenth_of_fe() {
        let is = |text: &str| is_link_local(text.parse::<Ipv6Addr>().unwrap().into());
        for text in ["fe80::1", "febf:ffff::1"] {
            assert!(is(text), "{text}");
        }
        for text in ["::", "fec0::1", "fe7f::1", "fd00::1", "ff02::1"] {
            assert!(!is(text), "{text}");
        }
    }
}
