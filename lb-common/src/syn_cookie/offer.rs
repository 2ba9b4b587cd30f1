//! What a client offers in its SYN, and the 8 bits of it that a cookie has.

use crate::{
    addr::Be32,
    wire::{
        N8, N16, N32, Packet,
        header::{Ethernet, Ipv4, Tcp, TcpOption},
    },
};

/// What the client of a cookie has offered. Whether it has timestamps stands in each of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Index of the largest segment size that it takes: see [`Offer::mss`]; 0 to 7.
    pub mss_class: u8,
    /// Whether it understands selective acknowledgments (RFC 2018).
    pub has_sack: bool,
    /// How far its windows are shifted, 14 at most (RFC 7323 section 2.3); none: it has offered no scale, so ours are
    /// not shifted either.
    pub scale: Option<u8>,
}

/// Segment sizes by class; of the last class it is what the network carries. Between them lie those that paths with
/// tunnels have: 1440 is PPPoE's with IPv6 below, 1410 VXLAN's, 1380 and 1360 those of IPsec, 1220 what IPv6 carries.
const SIZES: [u16; 7] = [DEFAULT_SIZE, 1220, 1300, 1360, 1380, 1410, 1440];
/// That of a client that announces none (RFC 9293 section 3.7.1).
const DEFAULT_SIZE: u16 = 536;
/// The class of what the network carries.
const WHOLE: u8 = SIZES.len() as u8;

/// The largest shift.
const MAX_SCALE: u8 = 14;
/// In the bits of an offer: no scale.
const NO_SCALE: u8 = 15;
const HAS_SACK: u8 = 1 << 4;
const CLASS_SHIFT: u32 = 5;

impl Offer {
    /// The class of a client that takes segments of `mss` bytes, on a network that carries `most`.
    #[inline(always)]
    pub const fn class(mss: u16, most: u16) -> u8 {
        if mss >= most {
            return WHOLE;
        }
        let [_, a, b, c, d, e, f] = SIZES;
        (mss >= a) as u8
            + (mss >= b) as u8
            + (mss >= c) as u8
            + (mss >= d) as u8
            + (mss >= e) as u8
            + (mss >= f) as u8
    }

    /// Most bytes in a segment to the client, on a network that carries `most`.
    #[inline(always)]
    pub const fn mss(self, most: u16) -> u16 {
        let [a, b, c, d, e, f, g] = SIZES;
        let size = match self.mss_class {
            0 => a,
            1 => b,
            2 => c,
            3 => d,
            4 => e,
            5 => f,
            6 => g,
            _ => most,
        };
        if size < most { size } else { most }
    }

    /// As a cookie has it.
    #[inline(always)]
    pub const fn bits(self) -> u8 {
        let scale = match self.scale {
            Some(scale) => scale,
            None => NO_SCALE,
        };
        let sack = if self.has_sack { HAS_SACK } else { 0 };
        self.mss_class << CLASS_SHIFT | sack | scale
    }

    /// That of a cookie with these bits.
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Self {
        let scale = bits & NO_SCALE;
        Self {
            mss_class: bits >> CLASS_SHIFT,
            has_sack: bits & HAS_SACK != 0,
            scale: if scale == NO_SCALE { None } else { Some(scale) },
        }
    }
}

/// The options of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptions {
    /// What a cookie has of them.
    pub offer: Offer,
    /// Whether the client has announced its segment size.
    pub has_mss: bool,
    /// The client's clock, if it has timestamps.
    pub time: Option<Be32>,
}

/// Kinds of options (RFC 9293 section 3.1, RFC 7323, RFC 2018).
const END: u8 = 0;
const PADDING: u8 = 1;
const MAXIMUM: u8 = 2;
const SCALE: u8 = 3;
const SACK: u8 = 4;
const TIMESTAMPS: u8 = 8;
/// Most bytes of options: fifteen words less the header's five.
const MAX_OPTIONS: usize = 40;
/// A mask of the places of options.
const PLACES: usize = 63;

/// Reads the options of a SYN over IPv4 without IP options, on a network that carries segments of `most` bytes. Of a list
/// that breaks off counts what came before, as for the kernel; of two of a kind the last one.
#[inline(always)]
pub fn read<P: Packet>(packet: &P, most: u16) -> Option<SynOptions> {
    const FIRST: usize = size_of::<Ethernet>() + size_of::<Ipv4>() + size_of::<Tcp>();
    let tcp: &Tcp = packet.header(FIRST - size_of::<Tcp>())?;
    let bytes = (usize::from(tcp.data_offset.get() >> 4) * 4).checked_sub(size_of::<Tcp>())?;
    let (mut mss, mut sack, mut scale, mut time) = (0, 0, NO_SCALE, 0);
    let mut stamped = 0_u32;
    let mut next = 0;
    // Each place is looked at in turn, as by `mss::clamp_at`: the verifier walks each once.
    for at in 0..MAX_OPTIONS - 1 {
        if at + size_of::<TcpOption>() > bytes {
            break;
        }
        let option: &TcpOption = packet.header(FIRST + at)?;
        if at != next {
            continue;
        }
        let (kind, length) = (option.kind.get(), usize::from(option.length.get()));
        if kind == PADDING {
            next = at + 1;
            continue;
        }
        if kind == END || length < 2 || at + length > bytes {
            break;
        }
        let value = FIRST + at + size_of::<TcpOption>();
        if kind == MAXIMUM && length == 4 {
            let size: &N16 = packet.header(value)?;
            mss = size.get().get();
        } else if kind == SCALE && length == 3 {
            let shift: &N8 = packet.header(value)?;
            scale = shift.get().min(MAX_SCALE);
        } else if kind == SACK && length == 2 {
            sack = HAS_SACK;
        } else if kind == TIMESTAMPS && length == 10 {
            let clock: &N32 = packet.header(value)?;
            time = clock.get().raw();
            stamped = 1;
        }
        next = (at + length) & PLACES;
    }
    Some(SynOptions {
        offer: Offer {
            mss_class: Offer::class(if mss == 0 { DEFAULT_SIZE } else { mss }, most),
            ..Offer::from_bits(sack | scale)
        },
        has_mss: mss != 0,
        time: (stamped != 0).then_some(Be32::from_raw(time)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Slice;

    /// The options of a SYN without anything behind its headers.
    fn read_it(options: &[u8]) -> Option<SynOptions> {
        let mut bytes = vec![0; 54];
        bytes[46] = (5 + u8::try_from(options.len() / 4).unwrap()) << 4;
        bytes.extend(options);
        read(&Slice::new(&mut bytes), 1460)
    }

    fn found(mss_class: u8, has_sack: bool, scale: Option<u8>, time: Option<u32>) -> SynOptions {
        SynOptions {
            offer: Offer {
                mss_class,
                has_sack,
                scale,
            },
            has_mss: mss_class != 0,
            time: time.map(Be32::new),
        }
    }

    #[test]
    fn the_offers_of_usual_clients_are_read() {
        let linux = [
            2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
        ];
        let with = Some(0x0102_0304);
        assert_eq!(read_it(&linux), Some(found(7, true, Some(7), with)));
        let windows = [2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2];
        assert_eq!(read_it(&windows), Some(found(7, true, Some(8), None)));
        let macos = [
            2, 4, 5, 0xb4, 1, 3, 3, 6, 1, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 4, 2, 0, 0,
        ];
        assert_eq!(read_it(&macos), Some(found(7, true, Some(6), with)));
        assert_eq!(read_it(&[]), Some(found(0, false, None, None)));
        let small = [2, 4, 5, 0x28];
        assert_eq!(read_it(&small), Some(found(2, false, None, None)));
    }

    #[test]
    fn of_a_broken_list_counts_what_came_before() {
        let some = Some(found(7, false, None, None));
        for options in [
            &[2, 4, 5, 0xb4, 3, 0, 7, 0][..],
            &[2, 4, 5, 0xb4, 3, 1, 7, 0],
            &[2, 4, 5, 0xb4, 3, 5, 7, 0],
            &[2, 4, 5, 0xb4, 3, 255, 7, 0],
            &[2, 4, 5, 0xb4, 1, 1, 1, 3],
            &[2, 4, 5, 0xb4, 0, 3, 3, 7],
            // Of another length than theirs.
            &[2, 4, 5, 0xb4, 3, 4, 7, 0],
            &[2, 4, 5, 0xb4, 4, 3, 0, 1],
            &[2, 4, 5, 0xb4, 8, 6, 1, 2, 3, 4, 1, 1],
        ] {
            assert_eq!(read_it(options), some, "{options:?}");
        }
        assert_eq!(read_it(&[3, 3, 200, 0]).unwrap().offer.scale, Some(14));
        assert_eq!(read_it(&[3, 3, 15, 0]).unwrap().offer.scale, Some(14));
        assert_eq!(read_it(&[1; 40]), Some(found(0, false, None, None)));
        let last = [&[1; 37][..], &[3, 3, 9]].concat();
        assert_eq!(read_it(&last).unwrap().offer.scale, Some(9));
    }

    #[test]
    fn no_list_reads_beyond_the_frame() {
        for length in 0..=40 {
            for kind in [2, 3, 4, 8, 99] {
                for at in 0..length {
                    let mut options = vec![1; length / 4 * 4];
                    if let Some(rest) = options.get_mut(at..) {
                        rest.fill(kind);
                    }
                    assert!(read_it(&options).is_some(), "{options:?}");
                }
            }
        }
    }

    #[test]
    fn an_offer_fits_in_a_byte() {
        for bits in 0..=u8::MAX {
            assert_eq!(Offer::from_bits(bits).bits(), bits);
        }
    }

    #[test]
    fn a_client_never_gets_more_than_it_takes() {
        for most in [1220, 1400, 1460, 8960] {
            for mss in 536..=9000 {
                let offer = Offer {
                    mss_class: Offer::class(mss, most),
                    has_sack: false,
                    scale: None,
                };
                let given = offer.mss(most);
                assert!(
                    given <= mss.max(536) && given <= most,
                    "{mss} {most}: {given}"
                );
                assert!(given == most || mss < most, "{mss} {most}: {given}");
            }
        }
        let tiny = Offer {
            mss_class: Offer::class(100, 1460),
            has_sack: false,
            scale: None,
        };
        assert_eq!(tiny.mss(1460), 536, "as every stack has to take (RFC 9293)");
    }
}
