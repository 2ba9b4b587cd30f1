//! Neighbour solicitations, valid or not, and what answers them.

use lb_common::{
    addr::Mac,
    discovery::{ANSWER_BYTES, Solicitation},
    wire::Slice,
};

use crate::{
    every,
    frames::ipv6::{HEADERS, seal, sum},
    spread::Spread,
};

/// Where the target and the options begin.
const TARGET: usize = HEADERS + 8;
const OPTIONS: usize = TARGET + 16;

/// A solicitation of a station, with options or none, behind which there may be padding.
fn solicitation(spread: &mut Spread) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(spread.bytes::<16>());
    let mut station: [u8; 6] = spread.bytes();
    station[0] &= 0xfe;
    station[5] |= 1;
    if spread.below(2) == 0 {
        message.extend([1, 1]);
        message.extend(station);
    }
    if spread.below(2) == 0 {
        message.extend([14, 1]);
        message.extend(spread.bytes::<6>());
    }
    let mut bytes = spread.packet6((58, Vec::new()), 255, &message);
    bytes[6..12].copy_from_slice(&station);
    seal(&mut bytes);
    let padding = spread.below(24);
    bytes.extend(spread.data(padding));
    bytes
}

#[test]
fn an_answer_has_the_checksum_of_what_stands_there() {
    every(31, |spread| {
        let mut bytes = solicitation(spread);
        let mac = spread.bytes();
        let [station, source, target] =
            [6..12, 22..38, TARGET..OPTIONS].map(|at| bytes[at].to_vec());
        let asked = Solicitation::read(&Slice::new(&mut bytes)).expect("a valid one");
        bytes.resize(ANSWER_BYTES, 0xee);
        asked
            .answer(&Slice::new(&mut bytes), Mac::new(mac))
            .unwrap();
        assert_eq!(sum(&bytes), 0, "{bytes:02x?}");
        assert_eq!(bytes[..12], [station, mac.to_vec()].concat());
        assert_eq!(bytes[22..54], [target.as_slice(), &source].concat());
        assert_eq!(bytes[TARGET..OPTIONS], target);
        assert_eq!(bytes[OPTIONS..], [[2, 1].as_slice(), &mac].concat());
    });
}

/// Whatever the bytes behind the fields that brought it here, one that is read has a right checksum.
#[test]
fn a_solicitation_that_is_read_is_whole() {
    const BROUGHT: [usize; 5] = [12, 13, 20, 21, HEADERS];
    let mut read = 0;
    every(32, |spread| {
        let mut bytes = solicitation(spread);
        let at = spread.below(bytes.len());
        if !BROUGHT.contains(&at) {
            bytes[at] ^= 1 << spread.below(8);
        }
        bytes.truncate(HEADERS + spread.below(60));
        if Solicitation::read(&Slice::new(&mut bytes)).is_ok() {
            let end = HEADERS + usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
            assert_eq!(sum(&bytes[..end]), 0, "{bytes:02x?}");
            read += 1;
        }
    });
    assert!(read > 1000, "{read} were read");
}
