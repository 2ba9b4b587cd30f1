//! The socket with both its ends, and with ends that misbehave.

mod client;
mod hostile;
mod server;
mod stage;
