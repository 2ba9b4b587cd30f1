//! A packet of IPv6 before conntrack.

use lb_common::{
    addr::Be32,
    verdict::{DropReason, Verdict},
    wire::Chain,
};

use super::{Outcome, reason};

/// The headers of a packet of IPv6, as `lb_chain` returns them: [`Chain::raw`], which has 24 bits; or, above all
/// chains, the number of the reason for which the packet may not go on.
#[derive(Clone, Copy)]
pub(crate) struct Walked(u32);

impl Walked {
    const REFUSED: u32 = 1 << Self::BITS;
    const BITS: u32 = 24;

    #[inline(always)]
    pub(crate) fn of(walked: Result<Chain, DropReason>) -> Self {
        match walked {
            Ok(chain) => Self(chain.raw()),
            Err(reason) => Self(Self::REFUSED + reason as u32),
        }
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
    pub(crate) fn chain(self) -> Result<Chain, DropReason> {
        if self.0 >= Self::REFUSED {
            return Err(reason(self.0 - Self::REFUSED));
        }
        Ok(Chain::from_raw(self.0))
    }
}

/// Which function goes on with a packet of IPv6.
#[derive(Clone, Copy)]
pub(crate) enum Stage6 {
    /// Of TCP or UDP: conntrack.
    Conntrack,
    /// ICMP.
    Icmp,
    /// A fragment other than the first.
    Fragment,
    /// To a group, or of neighbour discovery.
    Discovery,
}

/// What is next for a packet of IPv6, as `lb_ipv6` returns it: its [`Outcome`]; or the [`Stage6`] in the upper
/// eight bits, `Chain::raw` in the next 24, and the label of our address in the lower half.
#[derive(Clone, Copy)]
pub(crate) struct Next6(u64);

/// The cases of a [`Next6`].
pub(crate) enum Step6 {
    /// Nothing.
    Ended(Outcome),
    /// To the address of ours with this label.
    Continue {
        stage: Stage6,
        /// `Chain::raw`.
        chain: u32,
        label: u32,
    },
}

impl Next6 {
    const CONNTRACK: u64 = 1;
    const ICMP: u64 = 2;
    const FRAGMENT: u64 = 3;
    const DISCOVERY: u64 = 4;

    #[inline(always)]
    pub(crate) const fn ended(end: Result<Verdict, DropReason>) -> Self {
        Self(Outcome::of(end).raw() as u64)
    }

    #[inline(always)]
    pub(crate) fn at(stage: Stage6, chain: Chain, label: Be32) -> Self {
        let stage = match stage {
            Stage6::Conntrack => Self::CONNTRACK,
            Stage6::Icmp => Self::ICMP,
            Stage6::Fragment => Self::FRAGMENT,
            Stage6::Discovery => Self::DISCOVERY,
        };
        Self(stage << 56 | u64::from(chain.raw()) << 32 | u64::from(label.raw()))
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
    pub(crate) const fn step(self) -> Step6 {
        let stage = match self.0 >> 56 {
            Self::CONNTRACK => Stage6::Conntrack,
            Self::ICMP => Stage6::Icmp,
            Self::FRAGMENT => Stage6::Fragment,
            Self::DISCOVERY => Stage6::Discovery,
            _ => return Step6::Ended(Outcome(self.0 as u32)),
        };
        Step6::Continue {
            stage,
            chain: (self.0 >> 32) as u32 & (Walked::REFUSED - 1),
            label: self.0 as u32,
        }
    }
}

/// What stands for the addresses of a packet of IPv6 in the key of its datagram, as `lb_ends6` returns it: the
/// hash of its source in the upper half, and the label of its destination, which none has if that is 0, in the
/// lower one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ends6(u64);

impl Ends6 {
    #[inline(always)]
    pub(crate) fn new(source: Be32, destination: Be32) -> Self {
        Self(u64::from(source.raw()) << 32 | u64::from(destination.raw()))
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
    pub(crate) const fn source(self) -> Be32 {
        Be32::from_raw((self.0 >> 32) as u32)
    }

    #[inline(always)]
    pub(crate) const fn destination(self) -> Be32 {
        Be32::from_raw(self.0 as u32)
    }
}
