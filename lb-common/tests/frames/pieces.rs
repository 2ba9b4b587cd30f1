//! Fragments, and a model of what may pass of a datagram: one bit for each unit of 8 bytes.

use lb_common::{
    addr::Be32,
    fragment::Piece,
    verdict::DropReason,
    wire::{Packet as _, Slice},
};

use super::seal_header;

/// What has passed of a datagram of less than 128 units.
pub struct Passed {
    units: u128,
    end: Option<u32>,
}

impl Passed {
    /// After a first fragment of so many units.
    pub fn first(units: u32) -> Self {
        Self {
            units: (1 << units) - 1,
            end: None,
        }
    }

    fn highest(units: u128) -> u32 {
        u128::BITS - units.leading_zeros()
    }

    /// Ranges of units that have not passed, below the highest that has.
    pub fn holes(units: u128) -> u32 {
        let missing = !units & ((1 << Self::highest(units)) - 1);
        (missing & !(missing << 1)).count_ones()
    }

    /// Adds the units from `from` to before `to`; whether the datagram is complete.
    pub fn add(&mut self, from: u32, to: u32, more: bool) -> Result<bool, DropReason> {
        let piece = ((1 << to) - 1) & !((1 << from) - 1);
        let behind = self.end.is_some_and(|end| to > end);
        let short = !more && to < Self::highest(self.units);
        if self.units & piece != 0 || behind || short {
            return Err(DropReason::FragmentOverlap);
        }
        if Self::holes(self.units | piece) > 1 {
            return Err(DropReason::FragmentEarly);
        }
        self.units |= piece;
        if !more {
            self.end = Some(to);
        }
        Ok(self.end == Some(self.units.count_ones()))
    }
}

/// A fragment from `source`, of the datagram's bytes from the unit `from` on.
pub fn frame(source: Be32, options: usize, from: usize, more: bool, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45 + u8::try_from(options / 4).unwrap(), 0]);
    let total = u16::try_from(20 + options + data.len()).unwrap();
    bytes.extend(total.to_be_bytes());
    let field = u16::try_from(from).unwrap() | u16::from(more) << 13;
    bytes.extend([0x12, 0x34]);
    bytes.extend(field.to_be_bytes());
    bytes.extend([64, 17, 0, 0]);
    bytes.extend(source.get().to_be_bytes());
    bytes.extend([192, 168, 203, 110]);
    bytes.extend(vec![1; options]);
    seal_header(&mut bytes);
    bytes.extend(data);
    bytes
}

/// Reads a fragment, if it is one.
pub fn read(bytes: &mut [u8]) -> Result<Piece, DropReason> {
    let packet = Slice::new(bytes);
    let ip = packet.header(14).ok_or(DropReason::Malformed)?;
    Piece::read(&packet, ip)
}
