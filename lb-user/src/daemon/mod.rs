//! `lb run`: a process from its start to its end.
//!
//! [`preflight`] finds out whether a start is possible, and [`startup`] makes the first change. [`takeover`] gives
//! all of it to the next process, and [`give_way`] says what this one does meanwhile; [`migrate`] leaves the pinned maps
//! of another version. [`systemd`](crate::system::systemd) is who starts the process again.

pub mod give_way;
pub mod migrate;
pub mod preflight;
pub mod startup;
pub mod takeover;
