//! A request for an address of ours becomes its own reply (RFC 826), and what else there is of ARP is judged.

use crate::{
    addr::{Be16, Mac},
    verdict::DropReason,
    wire::header::{Arp, Ethernet},
};

/// The hardware type of Ethernet.
const ETHERNET: u16 = 1;
/// The protocol type of IPv4.
const IPV4: u16 = 0x0800;
/// Bytes of a MAC, and of an IPv4 address.
const SIZES: (u8, u8) = (6, 4);
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// What a message is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request for an address of ours.
    Request,
    /// The reply to a request of our own.
    Reply,
    /// Nothing that concerns us.
    Other,
}

/// Whether the message is about IPv4 addresses and MACs. What stands where in another one is not known.
#[inline(always)]
pub fn is_of_ipv4(arp: &Arp) -> bool {
    arp.hardware.get().get() == ETHERNET
        && arp.protocol.get().get() == IPV4
        && (arp.hardware_size.get(), arp.protocol_size.get()) == SIZES
}

/// Whether a station announces its own address with it (RFC 5227 section 3).
#[inline(always)]
pub fn announces(arp: &Arp) -> bool {
    arp.sender.get() == arp.target.get()
}

/// Whether the sender only looks whether an address is in use, and has none (RFC 5227 section 2.1.1).
#[inline(always)]
pub fn is_probe(arp: &Arp) -> bool {
    arp.operation.get().get() == REQUEST && arp.sender.get().raw() == 0
}

/// What a message is to us whose target is ours; `mac` is our MAC.
#[inline(always)]
pub fn message(arp: &Arp, mac: Mac) -> Message {
    match arp.operation.get().get() {
        REQUEST => Message::Request,
        REPLY if arp.target_mac.get() == mac => Message::Reply,
        _ => Message::Other,
    }
}

/// Checks that the station which sends the frame is one, and the one that the message names.
///
/// # Errors
///
/// `NeighbourForged`.
#[inline(always)]
pub fn check(ethernet: &Ethernet, arp: &Arp) -> Result<(), DropReason> {
    let station = ethernet.source.get();
    if station.is_group() || station.is_none() || arp.sender_mac.get() != station {
        return Err(DropReason::NeighbourForged);
    }
    Ok(())
}

/// Makes the request, which has been [checked](check), the reply that its target is at `mac`. What stands behind
/// it stays.
#[inline(always)]
pub fn answer(ethernet: &Ethernet, arp: &Arp, mac: Mac) {
    let station = ethernet.source.get();
    let (sender, target) = (arp.sender.get(), arp.target.get());
    ethernet.destination.set(station);
    ethernet.source.set(mac);
    arp.operation.set(Be16::new(REPLY));
    arp.sender_mac.set(mac);
    arp.sender.set(target);
    arp.target_mac.set(station);
    arp.target.set(sender);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Packet as _, Slice};

    const STATION: [u8; 6] = [2, 0, 0, 0, 0xc, 1];
    const OURS: [u8; 6] = [2, 0, 0, 0, 0xa, 1];
    const SENDER: [u8; 4] = [192, 168, 203, 50];
    const TARGET: [u8; 4] = [192, 168, 203, 110];

    fn message_of(operation: u8, macs: [[u8; 6]; 2], addresses: [[u8; 4]; 2]) -> Vec<u8> {
        let body = [0, 1, 8, 0, 6, 4, 0, operation];
        let mut frame = [&[0xff; 6], macs[0].as_slice(), &[8, 6], &body].concat();
        for (mac, address) in macs.iter().zip(addresses) {
            frame.extend(mac);
            frame.extend(address);
        }
        frame
    }

    fn request() -> Vec<u8> {
        message_of(1, [STATION, [0; 6]], [SENDER, TARGET])
    }

    fn with<T>(frame: &mut [u8], run: impl FnOnce(&Ethernet, &Arp) -> T) -> T {
        let packet = Slice::new(frame);
        let arp = packet.header(size_of::<Ethernet>()).expect("a message");
        run(packet.header(0).expect("a header"), arp)
    }

    #[test]
    fn a_request_becomes_its_reply() {
        for sender in [SENDER, [0; 4]] {
            for padding in [0, 18] {
                let mut frame = message_of(1, [STATION, [0; 6]], [sender, TARGET]);
                frame.resize(42 + padding, 7);
                let mut wanted = message_of(2, [OURS, STATION], [TARGET, sender]);
                wanted[..6].copy_from_slice(&STATION);
                wanted.resize(42 + padding, 7);
                with(&mut frame, |ethernet, arp| {
                    assert_eq!(message(arp, Mac::new(OURS)), Message::Request);
                    assert_eq!(is_probe(arp), sender == [0; 4]);
                    answer(ethernet, arp, Mac::new(OURS));
                });
                assert_eq!(frame, wanted);
            }
        }
    }

    #[test]
    fn only_ipv4_over_ethernet_is_read() {
        assert!(with(&mut request(), |_, arp| is_of_ipv4(arp)));
        for byte in 14..20 {
            let mut frame = request();
            frame[byte] ^= 4;
            assert!(!with(&mut frame, |_, arp| is_of_ipv4(arp)), "byte {byte}");
        }
    }

    #[test]
    fn a_station_has_one_mac_in_both_places() {
        let checked = |ethernet: [u8; 6], arp: [u8; 6]| {
            let mut frame = message_of(1, [arp, [0; 6]], [SENDER, TARGET]);
            frame[6..12].copy_from_slice(&ethernet);
            with(&mut frame, check)
        };
        assert_eq!(checked(STATION, STATION), Ok(()));
        let group = [3, 0, 0, 0, 0xc, 1];
        for (ethernet, arp) in [
            (STATION, OURS),
            (OURS, STATION),
            (group, group),
            ([0xff; 6], [0xff; 6]),
            ([0; 6], [0; 6]),
            (STATION, [0; 6]),
        ] {
            let found = checked(ethernet, arp);
            assert_eq!(
                found,
                Err(DropReason::NeighbourForged),
                "{ethernet:?} {arp:?}"
            );
        }
    }

    #[test]
    fn a_reply_is_one_to_our_mac() {
        let said = |operation, target_mac| {
            let macs = [STATION, target_mac];
            let mut frame = message_of(operation, macs, [SENDER, TARGET]);
            with(&mut frame, |_, arp| message(arp, Mac::new(OURS)))
        };
        assert_eq!(said(2, OURS), Message::Reply);
        for (operation, target_mac) in [
            (2, STATION),
            (2, [0xff; 6]),
            (2, [0; 6]),
            (0, OURS),
            (3, OURS),
        ] {
            let found = said(operation, target_mac);
            assert_eq!(found, Message::Other, "{operation} {target_mac:?}");
        }
    }

    #[test]
    fn a_station_that_names_itself_announces() {
        for operation in [1, 2] {
            for (target, wanted) in [(SENDER, true), (TARGET, false)] {
                let mut frame = message_of(operation, [STATION, STATION], [SENDER, target]);
                assert_eq!(with(&mut frame, |_, arp| announces(arp)), wanted);
            }
        }
    }
}
