//! What an operator does: changes, reloads, orders, and what is reported.

mod admin;
mod change;
pub(crate) mod churn;
mod documents;
mod footprint;
mod history;
mod json;
mod large;
mod limits;
mod look_back;
mod node;
mod order;
mod reload;
mod reports;
mod summary;
mod syslog;
mod terminal;
