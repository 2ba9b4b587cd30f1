//! A connection to a shared VIP whose backend is chosen by the client's first bytes, and opened with the client's own
//! numbers: so nothing that the client sends needs another number, and what the data plane has sent the backend in its
//! name, the client itself repeats.

#![expect(
    clippy::cast_possible_truncation,
    reason = "parts of numbers are meant, and sizes of headers are small"
)]

use network_types::ip::IpProto;

use crate::{
    addr::{Be16, Be32},
    maps::{
        hello::{HELLO_HAS_TIMES, HelloHead, HelloPart},
        splice::{BOUND_HAS_SCALE, BOUND_HAS_TIMES, Binding},
    },
    reject::v4::{ReplyAddresses, write_ip},
    syn_cookie::{
        handshake::{OpeningOptions, OpeningSegment},
        offer::{SynOffer, SynOptions},
    },
    wire::{
        N32, Packet,
        checksum::Sum,
        header::{ACK, Ethernet, Ipv4, PSH, SYN, Tcp},
    },
};

/// An address and a port.
pub type End = (Be32, Be16);

const HEADERS: usize = size_of::<Ethernet>() + size_of::<Ipv4>() + size_of::<Tcp>();
/// Bytes of the options of a segment with timestamps, the first word of which this is.
const TIMES_BYTES: usize = 12;
const TIMES: u32 = 0x0101_080a;

/// The SYN to a backend on a network that carries segments of `most` bytes, for a client that has sent this hello and takes
/// segments of `mss` bytes. Its window is the client's, as far as it can be without a shift.
#[inline(always)]
pub const fn syn(head: &HelloHead, from: End, to: End, mss: u16, most: u16) -> OpeningSegment {
    let offer = SynOffer::from_bits(head.number as u8);
    let shift = match offer.scale {
        Some(scale) => scale as u32,
        None => 0,
    };
    let window = (head.window as u32) << (shift & 15);
    let times = match head.flags & HELLO_HAS_TIMES {
        0 => None,
        _ => Some((Be32::new(head.time), Be32::new(0))),
    };
    OpeningSegment {
        from,
        to,
        // The SYN's own number is the one in front of the first byte's.
        sequence: head.number_of(HelloPart::Header).wrapping_sub(1),
        acknowledgment: 0,
        flags: SYN,
        window: if window > u16::MAX as u32 {
            u16::MAX
        } else {
            window as u16
        },
        options: OpeningOptions {
            mss: Some(if mss < most { mss } else { most }),
            scale: offer.scale,
            has_sack: offer.has_sack,
            times,
        },
    }
}

/// Whether a backend that has sent these options in its SYN-ACK has agreed to what the client of a bound flow was promised.
/// Selective acknowledgments are no matter: it ignores those that it does not understand.
#[inline(always)]
pub const fn has_agreed(binding: &Binding, options: SynOptions) -> bool {
    let has_times = binding.flags & BOUND_HAS_TIMES != 0;
    let has_scale = binding.flags & BOUND_HAS_SCALE != 0;
    options.time.is_some() == has_times && options.offer.scale.is_some() == has_scale
}

/// Whether a backend that takes segments of `mss` bytes takes those of the client with this hello, which is one or two of them.
#[inline(always)]
pub const fn is_taken(head: &HelloHead, mss: u16) -> bool {
    let [first, second] = head.lengths;
    let longest = if second > first { second } else { first };
    let times = if head.flags & HELLO_HAS_TIMES != 0 {
        TIMES_BYTES
    } else {
        0
    };
    head.announced <= mss && longest as usize + times <= mss as usize
}

/// A segment of the client's hello, as it goes to the backend behind its SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub struct HelloSegment {
    /// Its sender to the backend.
    pub from: End,
    /// The backend.
    pub to: End,
    /// The number behind the backend's SYN.
    pub acknowledgment: u32,
    /// The backend's clock.
    pub echo: Be32,
    /// Which part it is.
    pub part: HelloPart,
}

impl HelloSegment {
    /// Bytes of the frame, and where the data begin in it.
    #[inline(always)]
    pub const fn frame_bytes(&self, head: &HelloHead) -> (usize, usize) {
        let options = if head.flags & HELLO_HAS_TIMES != 0 {
            TIMES_BYTES
        } else {
            0
        };
        let stored = head.segment(self.part);
        (
            HEADERS + options + stored.length as usize,
            HEADERS + options,
        )
    }

    /// Writes all but the stations and the data, which have been written.
    #[inline(always)]
    pub fn write<P: Packet>(&self, packet: &P, head: &HelloHead) -> Option<()> {
        let ((from, from_port), (to, to_port)) = (self.from, self.to);
        let has_times = head.flags & HELLO_HAS_TIMES != 0;
        let stored = head.segment(self.part);
        let header = (size_of::<Tcp>() + if has_times { TIMES_BYTES } else { 0 }) as u16;
        let bytes = header + stored.length;
        let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
        write_ip(ip, ReplyAddresses { from, to }, bytes, IpProto::Tcp as u8);
        let tcp: &Tcp = packet.header(HEADERS - size_of::<Tcp>())?;
        let sequence = Be32::new(head.number_of(self.part));
        let acknowledgment = Be32::new(self.acknowledgment);
        let offset = ((header / 4) as u8) << 4;
        let flags = if stored.length == 0 { ACK } else { ACK | PSH };
        let window = Be16::new(head.window);
        tcp.source.set(from_port);
        tcp.destination.set(to_port);
        tcp.sequence.set(sequence);
        tcp.acknowledgment.set(acknowledgment);
        tcp.data_offset.set(offset);
        tcp.flags.set(flags);
        tcp.window.set(window);
        tcp.urgent.set(Be16::default());
        let mut sum = Sum::default()
            .add16(Be16::from_raw(stored.sum))
            .add32(from)
            .add32(to)
            .add16(Be16::new(IpProto::Tcp as u16))
            .add16(Be16::new(bytes))
            .add16(from_port)
            .add16(to_port)
            .add32(sequence)
            .add32(acknowledgment)
            .add16(Be16::new(u16::from(offset) << 8 | u16::from(flags)))
            .add16(window);
        if has_times {
            let words = [Be32::new(TIMES), Be32::new(head.time), self.echo];
            let mut at = HEADERS;
            for word in words {
                let place: &N32 = packet.header(at)?;
                place.set(word);
                sum = sum.add32(word);
                at += size_of::<N32>();
            }
        }
        tcp.checksum.set(sum.checksum());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        maps::flow::FlowKey,
        syn_cookie::{offer, payload},
        wire::{
            Slice,
            checksum::{full, pseudo_header},
            parse_ipv4,
        },
    };

    const SNAT: End = (Be32::new(0x0a20_6032), Be16::new(2000));
    const BACKEND: End = (Be32::new(0x0a20_6069), Be16::new(30_918));

    fn head(data: &[u8], flags: u32) -> HelloHead {
        let offer = SynOffer {
            mss_class: 7,
            has_sack: true,
            scale: Some(7),
        };
        HelloHead {
            key: FlowKey::default(),
            isn: 0xffff_ffff,
            number: 0x0102_0300 | u32::from(offer.bits()),
            time: 0x0506_0708,
            window: 502,
            sums: [!full(data, 0).raw(), 0],
            lengths: [u16::try_from(data.len()).unwrap(), 0],
            flags,
            announced: 536,
            ..HelloHead::default()
        }
    }

    fn checked(bytes: &[u8]) {
        let length = u16::try_from(bytes.len() - 34).unwrap();
        assert_eq!(full(&bytes[14..34], 0).raw(), 0, "IP checksum");
        let pseudo = pseudo_header(SNAT.0, BACKEND.0, 6, length);
        assert_eq!(full(&bytes[34..], pseudo).raw(), 0, "TCP checksum");
    }

    #[test]
    fn the_backend_gets_the_syn_of_the_client() {
        let head = head(b"hello", HELLO_HAS_TIMES);
        let syn = syn(&head, SNAT, BACKEND, 1400, 1380);
        let mut bytes = vec![0; syn.options.frame_bytes()];
        bytes[14] = 0x45;
        syn.write(&Slice::new(&mut bytes), false).unwrap();
        checked(&bytes);
        assert_eq!(bytes[38..46], [255, 255, 255, 255, 0, 0, 0, 0]);
        assert_eq!(bytes[47..50], [SYN, 0xfb, 0], "502 units of 128 bytes");
        let read = offer::read(&Slice::new(&mut bytes), 1460).unwrap();
        assert_eq!(
            (read.mss, read.offer.scale, read.offer.has_sack),
            (1380, Some(7), true)
        );
        assert_eq!(read.time.map(Be32::get), Some(0x0506_0708));
        let wide = HelloHead {
            window: 1000,
            ..head
        };
        assert_eq!(super::syn(&wide, SNAT, BACKEND, 1400, 1380).window, 65_535);
        let plain = HelloHead {
            number: 0xef,
            flags: 0,
            ..head
        };
        let plain = super::syn(&plain, SNAT, BACKEND, 1400, 1460);
        assert_eq!(
            (plain.window, plain.options.scale, plain.options.times),
            (502, None, None)
        );
    }

    #[test]
    fn a_segment_is_the_clients() {
        for data in [&b"hello"[..], b"hello of six", &[7; 1448], b""] {
            for flags in [0, HELLO_HAS_TIMES] {
                let head = head(data, flags);
                written(&head, HelloPart::First, data);
                if data.is_empty() {
                    continue;
                }
                // Behind one of six bytes.
                let [length, sum] = [head.lengths[0], head.sums[0]];
                let head = HelloHead {
                    lengths: [6, length],
                    sums: [1, sum],
                    ..head
                };
                assert!(head.is_in_two() && head.bytes() == 6 + u32::from(length));
                written(&head, HelloPart::Second, data);
            }
        }
    }

    /// The frame of a segment with this data.
    fn written(head: &HelloHead, part: HelloPart, data: &[u8]) {
        let segment = HelloSegment {
            from: SNAT,
            to: BACKEND,
            acknowledgment: 0x1112_1314,
            echo: Be32::new(0x2122_2324),
            part,
        };
        let (length, at) = segment.frame_bytes(head);
        let has_times = head.flags & HELLO_HAS_TIMES != 0;
        let headers = if has_times { 66 } else { 54 };
        assert_eq!((at, length), (headers, headers + data.len()));
        let mut bytes = vec![0; length];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[at..].copy_from_slice(data);
        segment.write(&Slice::new(&mut bytes), head).unwrap();
        checked(&bytes);
        let sequence = if part == HelloPart::Second { 6 } else { 0 };
        assert_eq!(bytes[38..46], [0, 0, 0, sequence, 0x11, 0x12, 0x13, 0x14]);
        let push = if data.is_empty() { 0 } else { PSH };
        assert_eq!(bytes[47..50], [ACK | push, 1, 0xf6]);
        if has_times {
            assert_eq!(
                bytes[54..66],
                [1, 1, 8, 10, 5, 6, 7, 8, 0x21, 0x22, 0x23, 0x24]
            );
        }
        let packet = Slice::new(&mut bytes);
        let ip: &Ipv4 = packet.header(14).unwrap();
        let frame = parse_ipv4(&packet, packet.header(0).unwrap(), ip).unwrap();
        assert_eq!(usize::from(frame.payload), data.len());
        assert!(payload::is_whole(data, payload::sum(&packet).unwrap()));
    }

    #[test]
    fn a_backend_agrees_to_what_was_promised() {
        let options = |scale: Option<u8>, time: Option<u32>, mss| SynOptions {
            offer: SynOffer {
                mss_class: 0,
                has_sack: false,
                scale,
            },
            mss,
            time: time.map(Be32::new),
        };
        for (promised, has_scale) in [
            (None, false),
            (None, true),
            (Some(1), false),
            (Some(1), true),
        ] {
            let binding = Binding::bound(7, 1, promised, has_scale);
            for (time, scale) in [
                (None, None),
                (None, Some(9)),
                (Some(1), None),
                (Some(1), Some(9)),
            ] {
                let is_same = time == promised && scale.is_some() == has_scale;
                assert_eq!(has_agreed(&binding, options(scale, time, 0)), is_same);
            }
        }
        let timed = head(&[7; 1000], HELLO_HAS_TIMES);
        assert!(is_taken(&timed, 1012) && !is_taken(&timed, 1011));
        let longer = HelloHead {
            lengths: [536, 1000],
            ..timed
        };
        assert!(is_taken(&longer, 1012) && !is_taken(&longer, 1011));
        assert!(
            is_taken(&head(&[7; 1000], 0), 1000)
                && is_taken(&head(&[7; 524], HELLO_HAS_TIMES), 536)
        );
        // What it sends behind the hello may be as long as it was promised.
        let promised = HelloHead {
            announced: 1460,
            ..timed
        };
        assert!(is_taken(&promised, 1460) && !is_taken(&promised, 1459));
    }
}
