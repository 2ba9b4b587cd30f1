//! ICMP frames by name, with right checksums; what they quote is a frame of [`crate::frames::packet`].

use std::net::Ipv4Addr;

use lb_common::{addr::Mac, wire::checksum::full};

/// An ICMP frame over IPv4.
#[derive(Clone, Debug)]
pub struct Icmp {
    source_mac: Mac,
    destination_mac: Mac,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    ttl: u8,
    fragment: u16,
    options: Vec<u8>,
    kind: u8,
    code: u8,
    rest: u32,
    body: Vec<u8>,
}

/// A message of this type and code between two addresses, with `rest` in the second word.
pub fn icmp(source: &str, destination: &str, (kind, code): (u8, u8), rest: u32) -> Icmp {
    Icmp {
        source_mac: Mac::default(),
        destination_mac: Mac::default(),
        source: source.parse().expect("a source address"),
        destination: destination.parse().expect("a destination address"),
        ttl: 64,
        fragment: 0,
        options: Vec::new(),
        kind,
        code,
        rest,
        body: Vec::new(),
    }
}

impl Icmp {
    /// From one station to another.
    #[must_use]
    pub fn between(mut self, source: Mac, destination: Mac) -> Self {
        (self.source_mac, self.destination_mac) = (source, destination);
        self
    }

    /// With this time to live.
    #[must_use]
    pub const fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// With this flags and fragment offset field.
    #[must_use]
    pub const fn fragment(mut self, field: u16) -> Self {
        self.fragment = field;
        self
    }

    /// With IP options; their length is a multiple of four.
    #[must_use]
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// With these bytes behind the ICMP header.
    #[must_use]
    pub fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let words = 5 + self.options.len() / 4;
        let total = u16::try_from(words * 4 + 8 + self.body.len()).expect("below 64 KiB");
        let mut ip = vec![0x40 | u8::try_from(words).expect("at most 15 words"), 0];
        ip.extend(total.to_be_bytes());
        ip.extend([0x43, 0x21]);
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, 1, 0, 0]);
        ip.extend(self.source.octets());
        ip.extend(self.destination.octets());
        ip.extend(&self.options);
        let checksum = full(&ip, 0).get().to_be_bytes();
        ip[10..12].copy_from_slice(&checksum);

        let mut message = vec![self.kind, self.code, 0, 0];
        message.extend(self.rest.to_be_bytes());
        message.extend(&self.body);
        let checksum = full(&message, 0).get().to_be_bytes();
        message[2..4].copy_from_slice(&checksum);

        let mut bytes = Vec::new();
        bytes.extend(self.destination_mac.bytes());
        bytes.extend(self.source_mac.bytes());
        bytes.extend([8, 0]);
        bytes.extend(ip);
        bytes.extend(message);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::packet::check;

    #[test]
    fn built_messages_pass_the_check_and_broken_ones_do_not() {
        for body in [&b""[..], b"odd", b"even"] {
            let bytes = icmp("10.0.0.1", "10.0.0.2", (8, 0), 0x1234_0001)
                .options(&[1, 1, 1, 1])
                .body(body)
                .bytes();
            assert_eq!(check(&bytes), Ok(()));
            let mut broken = bytes.clone();
            *broken.last_mut().expect("a byte") ^= 1;
            assert!(check(&broken).is_err(), "a changed byte");
        }
    }
}
