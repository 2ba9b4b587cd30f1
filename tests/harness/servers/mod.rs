//! Real servers, and small ones of our own for what those cannot do.

pub mod answers;
pub mod api_server;
pub mod echo;
pub mod identity;
pub mod keepalived;
pub mod peers;
pub mod teller;
pub mod web;
