//! The SYN-ACK that a SYN becomes. It has no option that the SYN has not, so it is never longer.

use super::{
    Cookie,
    handshake::{OpeningOptions, OpeningSegment},
    offer::SynOptions,
};
use crate::{
    addr::Be32,
    maps::flow::FlowKey,
    wire::{
        Packet,
        header::{ACK, Ethernet, Ipv4, SYN, Tcp},
    },
};

/// How far our windows are shifted to the left, as is promised to every client with a scale. The windows of a SYN-ACK
/// are not.
pub const PROMISED_SCALE: u8 = 7;
/// Most bytes of a hello that a client may send before its connection has an end here: two segments. Not less than two:
/// Linux cuts its segments to half of the largest window that it has seen.
pub const MAX_WINDOW: u16 = 2920;

/// What a SYN is answered with.
#[derive(Clone, Copy, Debug)]
pub struct SynAck {
    /// Number and clock.
    pub cookie: Cookie,
    /// What the client offered.
    pub options: SynOptions,
    /// Most bytes in a segment from the client.
    pub mss: u16,
}

impl SynAck {
    /// Bytes of the frame, without padding.
    #[inline(always)]
    pub const fn frame_bytes(&self) -> usize {
        self.written().frame_bytes()
    }

    #[inline(always)]
    const fn written(&self) -> OpeningOptions {
        let SynOptions { offer, mss, time } = self.options;
        OpeningOptions {
            mss: if mss == 0 { None } else { Some(self.mss) },
            scale: match offer.scale {
                Some(_) => Some(PROMISED_SCALE),
                None => None,
            },
            has_sack: offer.has_sack,
            times: match time {
                Some(time) => Some((Be32::new(self.cookie.time), time)),
                None => None,
            },
        }
    }

    /// Most bytes that the client may send.
    #[inline(always)]
    const fn window(&self) -> u16 {
        let double = self.mss.saturating_mul(2);
        if double < MAX_WINDOW {
            double
        } else {
            MAX_WINDOW
        }
    }

    /// Writes it over the SYN of this flow, which has come over IPv4 without IP options, in a frame of at least
    /// [`Self::frame_bytes`]. The checksum stays open, for the kernel to compute, where `is_open`.
    #[inline(always)]
    pub fn write<P: Packet>(&self, packet: &P, key: &FlowKey, is_open: bool) -> Option<()> {
        let ethernet: &Ethernet = packet.header(0)?;
        let (us, client) = (ethernet.destination.get(), ethernet.source.get());
        ethernet.destination.set(client);
        ethernet.source.set(us);
        let tcp: &Tcp = packet.header(size_of::<Ethernet>() + size_of::<Ipv4>())?;
        let answer = OpeningSegment {
            from: (key.vip, key.vip_port),
            to: (key.client, key.client_port),
            sequence: self.cookie.number,
            acknowledgment: tcp.sequence.get().get().wrapping_add(1),
            flags: SYN | ACK,
            window: self.window(),
            options: self.written(),
        };
        answer.write(packet, is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::offer::{self, SynOffer},
        *,
    };
    use crate::wire::{
        Slice,
        checksum::{full, pseudo_header},
        parse_ipv4,
    };

    const LINUX: [u8; 20] = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
    ];

    /// The frame of a SYN with these options and data.
    fn syn(options: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let total = u8::try_from(40 + options.len() + data.len()).unwrap();
        bytes.extend([0x45, 0, 0, total, 0, 1, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        bytes.extend([0x9c, 0x40, 0x19, 0x2b, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        let words = 5 + u8::try_from(options.len() / 4).unwrap();
        bytes.extend([words << 4, SYN, 0xff, 0xff, 1, 2, 0, 0]);
        bytes.extend(options);
        bytes.extend(data);
        bytes
    }

    /// The answer, of which the frame has so many bytes.
    fn answered(options: &[u8], data: &[u8], is_open: bool) -> (Vec<u8>, SynAck) {
        let mut bytes = syn(options, data);
        let packet = Slice::new(&mut bytes);
        let ethernet: &Ethernet = packet.header(0).unwrap();
        let frame = parse_ipv4(&packet, ethernet, packet.header(14).unwrap()).unwrap();
        let answer = SynAck {
            cookie: Cookie {
                number: 0x0102_0304,
                time: 0x0506_0708,
            },
            options: offer::read(&packet, 1460).unwrap(),
            mss: 1400,
        };
        let key = FlowKey::of_request(&frame, 1);
        answer.write(&packet, &key, is_open).unwrap();
        let length = answer.frame_bytes();
        assert!(
            length <= bytes.len() - data.len(),
            "longer than the SYN: {options:?}"
        );
        bytes.truncate(length);
        (bytes, answer)
    }

    fn checked(bytes: &[u8]) {
        let length = u16::try_from(bytes.len() - 34).unwrap();
        let (vip, client) = (Be32::new(0xc0a8_cb6e), Be32::new(0xc0a8_cb32));
        assert_eq!(full(&bytes[14..34], 0).raw(), 0, "IP checksum");
        let pseudo = pseudo_header(vip, client, 6, length);
        assert_eq!(full(&bytes[34..], pseudo).raw(), 0, "TCP checksum");
    }

    #[test]
    fn it_answers_what_was_offered() {
        let (bytes, _) = answered(&LINUX, &[], false);
        checked(&bytes);
        assert_eq!(bytes[..14], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        assert_eq!(bytes[16..18], [0, 60]);
        assert_eq!(bytes[26..34], [192, 168, 203, 110, 192, 168, 203, 50]);
        assert_eq!(bytes[34..38], [0x19, 0x2b, 0x9c, 0x40]);
        assert_eq!(bytes[38..42], [1, 2, 3, 4], "our number");
        assert_eq!(bytes[42..46], [0; 4], "behind the client's, which wraps");
        assert_eq!(
            bytes[46..50],
            [0xa0, SYN | ACK, 0x0a, 0xf0],
            "a window of 2,800"
        );
        assert_eq!(bytes[52..54], [0, 0], "urgent");
        assert_eq!(bytes[54..62], [2, 4, 5, 0x78, 1, 3, 3, 7]);
        assert_eq!(bytes[62..], [4, 2, 8, 10, 5, 6, 7, 8, 1, 2, 3, 4]);
    }

    #[test]
    fn it_has_no_option_that_the_syn_has_not() {
        let times = [8, 10, 1, 2, 3, 4, 0, 0, 0, 0];
        let padded = |options: &[&[u8]]| {
            let mut options = options.concat();
            options.resize(options.len().next_multiple_of(4), 0);
            options
        };
        for which in 0..16 {
            let has = |bit: u32| which >> bit & 1 != 0;
            let part = |bit, part: &'static [u8]| if has(bit) { part } else { &[] };
            let options = padded(&[
                part(0, &[2, 4, 5, 0xb4]),
                part(1, &[3, 3, 7]),
                part(2, &[4, 2]),
                if has(3) { &times } else { &[] },
            ]);
            let (bytes, answer) = answered(&options, b"early", false);
            checked(&bytes);
            let read = offer::read(&Slice::new(&mut bytes.clone()), 1400).unwrap();
            assert_eq!(read.mss, if has(0) { 1400 } else { 0 });
            assert_eq!(read.offer.scale, has(1).then_some(PROMISED_SCALE));
            assert_eq!(read.offer.has_sack, has(2));
            assert_eq!(read.time.map(Be32::get), has(3).then_some(0x0506_0708));
            assert_eq!(answer.options.offer.has_sack, has(2));
        }
        assert_eq!(SynOffer::class(1400, 1400), 7);
    }

    #[test]
    fn its_checksum_may_stay_open() {
        let (mut open, _) = answered(&LINUX, &[], true);
        let (whole, _) = answered(&LINUX, &[], false);
        assert_ne!(open, whole);
        let sum = full(&open[34..], 0).raw();
        open[50..52].copy_from_slice(&sum.to_ne_bytes());
        assert_eq!(open, whole);
    }
}
