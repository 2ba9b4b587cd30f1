//! Real sockets on the loopback interface: clients, this, and backends that say what they are told to.

mod ends;
mod requests;
mod site;
mod ways;
