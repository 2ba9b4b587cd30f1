//! What a client offers in its SYN, and the 8 bits of it that a cookie has.

use crate::{
    addr::Be32,
    wire::{
        Packet,
        header::{Mss, Tcp, TcpOption, Timestamps, WindowScale},
        tcp_options::{OptionList, SACK_PERMITTED, SCALE, SIZE, TIMES},
    },
};

/// What the client of a cookie has offered. Whether it has timestamps stands in each of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOffer {
    /// Index of the largest segment size that it takes: see [`SynOffer::mss`]; 0 to 7.
    pub mss_class: u8,
    /// Whether it understands selective acknowledgments (RFC 2018).
    pub has_sack: bool,
    /// How far its windows are shifted, 14 at most (RFC 7323 section 2.3); none: it has offered no scale, so ours are
    /// not shifted either.
    pub scale: Option<u8>,
}

/// Segment sizes by class; of the last class it is what the network carries. Between them lie those that paths with
/// tunnels have: 1440 is PPPoE's with IPv6 below, 1410 VXLAN's, 1360 that of IPsec, 1220 what IPv6 carries. The first one is
/// for less than the default one, and the least that Linux sends.
const SIZES: [u16; 7] = [LEAST_SIZE, DEFAULT_SIZE, 1220, 1300, 1360, 1410, 1440];
const LEAST_SIZE: u16 = 88;
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

impl SynOffer {
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
    pub offer: SynOffer,
    /// Most bytes in a segment to the client, as it has announced; 0: it has not.
    pub mss: u16,
    /// The client's clock, if it has timestamps.
    pub time: Option<Be32>,
}

/// The options of a SYN that has been parsed, on a network that carries segments of `most` bytes: of two of a kind the
/// last one. `None` if the list is broken.
#[inline(always)]
pub fn read<P: Packet>(packet: &P, most: u16) -> Option<SynOptions> {
    let list = OptionList::of(packet)?;
    // No `Option`: the compiler would move its number without having any, which Linux before 6.3 refuses.
    let (mut mss, mut sack, mut scale, mut has_time, mut time) = (0, 0, NO_SCALE, false, 0);
    list.walk(packet, |at, option| {
        let value = list.tcp + size_of::<Tcp>() + at;
        let wanted = match option.kind.get() {
            SIZE => {
                let size: &Mss = packet.header(value)?;
                mss = size.value.get().get();
                size_of::<Mss>()
            }
            SCALE => {
                let scaled: &WindowScale = packet.header(value)?;
                scale = scaled.shift.get().min(MAX_SCALE);
                size_of::<WindowScale>()
            }
            SACK_PERMITTED => {
                sack = HAS_SACK;
                size_of::<TcpOption>()
            }
            TIMES => {
                let times: &Timestamps = packet.header(value)?;
                (has_time, time) = (true, times.value.get().raw());
                size_of::<Timestamps>()
            }
            _ => return Some(0),
        };
        Some(usize::from(option.length.get()) ^ wanted)
    })?;
    list.is_inside(packet)?;
    Some(SynOptions {
        offer: SynOffer {
            mss_class: SynOffer::class(if mss == 0 { DEFAULT_SIZE } else { mss }, most),
            ..SynOffer::from_bits(sack | scale)
        },
        mss,
        time: has_time.then_some(Be32::from_raw(time)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Slice;

    /// The options of a SYN without anything behind its headers.
    fn read_it(options: &[u8]) -> Option<SynOptions> {
        let mut bytes = vec![0; 54];
        bytes[14] = 0x45;
        bytes[46] = (5 + u8::try_from(options.len() / 4).unwrap()) << 4;
        bytes.extend(options);
        read(&Slice::new(&mut bytes), 1460)
    }

    fn found(mss_class: u8, has_sack: bool, scale: Option<u8>, time: Option<u32>) -> SynOptions {
        SynOptions {
            offer: SynOffer {
                mss_class,
                has_sack,
                scale,
            },
            mss: match mss_class {
                1 => 0,
                3 => 1320,
                _ => 1460,
            },
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
        assert_eq!(read_it(&[]), Some(found(1, false, None, None)));
        let small = [2, 4, 5, 0x28];
        assert_eq!(read_it(&small), Some(found(3, false, None, None)));
    }

    #[test]
    fn a_broken_list_is_none() {
        for options in [
            &[2, 4, 5, 0xb4, 3, 0, 7, 0][..],
            &[2, 4, 5, 0xb4, 3, 1, 7, 0],
            &[2, 4, 5, 0xb4, 3, 5, 7, 0],
            &[2, 4, 5, 0xb4, 3, 255, 7, 0],
            &[2, 4, 5, 0xb4, 1, 1, 1, 3],
            // Of another length than theirs.
            &[2, 4, 5, 0xb4, 3, 4, 7, 0],
            &[2, 4, 5, 0xb4, 4, 3, 0, 1],
            &[2, 4, 5, 0xb4, 8, 6, 1, 2, 3, 4, 1, 1],
        ] {
            assert_eq!(read_it(options), None, "{options:?}");
        }
        let some = Some(found(7, false, None, None));
        assert_eq!(
            read_it(&[2, 4, 5, 0xb4, 0, 3, 3, 7]),
            some,
            "behind the end"
        );
        assert_eq!(read_it(&[3, 3, 200, 0]).unwrap().offer.scale, Some(14));
        assert_eq!(read_it(&[3, 3, 15, 0]).unwrap().offer.scale, Some(14));
        assert_eq!(read_it(&[1; 40]), Some(found(1, false, None, None)));
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
                    let _read = read_it(&options);
                }
            }
        }
    }

    #[test]
    fn an_offer_fits_in_a_byte() {
        for bits in 0..=u8::MAX {
            assert_eq!(SynOffer::from_bits(bits).bits(), bits);
        }
    }

    #[test]
    fn a_client_never_gets_more_than_it_takes() {
        for most in [1220, 1400, 1460, 8960] {
            for mss in 88..=9000 {
                let offer = SynOffer {
                    mss_class: SynOffer::class(mss, most),
                    has_sack: false,
                    scale: None,
                };
                let given = offer.mss(most);
                assert!(given <= mss && given <= most, "{mss} {most}: {given}");
                assert!(given == most || mss < most, "{mss} {most}: {given}");
            }
        }
    }
}
