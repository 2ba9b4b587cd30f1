//! A sampled frame in words: source, destination, and what.

mod six;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use lb_common::{
    addr::Be16,
    maps::drop_sample::Sample,
    verdict::DropReason,
    wire::{
        L4, Packet as _, Slice, Tagging,
        header::{ACK, Arp, Ethernet, FIN, Ipv4, RST, SYN},
        parse_ipv4, tagging,
    },
};
use schemars::JsonSchema;
use serde::Serialize;

/// The longest frame that is distinguished from a longer one.
const MAX_FRAME: usize = 1 << 16;
/// Bytes of a word of a sample.
const WORD: usize = 4;
/// Bytes of a tag, and where it stands.
const TAG: usize = 4;
const ADDRESSES: usize = 12;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const LLDP: u16 = 0x88cc;
/// Below, the number is a length (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x0600;

/// What is known of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SampledPacket {
    /// The VLAN id of its tag, if it had one when it was sampled.
    pub vlan: Option<u16>,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `ip-47`, `arp`, `ipv6`, `0x88cc` and so on.
    pub protocol: String,
    /// Address and port of the sender, or its address, or its MAC.
    pub source: Option<String>,
    /// As `source`, of the receiver.
    pub destination: Option<String>,
    /// TCP: the flags, such as `SYN|ACK`, if the sample reaches them. ARP: `request` or `reply`. ICMPv6:
    /// the message. IP: `fragment`, or `malformed`.
    pub flags: Option<String>,
}

impl SampledPacket {
    /// Reads the beginning of a frame, whatever it is.
    pub fn read(sample: &Sample) -> Self {
        let length = usize::try_from(sample.length).unwrap_or(MAX_FRAME);
        let bytes = sample.words.iter().flat_map(|word| word.to_ne_bytes());
        // The programs sample whole words of a frame.
        let bytes: Vec<u8> = bytes.take(length / WORD * WORD).collect();
        frame(bytes, length.min(MAX_FRAME)).unwrap_or_else(|| Self {
            protocol: "runt".to_owned(),
            ..Self::default()
        })
    }

    /// Source and destination, in one column.
    pub fn ends(&self) -> String {
        match (&self.source, &self.destination) {
            (Some(source), Some(destination)) => format!("{source} > {destination}"),
            (Some(one), None) | (None, Some(one)) => one.clone(),
            (None, None) => "-".to_owned(),
        }
    }
}

/// The frame whose first bytes these are; `length` is that of the whole frame.
fn frame(mut bytes: Vec<u8>, length: usize) -> Option<SampledPacket> {
    let packet = Slice::new(&mut bytes);
    let tagging = tagging(&packet, packet.header(0)?)?;
    let (vlan, tags) = match tagging {
        Tagging::Untagged => (None, 0),
        Tagging::Tagged(tag) | Tagging::Stacked(tag) => (Some(tag.vlan()), TAG),
        Tagging::Foreign => (None, 0),
    };
    drop(bytes.drain(ADDRESSES..ADDRESSES + tags));
    let kept = bytes.len();
    // What is behind is not known, but that it is there.
    bytes.resize(length.saturating_sub(tags).max(kept), 0);
    let six = six::read(bytes.get(..kept)?, bytes.len());
    let packet = Slice::new(&mut bytes);
    let ethernet: &Ethernet = packet.header(0)?;
    let known = match ethernet.ethertype.get().get() {
        IPV4 => ipv4(&packet, ethernet, kept),
        ARP => arp(&packet, kept),
        IPV6 => six,
        _ => None,
    };
    let words = known.unwrap_or_else(|| SampledPacket {
        protocol: ethertype(ethernet.ethertype.get()),
        source: Some(ethernet.source.get().to_string()),
        destination: Some(ethernet.destination.get().to_string()),
        ..SampledPacket::default()
    });
    Some(SampledPacket { vlan, ..words })
}

fn ipv4(packet: &Slice<'_>, ethernet: &Ethernet, kept: usize) -> Option<SampledPacket> {
    let start = size_of::<Ethernet>();
    let ip: &Ipv4 = packet.header(start)?;
    let addresses = [ip.source.get(), ip.destination.get()].map(Ipv4Addr::from);
    // Of a header that a sample does not reach it is not known whether it is right.
    let header_bytes = usize::from(ip.version_ihl.get() & 15) * 4;
    let needed = start + header_bytes + l4_bytes(ip.protocol.get());
    let parsed = parse_ipv4(packet, ethernet, ip);
    let (ports, flags) = match parsed {
        Ok(parsed) => {
            let (source, destination) = parsed.l4.ports();
            let flags = match parsed.l4 {
                L4::Tcp(tcp) => Some(tcp_flags(tcp.flags.get())),
                L4::Udp(_) => None,
            };
            (Some([source, destination]), flags)
        }
        Err(DropReason::Fragment | DropReason::FragmentTiny) => {
            (None, Some(DropReason::Fragment.label().to_owned()))
        }
        Err(DropReason::Malformed) if needed <= kept || packet.len() == kept => {
            (None, Some(DropReason::Malformed.label().to_owned()))
        }
        Err(_) => (None, None),
    };
    let [source, destination] = ends(
        addresses.map(IpAddr::V4),
        ports.map(|ports| ports.map(Be16::get)),
    );
    Some(SampledPacket {
        vlan: None,
        protocol: protocol(ip.protocol.get()),
        source,
        destination,
        flags,
    })
}

/// Source and destination, with their ports if there are any.
fn ends([from, to]: [IpAddr; 2], ports: Option<[u16; 2]>) -> [Option<String>; 2] {
    match ports {
        Some([source, destination]) => [(from, source), (to, destination)]
            .map(|(address, port)| Some(SocketAddr::new(address, port).to_string())),
        None => [from, to].map(|address| Some(address.to_string())),
    }
}

/// Bytes of a transport header up to the last one that can be wrong.
const fn l4_bytes(protocol: u8) -> usize {
    match protocol {
        // Data offset, and the flags in the same word.
        6 => 14,
        // Length.
        17 => 6,
        _ => 0,
    }
}

/// An address of which only the first bytes are known: `192.168.?.?`.
fn known_part(address: Ipv4Addr, known: usize) -> String {
    let bytes = address.octets().into_iter().enumerate();
    let bytes = bytes.map(|(index, byte)| match index < known {
        true => byte.to_string(),
        false => "?".to_owned(),
    });
    bytes.collect::<Vec<_>>().join(".")
}

/// The end of an unpadded frame is not in the sample, which has whole words of it.
fn arp(packet: &Slice<'_>, kept: usize) -> Option<SampledPacket> {
    const TARGET: usize = size_of::<Ethernet>() + 24;
    let arp: &Arp = packet.header(size_of::<Ethernet>())?;
    let operation = arp.operation.get().get();
    Some(SampledPacket {
        vlan: None,
        protocol: "arp".to_owned(),
        source: Some(Ipv4Addr::from(arp.sender.get()).to_string()),
        destination: Some(known_part(
            Ipv4Addr::from(arp.target.get()),
            kept.saturating_sub(TARGET),
        )),
        flags: Some(match operation {
            1 => "request".to_owned(),
            2 => "reply".to_owned(),
            other => other.to_string(),
        }),
    })
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        2 => "igmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        other => format!("ip-{other}"),
    }
}

fn ethertype(number: Be16) -> String {
    match number.get() {
        IPV4 => "ipv4".to_owned(),
        ARP => "arp".to_owned(),
        IPV6 => "ipv6".to_owned(),
        LLDP => "lldp".to_owned(),
        length if length < FIRST_ETHERTYPE => "802.3".to_owned(),
        other => format!("{other:#06x}"),
    }
}

fn tcp_flags(flags: u8) -> String {
    let names = [
        (SYN, "SYN"),
        (FIN, "FIN"),
        (RST, "RST"),
        (0x08, "PSH"),
        (ACK, "ACK"),
        (0x20, "URG"),
        (0x40, "ECE"),
        (0x80, "CWR"),
    ];
    let set = names.iter().filter(|(flag, _)| flags & flag != 0);
    let set: Vec<&str> = set.map(|(_, name)| *name).collect();
    if set.is_empty() {
        return "none".to_owned();
    }
    set.join("|")
}

#[cfg(test)]
mod tests {
    use lb_common::maps::drop_sample::SAMPLE_WORDS;

    use super::*;

    /// A sample of `bytes`, as the data plane takes it.
    fn sample(bytes: &[u8]) -> Sample {
        let mut words = [0; SAMPLE_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(4)) {
            let mut whole = [0; 4];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_ne_bytes(whole);
        }
        Sample {
            length: u32::try_from(bytes.len()).unwrap(),
            words,
            ..Sample::default()
        }
    }

    fn read(bytes: &[u8]) -> String {
        let packet = SampledPacket::read(&sample(bytes));
        let vlan = packet.vlan.map(|vlan| format!("{vlan} "));
        let flags = packet.flags.as_deref().unwrap_or("-");
        let vlan = vlan.unwrap_or_default();
        format!("{vlan}{} {} {flags}", packet.protocol, packet.ends())
    }

    fn ethernet(behind: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], behind].concat()
    }

    /// An IPv4 packet with `options` words of options.
    fn ip(protocol: u8, options: u8, payload: &[u8]) -> Vec<u8> {
        let header = 20 + 4 * usize::from(options);
        let total = u16::try_from(header + payload.len()).unwrap().to_be_bytes();
        let mut bytes = vec![
            0x45 + options,
            0,
            total[0],
            total[1],
            0,
            0,
            0,
            0,
            64,
            protocol,
            0,
            0,
        ];
        bytes.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        bytes.resize(header, 1);
        bytes.extend(payload);
        bytes
    }

    fn tcp(flags: u8, payload: usize) -> Vec<u8> {
        let mut tcp = vec![
            0x9c, 0x40, 0x19, 0x2b, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0, 0, 0, 0, 0, 0,
        ];
        tcp.resize(20 + payload, 0xaa);
        tcp
    }

    fn ipv4(protocol: u8, options: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ethernet(&[8, 0]);
        bytes.extend(ip(protocol, options, payload));
        bytes
    }

    #[test]
    fn a_segment_has_its_tuple_and_flags() {
        let tuple = "192.168.203.50:40000 > 192.168.203.110:6443";
        assert_eq!(read(&ipv4(6, 0, &tcp(2, 0))), format!("tcp {tuple} SYN"));
        let long = ipv4(6, 0, &tcp(0x12, 1400));
        assert_eq!(read(&long), format!("tcp {tuple} SYN|ACK"));
        let all = "SYN|FIN|RST|PSH|ACK|URG|ECE|CWR";
        assert_eq!(
            read(&ipv4(6, 0, &tcp(0xff, 0))),
            format!("tcp {tuple} {all}")
        );
        assert_eq!(read(&ipv4(6, 0, &tcp(0, 0))), format!("tcp {tuple} none"));
        let udp = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
        let tuple = tuple.replace("6443", "53");
        assert_eq!(read(&ipv4(17, 0, &udp)), format!("udp {tuple} -"));
    }

    #[test]
    fn a_tag_is_looked_behind() {
        let mut bytes = ethernet(&[0x81, 0, 0x67, 0xd3, 8, 0]);
        bytes.extend(ip(6, 0, &tcp(4, 100)));
        let tuple = "192.168.203.50:40000 > 192.168.203.110:6443";
        assert_eq!(read(&bytes), format!("2003 tcp {tuple} RST"));
        let stacked = ethernet(&[0x81, 0, 0, 5, 0x81, 0, 0, 6, 8, 0, 0x45, 0]);
        let macs = "02:00:00:00:00:02 > 02:00:00:00:00:01";
        assert_eq!(read(&stacked), format!("5 0x8100 {macs} -"));
        let foreign = ethernet(&[0x88, 0xa8, 0, 6, 8, 0, 0x45, 0]);
        assert_eq!(read(&foreign), format!("0x88a8 {macs} -"));
    }

    #[test]
    fn what_is_no_segment_is_named_by_its_type() {
        let ends = "192.168.203.50 > 192.168.203.110";
        assert_eq!(read(&ipv4(1, 0, &[8; 8])), format!("icmp {ends} -"));
        assert_eq!(read(&ipv4(47, 0, &[8; 8])), format!("ip-47 {ends} -"));
        let mut fragment = ipv4(6, 0, &tcp(2, 0));
        fragment[20] = 0x20;
        assert_eq!(read(&fragment), format!("tcp {ends} fragment"));
        let mut lying = ipv4(6, 0, &tcp(2, 0));
        lying[17] = 200;
        assert_eq!(read(&lying), format!("tcp {ends} malformed"));
        // Behind so many options a sample ends before the flags, or in the length.
        let tuple = "192.168.203.50:40000 > 192.168.203.110:6443";
        assert_eq!(read(&ipv4(6, 4, &tcp(2, 0))), format!("tcp {tuple} SYN"));
        assert_eq!(read(&ipv4(6, 5, &tcp(2, 0))), format!("tcp {ends} -"));
        assert_eq!(read(&ipv4(6, 10, &tcp(2, 0))), format!("tcp {ends} -"));
        let udp = [0x9c, 0x40, 0x19, 0x2b, 0, 8, 0, 0];
        assert_eq!(read(&ipv4(17, 6, &udp)), format!("udp {tuple} -"));
        assert_eq!(read(&ipv4(17, 7, &udp)), format!("udp {ends} -"));
        let macs = "02:00:00:00:00:02 > 02:00:00:00:00:01";
        for (kind, name) in [
            ([0x86, 0xdd], "ipv6"),
            ([0x88, 0xcc], "lldp"),
            ([0x12, 0x34], "0x1234"),
            ([0, 38], "802.3"),
        ] {
            let bytes = ethernet(&[&kind[..], &[0; 46]].concat());
            assert_eq!(read(&bytes), format!("{name} {macs} -"));
        }
        let mut arp = vec![8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 1];
        arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        assert_eq!(read(&ethernet(&arp)), "arp 10.0.0.1 > 10.0.?.? request");
        arp.extend([0; 18]);
        assert_eq!(read(&ethernet(&arp)), "arp 10.0.0.1 > 10.0.0.2 request");
        arp[9] = 2;
        assert_eq!(read(&ethernet(&arp)), "arp 10.0.0.1 > 10.0.0.2 reply");
        arp[8] = 1;
        assert_eq!(read(&ethernet(&arp)), "arp 10.0.0.1 > 10.0.0.2 258");
        assert_eq!(read(&ethernet(&arp[..20])), format!("arp {macs} -"));
    }

    #[test]
    fn whatever_the_bytes_are_there_are_words() {
        assert_eq!(read(&[]), "runt - -");
        assert_eq!(read(&[2; 13]), "runt - -");
        let tagged = [
            ethernet(&[0x81, 0, 7, 0xd3]),
            ipv4(6, 0, &tcp(2, 9))[12..].to_vec(),
        ]
        .concat();
        let whole = [
            ipv4(6, 0, &tcp(2, 300)),
            ipv4(6, 10, &tcp(2, 300)),
            ipv4(17, 0, &[0xff; 8]),
            tagged,
            ethernet(&[0x81, 0, 7, 0xd3, 8, 6]),
        ];
        for bytes in whole {
            for end in 0..=bytes.len() {
                assert!(!read(&bytes[..end]).is_empty());
            }
            // The length may be anything, and any byte is anything.
            for length in [0, 1, 14, 18, 63, 64, 65, 1500, 65_536, u32::MAX] {
                for at in 0..4 * SAMPLE_WORDS {
                    for value in [0, 0x45, 0x4f, 0x81, 0xff] {
                        let mut sample = Sample {
                            length,
                            ..sample(&bytes)
                        };
                        let mut word = sample.words[at / 4].to_ne_bytes();
                        word[at % 4] = value;
                        sample.words[at / 4] = u32::from_ne_bytes(word);
                        assert!(!SampledPacket::read(&sample).protocol.is_empty());
                    }
                }
            }
        }
    }
}
