//! The claim of an id for a new flow.

use lb_common::{addr::Be16, conntrack::FlowState, maps::network::SnatPlaces, verdict::DropReason};

use super::{FIRST_VERDICT, Pair, reason};

/// The SNAT addresses of a network of backends, as places among all of the network: how many there are in the lowest byte,
/// the first one's place in the next, and above that whether they are of IPv6.
#[derive(Clone, Copy)]
pub(crate) struct SnatRange(u32);

impl SnatRange {
    #[inline(always)]
    pub(crate) const fn new(places: SnatPlaces) -> Self {
        Self((places.is_ipv6 as u32) << 16 | places.first << 8 | places.count)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn first(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    #[inline(always)]
    pub(crate) const fn is_ipv6(self) -> bool {
        self.0 >> 16 != 0
    }

    #[inline(always)]
    pub(crate) const fn addresses(self) -> u32 {
        self.0 & 0xff
    }
}

/// The port of the backend, whether the flow is of UDP, and whether its client has shown that it is there.
#[derive(Clone, Copy)]
pub(crate) struct BackendPort(Pair);

impl BackendPort {
    const IS_UDP: u16 = 1;
    const IS_SHOWN: u16 = 2;

    #[inline(always)]
    pub(crate) fn new(port: Be16, is_udp: bool, is_shown: bool) -> Self {
        let shown = if is_shown { Self::IS_SHOWN } else { 0 };
        Self(Pair::new(u16::from(is_udp) | shown, port.raw()))
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0.raw()
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        Self(Pair::from_raw(number))
    }

    #[inline(always)]
    pub(crate) const fn port(self) -> Be16 {
        Be16::from_raw(self.0.low())
    }

    #[inline(always)]
    pub(crate) const fn is_udp(self) -> bool {
        self.0.high() & Self::IS_UDP != 0
    }

    #[inline(always)]
    pub(crate) const fn is_shown(self) -> bool {
        self.0.high() & Self::IS_SHOWN != 0
    }
}

/// What a claimed entry has of an earlier flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Earlier(u32);

impl Earlier {
    /// Nothing that counts.
    pub(crate) const NONE: Self = Self(0);
    const FLOW: u32 = 1;
    const IS_SPLICED: u32 = 2;
    const IS_UDP: u32 = 4;

    #[inline(always)]
    const fn of(before: FlowState) -> Self {
        if !before.has_flow() {
            return Self::NONE;
        }
        let spliced = if before.is_spliced() {
            Self::IS_SPLICED
        } else {
            0
        };
        let udp = if before.is_udp() { Self::IS_UDP } else { 0 };
        Self(Self::FLOW | spliced | udp)
    }

    /// Whether that is a flow of UDP, or of TCP.
    #[inline(always)]
    pub(crate) const fn is_udp(self) -> bool {
        self.0 & Self::IS_UDP != 0
    }

    /// Whether that is a connection that was handed over.
    #[inline(always)]
    pub(crate) const fn is_spliced(self) -> bool {
        self.0 & Self::IS_SPLICED != 0
    }
}

/// A claimed id in the lower half, with what its entry has of an earlier flow in front, and the entry's state, which is not
/// 0, above it; or the number of a reason, or one of the two cases of a single attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claimed(u64);

/// Bits of an id.
const ID_BITS: u32 = 29;

impl Claimed {
    /// The attempt has found nothing to claim.
    pub(crate) const MISSED: Self = Self(FIRST_VERDICT as u64);
    /// The attempt has left an id alone: the last connection from its port may be in TIME_WAIT at the backend.
    pub(crate) const IN_TIME_WAIT: Self = Self(FIRST_VERDICT as u64 + 1);

    #[inline(always)]
    pub(crate) const fn of(id: u32, before: FlowState, state: FlowState) -> Self {
        let earlier = Earlier::of(before).0 << ID_BITS;
        Self((state.raw() as u64) << 32 | (earlier | id) as u64)
    }

    /// What its entry has of an earlier flow.
    #[inline(always)]
    pub(crate) const fn earlier(self) -> Earlier {
        Earlier(self.0 as u32 >> ID_BITS)
    }

    #[inline(always)]
    pub(crate) const fn refused(reason: DropReason) -> Self {
        Self(reason as u64)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    /// The id and the state of its entry.
    #[inline(always)]
    pub(crate) fn result(self) -> Result<(u32, FlowState), DropReason> {
        match (self.0 >> 32) as u32 {
            0 => Err(reason(self.0 as u32)),
            state => Ok((
                self.0 as u32 & ((1 << ID_BITS) - 1),
                FlowState::from_raw(state),
            )),
        }
    }
}
