//! `lb run`: a process from its start to its end.
//!
//! `run` is the order of it: [`preflight`] finds out whether a start is possible, [`startup`] makes the first
//! change in `stages`, `event_loop` keeps everything up to date, and `hand_over` ends a process that another
//! one follows. [`takeover`] is the protocol between these two, and [`give_way`] what the former does until
//! the latter is up; [`migrate`] leaves the pinned maps of another version, and `grow` makes those of flows larger. `careful` and
//! `confirmation` keep the operator's own way in, and `web_port` follows `admin.http`.

mod careful;
mod confirmation;
mod drop_log;
mod event_loop;
pub mod give_way;
mod group_secret;
mod grow;
mod hand_over;
pub mod migrate;
pub mod preflight;
pub(crate) mod run;
mod signals;
mod sockets;
mod stages;
pub mod startup;
pub mod takeover;
mod threads;
mod way_back;
mod web_port;
