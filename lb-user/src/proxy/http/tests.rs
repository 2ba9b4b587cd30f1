//! Real sockets on the loopback interface: clients, this, and backends that answer as the test has it.

mod ends;
mod requests;
mod site;
mod ways;
