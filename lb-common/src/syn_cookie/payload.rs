//! The data of a segment whose checksum is verified elsewhere.

use network_types::ip::IpProto;

use crate::{
    addr::Be16,
    wire::{
        N32, Packet,
        checksum::Sum,
        header::{Ethernet, Ipv4, Tcp},
    },
};

const TCP_AT: usize = size_of::<Ethernet>() + size_of::<Ipv4>();
const WORD: usize = size_of::<u32>();
/// Most bytes of options: fifteen words less the header's five.
const MAX_OPTIONS: usize = 40;

/// What the data of a TCP segment over IPv4 without IP options must sum up to, so that its checksum is right (RFC 1071):
/// as bytes lie in memory, folded to 16 bits, where 0 is 0xffff. The packet has been parsed; `None` if it has not.
#[inline(always)]
pub fn sum<P: Packet>(packet: &P) -> Option<u16> {
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    let tcp: &Tcp = packet.header(TCP_AT)?;
    let bytes = ip
        .total_length
        .get()
        .get()
        .wrapping_sub(size_of::<Ipv4>() as u16);
    let mut sum = Sum::default()
        .add32(ip.source.get())
        .add32(ip.destination.get())
        .add16(Be16::new(IpProto::Tcp as u16))
        .add16(Be16::new(bytes));
    for at in (0..size_of::<Tcp>()).step_by(WORD) {
        let word: &N32 = packet.header(TCP_AT + at)?;
        sum = sum.add32(word.get());
    }
    let options = (usize::from(tcp.data_offset.get() >> 4) * WORD).checked_sub(size_of::<Tcp>())?;
    for at in (0..MAX_OPTIONS).step_by(WORD) {
        if at >= options {
            break;
        }
        let word: &N32 = packet.header(TCP_AT + size_of::<Tcp>() + at)?;
        sum = sum.add32(word.get());
    }
    // All of a segment with its checksum sums up to zero.
    Some(sum.checksum().raw())
}

/// Whether data sum up to that.
#[cfg(any(test, feature = "user"))]
pub fn is_whole(data: &[u8], sum: u16) -> bool {
    let found = !crate::wire::checksum::full(data, 0).raw();
    found == sum || found ^ sum == 0xffff && (found == 0 || sum == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        Slice,
        checksum::{full, pseudo_header},
    };

    #[test]
    fn data_sum_up_to_what_the_checksum_of_their_segment_says() {
        for options in [0, 12, 40] {
            for data in [&b"a"[..], b"hello", &[0xff; 1000], &[0; 8]] {
                let mut bytes = vec![0; 14];
                let tcp = 20 + options;
                let total = u16::try_from(20 + tcp + data.len()).unwrap();
                bytes.extend([0x45, 0]);
                bytes.extend(total.to_be_bytes());
                bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 1, 2, 3, 10, 1, 2, 4]);
                bytes.extend([0x9c, 0x40, 0x19, 0x2b, 1, 2, 3, 4, 5, 6, 7, 8]);
                bytes.extend([u8::try_from(tcp / 4).unwrap() << 4, 0x18, 1, 0, 0, 0, 0, 0]);
                bytes.extend((0..options).map(|byte| u8::try_from(byte * 3).unwrap()));
                bytes.extend(data);
                let address = |last: u32| crate::addr::Be32::new(0x0a01_0200 | last);
                let pseudo = pseudo_header(address(3), address(4), 6, total - 20);
                let checksum = full(&bytes[34..], pseudo);
                bytes[50..52].copy_from_slice(&checksum.get().to_be_bytes());
                let claimed = sum(&Slice::new(&mut bytes)).unwrap();
                assert!(is_whole(data, claimed), "{options} {data:?}");
                let mut broken = data.to_vec();
                broken[0] ^= 1;
                assert!(!is_whole(&broken, claimed), "{options} {data:?}");
                bytes[41] ^= 4;
                let claimed = sum(&Slice::new(&mut bytes)).unwrap();
                assert!(
                    !is_whole(data, claimed),
                    "another number: {options} {data:?}"
                );
            }
        }
    }
}
