//! ICMP messages, and their checksums computed from all of their bytes.

use lb_common::{
    icmp::{Message, parse},
    verdict::DropReason,
    wire::{
        Packet as _, Slice,
        checksum::{full, pseudo_header},
        header::{Ethernet, Ipv4},
    },
};

use super::{ETHERNET, address, put, seal_header, word};

/// Bytes of an ICMP header.
pub const HEADER: usize = 8;

/// Parses an ICMP message and hands it on, if it is one.
pub fn parsed<T>(
    bytes: &mut [u8],
    then: impl FnOnce(&Slice<'_>, &Message<'_>) -> Result<T, DropReason>,
) -> Result<T, DropReason> {
    let packet = Slice::new(bytes);
    let ethernet: &Ethernet = packet.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv4 = packet.header(ETHERNET).ok_or(DropReason::Malformed)?;
    let message = parse(&packet, ethernet, ip)?;
    then(&packet, &message)
}

/// Where the parts of a parsed message are.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Where the ICMP header begins.
    pub icmp: usize,
    /// Where the packet ends, and padding begins.
    pub end: usize,
}

impl Parts {
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            icmp: ETHERNET + usize::from(bytes[ETHERNET] & 15) * 4,
            end: ETHERNET + usize::from(word(bytes, ETHERNET + 2)),
        }
    }
}

/// Where the parts of what a parsed error quotes are.
#[derive(Clone, Copy)]
pub struct Quoted {
    /// Where its IP header begins.
    pub ip: usize,
    /// Where layer 4 begins.
    pub l4: usize,
    /// Where layer 4's checksum is, if it is quoted.
    pub checksum: Option<usize>,
}

impl Quoted {
    pub fn of(bytes: &[u8]) -> Self {
        let Parts { icmp, end } = Parts::of(bytes);
        let ip = icmp + HEADER;
        let l4 = ip + usize::from(bytes[ip] & 15) * 4;
        let checksum = l4 + if bytes[ip + 9] == 17 { 6 } else { 16 };
        Self {
            ip,
            l4,
            checksum: Some(checksum).filter(|at| at + 2 <= end),
        }
    }

    /// What is left of the sums of the IP header and of as much of layer 4 as is quoted; `None` for a layer 4
    /// without a checksum. Both zeros count as one.
    pub fn sums(bytes: &[u8]) -> (u16, Option<u16>) {
        let Self { ip, l4, checksum } = Self::of(bytes);
        let protocol = bytes[ip + 9];
        let pseudo = pseudo_header(
            address(bytes, ip + 12),
            address(bytes, ip + 16),
            protocol,
            0,
        );
        let is_summed = checksum.is_some_and(|at| protocol != 17 || word(bytes, at) != 0);
        let end = Parts::of(bytes).end;
        let left = full(&bytes[l4..end], pseudo).get() % 0xffff;
        let header = full(&bytes[ip..l4], 0).get() % 0xffff;
        (header, is_summed.then_some(left))
    }
}

/// What is left of the sums of the outer IP header and of the message; both zeros count as one.
pub fn sums(bytes: &[u8]) -> (u16, u16) {
    let Parts { icmp, end } = Parts::of(bytes);
    let ip = full(&bytes[ETHERNET..icmp], 0).get() % 0xffff;
    (ip, full(&bytes[icmp..end], 0).get() % 0xffff)
}

/// Writes the checksums of the outer IP header and of the message anew.
pub fn seal(bytes: &mut [u8]) {
    seal_header(bytes);
    let Parts { icmp, end } = Parts::of(bytes);
    put(bytes, icmp + 2, 0);
    let sum = full(&bytes[icmp..end], 0).get();
    put(bytes, icmp + 2, sum);
}
