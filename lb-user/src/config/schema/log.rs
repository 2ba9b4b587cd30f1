//! The keys of what is written of flows and events.

use super::{
    declare::section,
    kinds::{File, Whole, kinds},
    values::{parsed, word},
};
use crate::config::{
    place::At,
    syslog::{Facility, SyslogServer},
};

section! {
    /// Where flows are written when they begin and end, and requests, and where events are sent to.
    struct RawLog = "log" {
        /// The file, by its path from the root: one JSON object in a line, with the time of its event. Lines are added
        /// to what is there. A file that was renamed (logrotate) is made anew with the next line.
        optional flows: File => "no log",
        /// A file for the requests of services with `http`, one JSON object for each: client, method, Host, path, status,
        /// backend and duration. It is written as `flows` is, and is another file.
        optional http: File => "no log",
        /// The syslog server that gets each event as a line of RFC 5424: verdicts, reloads, orders, carriers, starts.
        optional syslog: Whole<RawSyslog> => "none",
    }
}

section! {
    /// The syslog server that gets each event as a line of RFC 5424.
    struct RawSyslog = "syslog" {
        /// Where it listens: `unix:PATH` (a socket of datagrams), `udp:ADDRESS:PORT`, or `tcp:ADDRESS:PORT`, where each
        /// line has its length before it (RFC 6587). The host's own routes lead there, not those of networks.
        required to: SyslogTo,
        /// Its word for all lines: `daemon`, `user`, `syslog`, `auth`, `authpriv`, or `local0` to `local7`.
        optional facility: SyslogFacility = "daemon",
    }
}

kinds! {
    SyslogTo("text"): Option<At<SyslogServer>> = parsed(SyslogServer::parse);
    SyslogFacility("word"): Option<At<Facility>> = word(Facility::ALL);
}
