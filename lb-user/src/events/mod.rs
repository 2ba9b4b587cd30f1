//! The history of an instance: what has happened to it, and which user ordered it.
//!
//! Events have numbers, which go on over restarts and take-overs. The latest are in memory (`ring`), from where
//! the admin socket answers; all of them go to a file of the state folder (`file`), which a thread of its own
//! writes (`writer`): a disk that is full or hangs costs events on it, and nothing else. So is it with a syslog server
//! (`syslog`).

pub mod file;
pub mod history;
mod ring;
mod syslog;
mod writer;
