//! The connections that sockets of cells have.

use lb_common::{
    maps::{
        cell_socket::{CellSocket, REOPENED, REPLACED},
        flow::FlowKey,
    },
    syn_cookie::CookieStanding,
    wire::header::Tcp,
};

use super::cookie::{self, SynNumbers};
use crate::{flow::entry::now, maps::CELL_SOCKETS};

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Socket(*mut CellSocket);

macro_rules! load {
    ($socket:expr, $field:ident) => {{
        // SAFETY: a value of a map that this program has looked up, and whose memory is another's only after it
        // has ended; aligned, and any bits are valid.
        unsafe { (&raw const (*$socket.0).$field).read_volatile() }
    }};
}

macro_rules! store {
    ($socket:expr, $field:ident, $value:expr) => {{
        // SAFETY: as for `load!`; of two writers one is right.
        unsafe { (&raw mut (*$socket.0).$field).write_volatile($value) }
    }};
}

impl Socket {
    #[inline(always)]
    pub(super) fn of(key: &FlowKey) -> Option<Self> {
        CELL_SOCKETS.get_ptr_mut(key).map(Self)
    }

    /// Notes that a SYN has come from the client's port.
    #[inline(always)]
    pub(super) fn note_syn(self) {
        if load!(self, state) == 0 {
            store!(self, state, REOPENED);
        }
    }

    /// Notes that a segment has come; the map is written once a second at most.
    #[inline(always)]
    pub(super) fn touch(self) {
        const SECOND: u32 = 954;
        let now = now();
        if now.wrapping_sub(load!(self, seen)) > SECOND {
            store!(self, seen, now);
        }
    }

    /// Notes that a hello of another connection from the client's port has been kept.
    #[inline(always)]
    pub(super) fn replace(self) {
        store!(self, state, REPLACED);
    }

    /// Whether this segment, or ACK, belongs to another connection from the client's port: the first one, behind a SYN that was
    /// answered since, with another number; or a later one, which the cell would reset as long as that has no socket.
    #[inline(always)]
    pub(super) fn is_over(self, tcp: &Tcp, key: &FlowKey) -> bool {
        let state = load!(self, state);
        if state == 0 || SynNumbers::of(tcp).isn == load!(self, isn) {
            return false;
        }
        match cookie::judge(tcp, key) {
            CookieStanding::Right { .. } => true,
            CookieStanding::Later => state == REPLACED,
            CookieStanding::Wrong => false,
        }
    }
}
