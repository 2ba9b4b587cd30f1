//! What may go where, and that nothing else does.

pub(crate) mod allow;
mod crossing;
mod guard;
mod host;
mod not_ours;
mod parts;
mod scan;
mod spoof;
