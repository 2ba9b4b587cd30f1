//! What is next for a packet to an address of ours.

use lb_common::{
    maps::{
        fragment::{FROM_BACKEND, FROM_CLIENT},
        hello::HELLO_IS_PLAIN,
        service::Service,
    },
    verdict::{DropReason, Verdict},
};

use super::{FIRST_VERDICT, Outcome};

/// What is next for a packet after conntrack, or after a flow was opened for it: its [`Outcome`]; or a new
/// flow, which no reason has the number of; or the flow's id in the lower half and the parameters of the
/// function that goes on with it, [`SpliceLeg`] or [`RewriteLeg`], in the upper one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next(u64);

/// The cases of a [`Next`].
pub(crate) enum Step {
    /// Nothing.
    Ended(Outcome),
    /// The packet belongs to no flow and may open one.
    NewFlow,
    /// It is a SYN to this service that is answered by a cookie, or may return one.
    Cookie { vip: CookieService },
    /// It is the SYN of a flow that its backend has not answered, for another one.
    Unanswered { flow_id: u32 },
    /// It is the backend's RST to the SYN of this flow.
    Refused { flow_id: u32 },
    /// It is the first segment of the backend of this flow, which is to be bound.
    Binding { flow_id: u32 },
    /// It is of this flow, and the function that has these parameters goes on with it.
    Flow { flow_id: u32, leg: u32 },
}

/// Instead of the parameters of a function: see [`Step::Unanswered`], [`Step::Refused`], [`Step::Binding`], and
/// [`Step::Cookie`], which has the id of a service in the place of a flow's. No function has these bits.
const UNANSWERED: u32 = IS_LEG | 1 << 28;
const REFUSED: u32 = IS_LEG | 1 << 27;
const COOKIE: u32 = IS_LEG | 1 << 26;
const BINDING: u32 = IS_LEG | 1 << 25;

/// Set in the parameters of every function that goes on with a packet of a flow, so that none is zero, and no [`Outcome`] is one.
const IS_LEG: u32 = 1 << 31;

impl Next {
    /// The packet met another flow with its tuple.
    pub(crate) const FLOW_RACE: Self = Self::ended(Err(DropReason::FlowRace));
    /// See [`Step::NewFlow`].
    pub(crate) const NEW_FLOW: Self = Self(FIRST_VERDICT as u64 - 1);

    /// See [`Step::Ended`].
    #[inline(always)]
    pub(crate) const fn ended(end: Result<Verdict, DropReason>) -> Self {
        Self(Outcome::of(end).raw() as u64)
    }

    /// See [`Step::Flow`].
    #[inline(always)]
    pub(crate) const fn splice(flow_id: u32, leg: SpliceLeg) -> Self {
        Self::flow(flow_id, leg.0)
    }

    /// See [`Step::Flow`].
    #[inline(always)]
    pub(crate) const fn rewrite(flow_id: u32, leg: RewriteLeg) -> Self {
        Self::flow(flow_id, leg.0)
    }

    /// See [`Step::Unanswered`].
    #[inline(always)]
    pub(crate) const fn unanswered(flow_id: u32) -> Self {
        Self::flow(flow_id, UNANSWERED)
    }

    /// See [`Step::Refused`].
    #[inline(always)]
    pub(crate) const fn refused(flow_id: u32) -> Self {
        Self::flow(flow_id, REFUSED)
    }

    /// See [`Step::Binding`].
    #[inline(always)]
    pub(crate) const fn binding(flow_id: u32) -> Self {
        Self::flow(flow_id, BINDING)
    }

    /// See [`Step::Cookie`].
    #[inline(always)]
    pub(crate) const fn cookie(vip: CookieService) -> Self {
        Self::flow(vip.0, COOKIE)
    }

    #[inline(always)]
    const fn flow(flow_id: u32, leg: u32) -> Self {
        Self((leg as u64) << 32 | flow_id as u64)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn step(self) -> Step {
        if self.0 == Self::NEW_FLOW.0 {
            Step::NewFlow
        } else if self.0 > u32::MAX as u64 {
            let flow_id = self.0 as u32;
            match (self.0 >> 32) as u32 {
                UNANSWERED => Step::Unanswered { flow_id },
                REFUSED => Step::Refused { flow_id },
                COOKIE => Step::Cookie {
                    vip: CookieService(flow_id),
                },
                BINDING => Step::Binding { flow_id },
                leg => Step::Flow { flow_id, leg },
            }
        } else {
            Step::Ended(Outcome(self.0 as u32))
        }
    }
}

/// A service whose SYNs are answered by cookies: its id, whether it has no names, and else whether names of it open flows.
#[derive(Clone, Copy)]
pub(crate) struct CookieService(u32);

impl CookieService {
    const BINDS: u32 = 1 << 16;
    const IS_PLAIN: u32 = 1 << 17;

    #[inline(always)]
    pub(crate) const fn of(service: &Service) -> Self {
        let binds = if !service.is_of_cell() {
            Self::IS_PLAIN
        } else if service.binds() {
            Self::BINDS
        } else {
            0
        };
        Self(binds | service.id as u32)
    }

    /// What the segments of its clients have for that.
    #[inline(always)]
    pub(crate) const fn hello_flags(self) -> u32 {
        (self.0 & Self::IS_PLAIN) / (Self::IS_PLAIN / HELLO_IS_PLAIN)
    }

    /// Whether the service has no names: a cookie alone opens a flow.
    #[inline(always)]
    pub(crate) const fn is_plain(self) -> bool {
        self.0 & Self::IS_PLAIN != 0
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        Self(number)
    }

    /// Id of the service.
    #[inline(always)]
    pub(crate) const fn service(self) -> u32 {
        self.0 & u16::MAX as u32
    }

    #[inline(always)]
    pub(crate) const fn binds(self) -> bool {
        self.0 & (Self::BINDS | Self::IS_PLAIN) != 0
    }
}

/// Parameters of `lb_splice`: the network that a translated segment leaves by in the lower half, its direction,
/// and whether its checksum is still to be computed.
#[derive(Clone, Copy)]
pub(crate) struct SpliceLeg(u32);

impl SpliceLeg {
    const TO_CLIENT: u32 = 1 << 30;
    const IS_OPEN: u32 = 1 << 29;

    /// `direction` is one of `maps::fragment`'s.
    #[inline(always)]
    pub(crate) const fn new(network: u16, direction: u16, is_open: bool) -> Self {
        let direction = if direction == FROM_BACKEND {
            Self::TO_CLIENT
        } else {
            0
        };
        let open = if is_open { Self::IS_OPEN } else { 0 };
        Self(IS_LEG | direction | open | network as u32)
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
    pub(crate) const fn network(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub(crate) const fn is_to_client(self) -> bool {
        self.0 & Self::TO_CLIENT != 0
    }

    #[inline(always)]
    pub(crate) const fn is_open(self) -> bool {
        self.0 & Self::IS_OPEN != 0
    }
}

/// Parameters of `lb_rewrite6`: the direction of a packet of IPv6 in its flow, and the generation of the flow's
/// entry.
#[derive(Clone, Copy)]
pub(crate) struct RewriteLeg(u32);

impl RewriteLeg {
    const IS_REPLY: u32 = 1 << 30;

    /// `direction` is one of `maps::fragment`'s.
    #[inline(always)]
    pub(crate) const fn new(generation: u32, direction: u16) -> Self {
        let reply = if direction == FROM_BACKEND {
            Self::IS_REPLY
        } else {
            0
        };
        Self(IS_LEG | reply | generation)
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn generation(self) -> u32 {
        self.0 & !(IS_LEG | Self::IS_REPLY)
    }

    /// One of `maps::fragment`'s.
    #[inline(always)]
    pub(crate) const fn direction(self) -> u16 {
        if self.0 & Self::IS_REPLY != 0 {
            FROM_BACKEND
        } else {
            FROM_CLIENT
        }
    }
}
