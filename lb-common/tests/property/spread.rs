//! Packets for the properties: the same in every run.

use crate::frames::{self, seal};

/// Numbers that are spread, and the same in every run (SplitMix64).
pub(crate) struct Spread(pub(crate) u64);

impl Spread {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % most
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next().to_le_bytes()[0])
    }

    /// Whether one of so many happens.
    pub(crate) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    /// So many bytes.
    pub(crate) fn data(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// Bytes of the IP options of a header: mostly none.
    pub(crate) fn option_bytes(&mut self) -> usize {
        self.below(4) / 3 * self.below(11) * 4
    }

    /// So many bytes of TCP options: half of them with a segment size at any place, all of them small
    /// numbers otherwise, which are kinds and lengths.
    fn options(&mut self, bytes: usize) -> Vec<u8> {
        let mut options: Vec<u8> = (0..bytes)
            .map(|_| self.next().to_le_bytes()[0] % 9)
            .collect();
        let at = self.below(bytes.max(4) - 3);
        if self.below(2) == 0 && at + 4 <= bytes {
            options[..at].fill(1);
            options[at..at + 2].copy_from_slice(&[2, 4]);
            options[at + 2..at + 4].copy_from_slice(&self.bytes::<2>());
        }
        options
    }

    /// A frame that parses, with right checksums: TCP or UDP, with and without options, data of every
    /// parity and padding; some datagrams without a checksum.
    pub(crate) fn frame(&mut self) -> Vec<u8> {
        let udp = self.below(2) == 0;
        let ip_options = self.option_bytes();
        let options = if udp { 0 } else { self.below(11) * 4 };
        let data = self.below(64);
        let l4 = if udp { 8 } else { 20 + options };
        let total = u16::try_from(20 + ip_options + l4 + data).unwrap();
        let mut bytes: Vec<u8> = self.bytes::<12>().to_vec();
        bytes.extend([8, 0, 0x45 + u8::try_from(ip_options / 4).unwrap()]);
        bytes.extend(self.bytes::<1>());
        bytes.extend(total.to_be_bytes());
        bytes.extend(self.bytes::<2>());
        bytes.extend([u8::try_from(self.below(2)).unwrap() << 6, 0]);
        bytes.extend([u8::try_from(2 + self.below(254)).unwrap()]);
        bytes.extend([if udp { 17 } else { 6 }, 0, 0]);
        bytes.extend(self.bytes::<8>());
        bytes.extend((0..ip_options).map(|_| 1));
        if udp {
            bytes.extend(self.bytes::<4>());
            bytes.extend(u16::try_from(l4 + data).unwrap().to_be_bytes());
            bytes.extend([0, u8::from(self.below(4) > 0)]);
        } else {
            bytes.extend(self.bytes::<12>());
            bytes.push(u8::try_from(5 + options / 4).unwrap() << 4);
            bytes.extend(self.bytes::<7>());
            bytes.extend(self.options(options));
        }
        bytes.extend(self.data(data));
        seal(&mut bytes);
        bytes.extend((0..self.below(4)).map(|_| 0xee));
        bytes
    }

    /// Extension headers before `protocol`, mostly none: options of any length, and a fragment header of a
    /// packet that is whole or goes on. Gives the number of the first one as well.
    pub(crate) fn extensions(&mut self, protocol: u8) -> (u8, Vec<u8>) {
        let mut headers = (protocol, Vec::new());
        // From the last one to the first.
        for (number, many) in [(60, 8), (44, 4), (60, 8), (0, 8)] {
            if !self.one_in(many) {
                continue;
            }
            let units = if number == 44 { 1 } else { 1 + self.below(6) };
            let mut header = self.data(8 * units);
            (header[0], header[1]) = (headers.0, u8::try_from(units - 1).unwrap());
            if number == 44 {
                (header[2], header[3]) = (0, 0);
            }
            headers = (number, [header, headers.1].concat());
        }
        headers
    }

    /// A packet of IPv6 between any addresses: extension headers with the number of their first, and the rest.
    pub(crate) fn packet6(
        &mut self,
        (next, headers): (u8, Vec<u8>),
        hops: u8,
        rest: &[u8],
    ) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.bytes::<12>().to_vec();
        bytes.extend([0x86, 0xdd]);
        let [class, label @ ..] = self.bytes::<4>();
        bytes.push(0x60 | class & 15);
        bytes.extend(label);
        bytes.extend(
            u16::try_from(headers.len() + rest.len())
                .unwrap()
                .to_be_bytes(),
        );
        bytes.extend([next, hops]);
        bytes.extend(self.bytes::<32>());
        bytes.extend([&headers[..], rest].concat());
        bytes
    }

    /// As [`Self::frame`], of IPv6: with a checksum always, and sometimes behind extension headers.
    pub(crate) fn frame6(&mut self) -> Vec<u8> {
        let udp = self.below(2) == 0;
        let options = if udp { 0 } else { self.below(11) * 4 };
        let data = self.below(128);
        let mut l4 = self.bytes::<4>().to_vec();
        if udp {
            l4.extend(u16::try_from(8 + data).unwrap().to_be_bytes());
            l4.extend([0, 1]);
        } else {
            l4.extend(self.bytes::<8>());
            l4.push(u8::try_from(5 + options / 4).unwrap() << 4);
            l4.extend(self.bytes::<7>());
            l4.extend(self.options(options));
        }
        l4.extend(self.data(data));
        let extensions = self.extensions(if udp { 17 } else { 6 });
        let hops = u8::try_from(3 + self.below(253)).unwrap();
        let mut bytes = self.packet6(extensions, hops, &l4);
        frames::ipv6::seal(&mut bytes);
        bytes.extend((0..self.below(4)).map(|_| 0xee));
        bytes
    }
}
