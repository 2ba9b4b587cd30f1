//! The path that packets take, with each of the contestants in the middle: its wire, and the segments that are made and
//! checked there.

pub(crate) mod configurations;
pub(crate) mod conntrack;
pub(crate) mod contestants;
pub(crate) mod load;
pub(crate) mod programs;
pub(crate) mod queues;
pub(crate) mod reference_nat;
pub(crate) mod router;
pub(crate) mod segments;
pub(crate) mod several;
pub(crate) mod wire;
