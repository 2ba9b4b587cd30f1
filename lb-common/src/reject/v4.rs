//! A frame that cannot be served becomes the refusal of its own sender.
//!
//! XDP makes one frame of one frame, so an answer is written into the frame that it answers. Answers
//! have a rate of their own per CPU, and none is made for a reset or for a group address.

use network_types::ip::IpProto;

use crate::{
    addr::{Be16, Be32},
    pod::pod_struct,
    rate::Bucket,
    wire::{
        Frame, Ipv4Frame, L4, OFFSET_MASK, Packet,
        checksum::Sum,
        header::{ACK, Ethernet, FIN, Icmp, Ipv4, Quoted, RST, SYN, Tcp},
    },
};

/// Bytes that an ICMP error adds in front of the datagram that it quotes.
pub const ICMP_BYTES: usize = size_of::<Ipv4>() + size_of::<Icmp>();
/// Bytes of the frame of an ICMP error: what it quotes is an IP header and eight bytes (RFC 792).
pub const ERROR_BYTES: usize = size_of::<Ethernet>() + ICMP_BYTES + size_of::<Ipv4>() + 8;
/// Bytes of the frame of a reset.
pub const RESET_BYTES: usize = size_of::<Ethernet>() + size_of::<Ipv4>() + size_of::<Tcp>();

const IP_BYTES: u16 = 20;
pub(crate) const TCP_BYTES: u16 = 20;
/// ICMP header, the IP header that is quoted, and eight bytes.
const ICMP_MESSAGE_BYTES: u16 = 8 + IP_BYTES + 8;
const _: () =
    assert!(size_of::<Ipv4>() == IP_BYTES as usize && size_of::<Tcp>() == TCP_BYTES as usize);

/// The error of an ICMP message (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    kind: u8,
    code: u8,
    rest: Be32,
}

impl IcmpError {
    /// No socket listens on the port. The one that makes a socket fail at once.
    pub const PORT_UNREACHABLE: Self = Self::new(3, 3, 0);
    /// The time to live was used up on the way.
    pub const TIME_EXCEEDED: Self = Self::new(11, 0, 0);

    /// The packet must be cut and may not be: the way on carries this many bytes (RFC 1191).
    #[inline(always)]
    pub const fn too_big(mtu: u16) -> Self {
        Self::new(3, 4, mtu as u32)
    }

    #[inline(always)]
    const fn new(kind: u8, code: u8, rest: u32) -> Self {
        Self {
            kind,
            code,
            rest: Be32::new(rest),
        }
    }
}

/// Hops of what we make ourselves.
pub(crate) const TTL: u8 = 64;

pod_struct! {
    /// What a CPU keeps for its answers. 20 bytes.
    pub struct Answers {
        /// Resets and errors.
        pub refusals: Bucket,
        /// Replies to echo requests.
        pub echoes: Bucket,
        /// Bytes that the way on carries, if the packet in hand is too big for it.
        pub mtu: u32,
    }
}

/// The addresses of the frame that is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyAddresses {
    pub(crate) from: Be32,
    pub(crate) to: Be32,
}

/// Turns a TCP segment into the reset of its sender (RFC 9293 section 3.10.7.1), in the first
/// [`RESET_BYTES`] of the frame. `None` for a reset, and for UDP.
#[inline(always)]
pub fn reset<P: Packet>(packet: &P, frame: &Ipv4Frame<'_>) -> Option<()> {
    let reset = Reset::of(frame)?;
    let ends = turn(packet, frame, TCP_BYTES, IpProto::Tcp as u8)?;
    // Where IP options stood there may be none now.
    let tcp = packet.header(size_of::<Ethernet>() + size_of::<Ipv4>())?;
    reset.write(tcp, Sum::default().add32(ends.from).add32(ends.to));
    Some(())
}

/// Leaves the checksum of the reset that [`reset`] has made open, because the kernel has noted of the segment that
/// this is still to be computed, from where the header begins to the frame's end: there must be nothing behind.
#[inline(always)]
pub fn reopen<P: Packet>(packet: &P) -> Option<()> {
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    let tcp: &Tcp = packet.header(size_of::<Ethernet>() + size_of::<Ipv4>())?;
    let addresses = Sum::default()
        .add32(ip.source.get())
        .add32(ip.destination.get());
    tcp.checksum.set(pseudo(addresses).open());
    Some(())
}

/// The pseudo-header of a reset between these addresses.
#[inline(always)]
pub(crate) const fn pseudo(addresses: Sum) -> Sum {
    addresses
        .add16(Be16::new(IpProto::Tcp as u16))
        .add16(Be16::new(TCP_BYTES))
}

/// What stands in the reset of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Reset {
    source: Be16,
    destination: Be16,
    sequence: Be32,
    acknowledgment: Be32,
    flags: u8,
}

impl Reset {
    /// Of the segment in `frame`; `None` for a reset, and for UDP.
    #[inline(always)]
    pub(crate) fn of<I>(frame: &Frame<'_, I>) -> Option<Self> {
        let L4::Tcp(segment) = frame.l4 else {
            return None;
        };
        let flags = segment.flags.get();
        if flags & RST != 0 {
            return None;
        }
        let length =
            u32::from(frame.payload) + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let (sequence, acknowledgment, flags) = if flags & ACK == 0 {
            let next = segment.sequence.get().get().wrapping_add(length);
            (Be32::default(), Be32::new(next), RST | ACK)
        } else {
            (segment.acknowledgment.get(), Be32::default(), RST)
        };
        let (destination, source) = frame.l4.ports();
        Some(Self {
            source,
            destination,
            sequence,
            acknowledgment,
            flags,
        })
    }

    /// Writes it to where its header begins; `addresses` is the sum of those of its packet.
    #[inline(always)]
    pub(crate) fn write(self, tcp: &Tcp, addresses: Sum) {
        tcp.source.set(self.source);
        tcp.destination.set(self.destination);
        tcp.sequence.set(self.sequence);
        tcp.acknowledgment.set(self.acknowledgment);
        tcp.data_offset.set(5 << 4);
        tcp.flags.set(self.flags);
        tcp.window.set(Be16::default());
        tcp.urgent.set(Be16::default());
        let sum = pseudo(addresses)
            .add16(self.destination)
            .add16(self.source)
            .add32(self.sequence)
            .add32(self.acknowledgment)
            .add16(Be16::new(5 << 12 | u16::from(self.flags)));
        tcp.checksum.set(sum.checksum());
    }
}

/// The IP header of an answer to `frame` with `payload` bytes behind it.
#[inline(always)]
fn turn<P: Packet>(
    packet: &P,
    frame: &Ipv4Frame<'_>,
    payload: u16,
    protocol: u8,
) -> Option<ReplyAddresses> {
    let ends = ReplyAddresses {
        from: frame.ip.destination.get(),
        to: frame.ip.source.get(),
    };
    let (us, sender) = (
        frame.ethernet.destination.get(),
        frame.ethernet.source.get(),
    );
    if sender.is_group() || ends.to.is_bogon() {
        return None;
    }
    frame.ethernet.destination.set(sender);
    frame.ethernet.source.set(us);
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    write_ip(ip, ends, payload, protocol);
    Some(ends)
}

#[inline(always)]
pub(crate) fn write_ip(ip: &Ipv4, ends: ReplyAddresses, payload: u16, protocol: u8) {
    let total = Be16::new(IP_BYTES + payload);
    // May not be fragmented: so its identification need not be unique (RFC 6864).
    let fragment = Be16::new(0x4000);
    ip.version_ihl.set(0x45);
    ip.tos.set(0);
    ip.total_length.set(total);
    ip.identification.set(Be16::default());
    ip.fragment.set(fragment);
    ip.ttl.set(TTL);
    ip.protocol.set(protocol);
    ip.source.set(ends.from);
    ip.destination.set(ends.to);
    let sum = Sum::default()
        .add16(Be16::new(0x4500))
        .add16(total)
        .add16(fragment)
        .add16(Be16::new(u16::from(TTL) << 8 | u16::from(protocol)))
        .add32(ends.from)
        .add32(ends.to);
    ip.checksum.set(sum.checksum());
}

/// "Don't fragment" in an IPv4 header's flags.
const DONT_FRAGMENT: u16 = 0x4000;

/// Whether the sender forbids that the packet is cut, and so must know where it is too big.
#[inline(always)]
pub fn must_stay_whole(ip: &Ipv4) -> bool {
    ip.fragment.get().get() & DONT_FRAGMENT != 0
}

/// Whether a frame can be answered by [`error()`]: no IP options, from one station, and not the rest of a
/// datagram (RFC 1122 section 3.2.2). A reset is never answered.
#[inline(always)]
pub fn is_quotable(frame: &Ipv4Frame<'_>) -> bool {
    let is_reset = matches!(frame.l4, L4::Tcp(tcp) if tcp.flags.get() & RST != 0);
    !is_reset
        && frame.ip.version_ihl.get() == 0x45
        && frame.ip.fragment.get().get() & OFFSET_MASK == 0
        && !frame.ethernet.source.get().is_group()
        && !frame.ip.source.get().is_bogon()
}

/// Writes an ICMP error (RFC 792) in front of a [quotable](is_quotable) packet, whose frame has been
/// given [`ICMP_BYTES`] more in front; the first [`ERROR_BYTES`] are the answer.
#[inline(always)]
pub fn error<P: Packet>(packet: &P, error: IcmpError) -> Option<()> {
    // First of all, and one after the other: the BPF stack has no room for two addresses to wait.
    let old: &Ethernet = packet.header(ICMP_BYTES)?;
    let ethernet: &Ethernet = packet.header(0)?;
    ethernet.destination.set(old.source.get());
    ethernet.source.set(old.destination.get());
    ethernet.ethertype.set(Be16::new(0x0800));
    let quoted = size_of::<Ethernet>() + ICMP_BYTES;
    let ip: &Ipv4 = packet.header(quoted)?;
    let l4: &Quoted = packet.header(quoted + size_of::<Ipv4>())?;
    let ends = ReplyAddresses {
        from: ip.destination.get(),
        to: ip.source.get(),
    };
    // A whole IP header sums to nothing; what is left is the first eight bytes behind it.
    let sum = Sum::default()
        .add16(Be16::new(
            u16::from(error.kind) << 8 | u16::from(error.code),
        ))
        .add32(error.rest)
        .add_header(ip)
        .add16(l4.source.get())
        .add16(l4.destination.get())
        .add32(l4.rest.get());
    write_ip(
        packet.header(size_of::<Ethernet>())?,
        ends,
        ICMP_MESSAGE_BYTES,
        IpProto::Icmp as u8,
    );
    let icmp: &Icmp = packet.header(size_of::<Ethernet>() + size_of::<Ipv4>())?;
    icmp.kind.set(error.kind);
    icmp.code.set(error.code);
    icmp.rest.set(error.rest);
    icmp.checksum.set(sum.checksum());
    Some(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        addr::Mac,
        rate::REFUSALS,
        wire::{
            Slice,
            checksum::{full, pseudo_header},
            parse_ipv4,
        },
    };

    const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const US: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// A frame to us with `options` (bytes) of IP options; checksums are not needed.
    fn frame(protocol: u8, options: usize, l4: &[u8], payload: &[u8]) -> Vec<u8> {
        let total = u16::try_from(20 + options + l4.len() + payload.len()).unwrap();
        let mut bytes = [US.as_slice(), &CLIENT, &[8, 0]].concat();
        bytes.extend([0x45 + u8::try_from(options / 4).unwrap(), 0]);
        bytes.extend(total.to_be_bytes());
        bytes.extend([0x12, 0x34, 0, 0, 7, protocol, 0, 0]);
        bytes.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        bytes.extend(vec![1; options]);
        let sum = full(&bytes[14..], 0).raw().to_ne_bytes();
        bytes[24..26].copy_from_slice(&sum);
        bytes.extend(l4);
        bytes.extend(payload);
        bytes
    }

    pub(crate) fn tcp(flags: u8, sequence: u32, acknowledgment: u32) -> Vec<u8> {
        let mut tcp = vec![0x9c, 0x40, 0x19, 0x2b];
        tcp.extend(sequence.to_be_bytes());
        tcp.extend(acknowledgment.to_be_bytes());
        tcp.extend([0x50, flags, 0x12, 0x34, 0xaa, 0xaa, 0xbb, 0xbb]);
        tcp
    }

    /// Answers a segment: sequence, acknowledgment and flags of the reset.
    fn answered(flags: u8, options: usize, payload: &[u8]) -> Option<(u32, u32, u8)> {
        let mut bytes = frame(6, options, &tcp(flags, 1000, 0xffff_fff0), payload);
        let packet = Slice::new(&mut bytes);
        let ethernet: &Ethernet = packet.header(0).unwrap();
        let parsed = parse_ipv4(&packet, ethernet, packet.header(14).unwrap()).unwrap();
        reset(&packet, &parsed)?;
        assert_eq!(ethernet.destination.get(), Mac::new(CLIENT));
        assert_eq!(ethernet.source.get(), Mac::new(US));
        let bytes = bytes.get(..RESET_BYTES).unwrap();
        assert_eq!(full(&bytes[14..34], 0).raw(), 0, "IP checksum");
        let (from, to) = ([192, 168, 203, 110], [192, 168, 203, 50]);
        assert_eq!(
            (&bytes[26..30], &bytes[30..34]),
            (from.as_slice(), to.as_slice())
        );
        let pseudo = pseudo_header(
            Be32::new(u32::from_be_bytes(from)),
            Be32::new(u32::from_be_bytes(to)),
            6,
            20,
        );
        assert_eq!(full(&bytes[34..54], pseudo).raw(), 0, "TCP checksum");
        assert_eq!(bytes[14..18], [0x45, 0, 0, 40]);
        assert_eq!((bytes[22], bytes[23]), (64, 6));
        assert_eq!(bytes[34..38], [0x19, 0x2b, 0x9c, 0x40], "ports");
        assert_eq!(bytes[48..50], [0, 0], "window");
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        Some((word(38), word(42), bytes[47]))
    }

    #[test]
    fn a_reset_has_the_numbers_that_its_receiver_accepts() {
        assert_eq!(answered(SYN, 0, b""), Some((0, 1001, RST | ACK)));
        assert_eq!(
            answered(SYN, 0, b"fast"),
            Some((0, 1005, RST | ACK)),
            "with data"
        );
        assert_eq!(answered(ACK, 0, b"data"), Some((0xffff_fff0, 0, RST)));
        assert_eq!(answered(SYN | ACK, 0, b""), Some((0xffff_fff0, 0, RST)));
        assert_eq!(answered(0, 0, b""), Some((0, 1000, RST | ACK)));
        assert_eq!(answered(FIN, 0, b""), Some((0, 1001, RST | ACK)));
        assert_eq!(
            answered(ACK, 40, b"data"),
            Some((0xffff_fff0, 0, RST)),
            "IP options go"
        );
        for reset in [RST, RST | ACK] {
            assert_eq!(answered(reset, 0, b""), None);
        }
    }

    /// What an interface makes of it that adds the rest is the reset as it would be otherwise.
    #[test]
    fn a_reset_may_stay_open() {
        let mut bytes = frame(6, 4, &tcp(ACK, 1000, 2000), b"data");
        let packet = Slice::new(&mut bytes);
        let ethernet: &Ethernet = packet.header(0).unwrap();
        let parsed = parse_ipv4(&packet, ethernet, packet.header(14).unwrap()).unwrap();
        reset(&packet, &parsed).unwrap();
        let whole = bytes[..RESET_BYTES].to_vec();
        reopen(&Slice::new(&mut bytes)).unwrap();
        assert_ne!(bytes[..RESET_BYTES], whole);
        let sum = full(&bytes[34..RESET_BYTES], 0).raw();
        bytes[50..52].copy_from_slice(&sum.to_ne_bytes());
        assert_eq!(bytes[..RESET_BYTES], whole);
    }

    #[test]
    fn no_reset_goes_to_a_group_or_to_nobody() {
        let answered = |at: usize, value: u8| {
            let mut bytes = frame(6, 0, &tcp(ACK, 1000, 2000), b"");
            bytes[at] = value;
            let packet = Slice::new(&mut bytes);
            let ethernet: &Ethernet = packet.header(0).unwrap();
            let parsed = parse_ipv4(&packet, ethernet, packet.header(14).unwrap()).unwrap();
            reset(&packet, &parsed).is_some()
        };
        assert!(answered(6, 2) && answered(26, 10));
        assert!(!answered(6, 3), "a group's MAC");
        for first in [0, 127, 224, 255] {
            assert!(!answered(26, first), "{first}.168.203.50");
        }
    }

    #[test]
    fn an_error_quotes_the_packet() {
        let udp = [0x9c, 0x40, 0, 53, 0, 11, 0xab, 0xcd];
        let cases = [
            (IcmpError::PORT_UNREACHABLE, [3, 3], [0; 4]),
            (IcmpError::TIME_EXCEEDED, [11, 0], [0; 4]),
            (IcmpError::too_big(1280), [3, 4], [0, 0, 5, 0]),
        ];
        for (error, kind, rest) in cases {
            for datagram in [
                frame(17, 0, &udp, b"abc"),
                frame(6, 0, &tcp(ACK, 0x1234_5678, 0), b"abc"),
            ] {
                let mut bytes = [[0xee; ICMP_BYTES].as_slice(), &datagram].concat();
                let packet = Slice::new(&mut bytes);
                super::error(&packet, error).unwrap();
                let bytes = bytes.get(..ERROR_BYTES).unwrap();
                assert_eq!(bytes[..14], [CLIENT.as_slice(), &US, &[8, 0]].concat());
                assert_eq!(full(&bytes[14..34], 0).raw(), 0, "IP checksum");
                assert_eq!(full(&bytes[34..], 0).raw(), 0, "ICMP checksum");
                assert_eq!(bytes[16..18], [0, 56], "total length");
                assert_eq!(bytes[23], 1);
                assert_eq!(bytes[26..34], [192, 168, 203, 110, 192, 168, 203, 50]);
                assert_eq!((&bytes[34..36], &bytes[38..42]), (&kind[..], &rest[..]));
                assert_eq!(bytes[42..], datagram[14..42]);
            }
        }
    }

    #[test]
    fn answers_have_a_rate() {
        let mut bucket = Bucket::default();
        let given =
            |bucket: &mut Bucket, now| (0..5000).filter(|_| bucket.take(now, REFUSALS)).count();
        assert_eq!(given(&mut bucket, 0), 0, "nothing has come in yet");
        assert_eq!(given(&mut bucket, 10), 10);
        assert_eq!(given(&mut bucket, 100_000), 1000, "however long the pause");
        bucket.seen = u32::MAX;
        assert_eq!(given(&mut bucket, 1), 2, "over the wrap");
    }

    #[test]
    fn what_must_not_be_answered_is_not() {
        let quotable = |bytes: &mut Vec<u8>| {
            let packet = Slice::new(bytes);
            let ethernet: &Ethernet = packet.header(0).unwrap();
            let ip: &Ipv4 = packet.header(14).unwrap();
            let frame = parse_ipv4(&packet, ethernet, ip).unwrap();
            is_quotable(&frame)
        };
        let udp = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
        assert!(quotable(&mut frame(17, 0, &udp, b"")));
        assert!(!quotable(&mut frame(17, 4, &udp, b"")), "options");
        assert!(quotable(&mut frame(6, 0, &tcp(SYN, 0, 0), b"")));
        assert!(!quotable(&mut frame(6, 0, &tcp(RST | ACK, 0, 0), b"")));
        let mut group_mac = frame(17, 0, &udp, b"");
        group_mac[6] |= 1;
        assert!(!quotable(&mut group_mac));
        let mut group = frame(17, 0, &udp, b"");
        group[26] = 224;
        assert!(!quotable(&mut group));
    }
}
