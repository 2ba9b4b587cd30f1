//! The segment size in a SYN, held to what both networks carry.
//!
//! Each end of a connection announces how much data a segment to it may have (RFC 9293 section 3.7.1). It
//! knows its own link only; the other end may be on one that carries less, and a path that loses
//! "fragmentation needed" would lose the connection with it.

use crate::{
    addr::Be16,
    wire::{
        Frame, L4, Packet,
        checksum::Delta,
        header::{Ethernet, Ipv4, Mss, SYN, Tcp},
    },
};

/// Option kinds: the end of the list, one byte of padding, the maximum segment size.
const END: u8 = 0;
const PADDING: u8 = 1;
const MAXIMUM: u8 = 2;
/// Most bytes of options: fifteen words less the header's five.
const MAX_OPTIONS: usize = 40;
/// A mask of the places of options.
const PLACES: usize = 63;

/// Whether a frame may announce how large segments may be: a SYN or a SYN-ACK, with options.
#[inline(always)]
pub fn is_asked<I>(frame: &Frame<'_, I>) -> bool {
    match frame.l4 {
        L4::Tcp(tcp) => tcp.flags.get() & SYN != 0 && tcp.data_offset.get() >> 4 > 5,
        L4::Udp(_) => false,
    }
}

/// Writes `most` (host order) into the maximum segment size of the TCP packet, if that is larger, and
/// updates its checksum. The packet has been parsed; one without the option gets none.
///
/// `None` if there is nothing to write, or the list of options is broken: then it is as the sender
/// made it.
#[inline(always)]
pub fn clamp<P: Packet>(packet: &P, most: u16) -> Option<()> {
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    let offset = size_of::<Ethernet>() + usize::from(ip.version_ihl.get() & 15) * 4;
    clamp_at(packet, offset, most)
}

/// The same of a TCP header that begins at `offset`.
#[inline(always)]
pub fn clamp_at<P: Packet>(packet: &P, offset: usize, most: u16) -> Option<()> {
    let tcp: &Tcp = packet.header(offset)?;
    let first = offset + size_of::<Tcp>();
    let bytes = (usize::from(tcp.data_offset.get() >> 4) * 4).checked_sub(size_of::<Tcp>())?;
    let (mut next, mut beyond) = (0, 0);
    // Each place is looked at in turn; in less than the whole option there is none. Whatever options
    // came before it, the verifier knows the same at each place, and walks each once: so the bytes are
    // checked also where no option begins, and an option's length is cut. A length that is longer than
    // every list stays in `beyond`.
    for at in 0..=MAX_OPTIONS - size_of::<Mss>() {
        if at + size_of::<Mss>() > bytes {
            return None;
        }
        let option: &Mss = packet.header(first + at)?;
        if at != next {
            continue;
        }
        let length = match (option.kind.get(), usize::from(option.length.get())) {
            (PADDING, _) => 1,
            (MAXIMUM, length) if length == size_of::<Mss>() && beyond == 0 => {
                return write(tcp, option, at, most);
            }
            (END | MAXIMUM, _) | (_, 0 | 1) => return None,
            (_, length) => length,
        };
        // One assignment for all: were the padding's a block of its own, a Linux before 6.7 could take
        // the fall through it for a loop ("back-edge from insn"), and refuse the program.
        next = (at + length) & PLACES;
        beyond |= (at + length) & !PLACES;
    }
    None
}

/// Writes `most` into the option at the offset `at` behind the header.
#[inline(always)]
fn write(tcp: &Tcp, option: &Mss, at: usize, most: u16) -> Option<()> {
    let (old, new) = (option.value.get(), Be16::new(most));
    if old.get() <= most {
        return None;
    }
    option.value.set(new);
    // A field at an odd place counts in the sum with its bytes swapped (RFC 1071 section 2 (B)).
    let delta = if at & 1 == 0 {
        Delta::default().change16(old, new)
    } else {
        let swapped = |value: Be16| Be16::from_raw(value.raw().swap_bytes());
        Delta::default().change16(swapped(old), swapped(new))
    };
    tcp.checksum.set(delta.apply(tcp.checksum.get()));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        addr::Be32,
        wire::{
            Slice,
            checksum::{full, pseudo_header},
            parse_ipv4,
        },
    };

    /// A TCP frame with IP options (bytes), TCP flags and options, right checksum, two bytes of data.
    fn frame(ip_options: usize, flags: u8, options: &[u8]) -> Vec<u8> {
        assert_eq!((ip_options % 4, options.len() % 4), (0, 0));
        let mut tcp = vec![0x9c, 0x40, 0x19, 0x2b, 1, 2, 3, 4, 5, 6, 7, 8];
        let words = u8::try_from(5 + options.len() / 4).unwrap();
        tcp.extend([words << 4, flags, 1, 0, 0, 0, 0, 0]);
        tcp.extend(options);
        tcp.extend([0xab, 0xcd]);
        let total = u16::try_from(20 + ip_options + tcp.len()).unwrap();
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        bytes.extend([0x45 + u8::try_from(ip_options / 4).unwrap(), 0]);
        bytes.extend(total.to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        bytes.extend(vec![1; ip_options]);
        let sum = sum(&bytes, &tcp).get().to_be_bytes();
        tcp[16..18].copy_from_slice(&sum);
        bytes.extend(tcp);
        bytes
    }

    fn sum(ip: &[u8], tcp: &[u8]) -> Be16 {
        let address = |at: usize| Be32::new(u32::from_be_bytes(ip[at..at + 4].try_into().unwrap()));
        let length = u16::try_from(tcp.len()).unwrap();
        full(tcp, pseudo_header(address(26), address(30), 6, length))
    }

    /// What [`clamp`] to 1400 makes of these options; the rest of the frame stays, but for a checksum
    /// that stays right.
    fn clamped(ip_options: usize, options: &[u8]) -> Option<Vec<u8>> {
        let before = frame(ip_options, SYN, options);
        let mut bytes = before.clone();
        let written = clamp(&Slice::new(&mut bytes), 1400);
        let tcp = 34 + ip_options;
        assert_eq!(sum(&bytes, &bytes[tcp..]).raw(), 0, "{options:?}");
        let found = bytes[tcp + 20..tcp + 20 + options.len()].to_vec();
        let mut rest = bytes.clone();
        rest[tcp + 20..tcp + 20 + options.len()].copy_from_slice(options);
        rest[tcp + 16..tcp + 18].copy_from_slice(&before[tcp + 16..tcp + 18]);
        assert_eq!(rest, before, "{options:?}");
        assert_eq!(written.is_some(), bytes != before);
        written.map(|()| found)
    }

    #[test]
    fn a_larger_size_is_written_down_wherever_it_stands() {
        let wanted = |before: &[u8], after: &[u8]| {
            for ip_options in [0, 4, 40] {
                assert_eq!(
                    clamped(ip_options, before).as_deref(),
                    Some(after),
                    "{before:?}"
                );
            }
        };
        // 1460 is 0x05b4, 1400 is 0x0578.
        wanted(&[2, 4, 5, 0xb4], &[2, 4, 5, 0x78]);
        wanted(&[2, 4, 5, 0x79], &[2, 4, 5, 0x78]);
        wanted(&[2, 4, 0xff, 0xff], &[2, 4, 5, 0x78]);
        wanted(&[1, 2, 4, 5, 0xb4, 1, 1, 0], &[1, 2, 4, 5, 0x78, 1, 1, 0]);
        // Behind window scale (3), SACK permitted (2) and timestamps (10).
        wanted(
            &[
                3, 3, 7, 4, 2, 8, 10, 9, 9, 9, 9, 0, 0, 0, 0, 2, 4, 0x22, 0x60, 0,
            ],
            &[
                3, 3, 7, 4, 2, 8, 10, 9, 9, 9, 9, 0, 0, 0, 0, 2, 4, 5, 0x78, 0,
            ],
        );
        let last = |low| [vec![1; 36], vec![2, 4, 5, low]].concat();
        wanted(&last(0xb4), &last(0x78));
    }

    #[test]
    fn what_is_small_or_broken_or_absent_stays() {
        let options: [&[u8]; 13] = [
            &[],
            &[2, 4, 5, 0x78],
            &[2, 4, 0, 0],
            &[0, 2, 4, 5, 0xb4, 0, 0, 0],
            &[2, 3, 5, 0xb4],
            &[2, 5, 5, 0xb4, 0, 0, 0, 0],
            &[2, 0, 5, 0xb4],
            &[3, 0, 2, 4, 5, 0xb4, 0, 0],
            &[3, 1, 2, 4, 5, 0xb4, 0, 0],
            &[3, 255, 2, 4, 5, 0xb4, 0, 0],
            &[3, 68, 0, 0, 2, 4, 5, 0xb4],
            &[1, 1, 2, 4],
            &[8, 6, 2, 4, 5, 0xb4, 0, 0],
        ];
        for options in options {
            assert_eq!(clamped(0, options), None, "{options:?}");
        }
    }

    #[test]
    fn the_data_is_no_option() {
        // The list ends with the header: what follows would read as one more option.
        let mut bytes = frame(0, SYN, &[1, 1, 1, 1]);
        let end = bytes.len();
        bytes[end - 2..].copy_from_slice(&[2, 4]);
        bytes.extend([0xff, 0xff]);
        let before = bytes.clone();
        assert_eq!(clamp(&Slice::new(&mut bytes), 1400), None);
        assert_eq!(bytes, before);
        // Half of it in the header, half in the data.
        let mut bytes = frame(0, SYN, &[1, 1, 2, 4]);
        let before = bytes.clone();
        assert_eq!(clamp(&Slice::new(&mut bytes), 1400), None);
        assert_eq!(bytes, before);
    }

    #[test]
    fn every_truncation_is_survived() {
        let whole = frame(4, SYN, &[3, 3, 7, 2, 4, 5, 0xb4, 1]);
        for length in 0..whole.len() {
            let mut bytes = whole[..length].to_vec();
            let _ = clamp(&Slice::new(&mut bytes), 1400);
        }
    }

    #[test]
    fn only_a_syn_with_options_is_looked_at() {
        let asked = |flags: u8, options: &[u8]| {
            let mut bytes = frame(0, flags, options);
            let packet = Slice::new(&mut bytes);
            let ethernet = packet.header(0).unwrap();
            is_asked(&parse_ipv4(&packet, ethernet, packet.header(14).unwrap()).unwrap())
        };
        let mss = [2, 4, 5, 0xb4];
        assert!(asked(SYN, &mss) && asked(SYN | 0x10, &mss) && asked(SYN | 0xc0, &mss));
        assert!(!asked(0x10, &mss) && !asked(0x18, &mss) && !asked(SYN, &[]));
    }
}
