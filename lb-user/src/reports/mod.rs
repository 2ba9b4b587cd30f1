//! What `-o json` answers: what is observed of an instance, with what its control plane knows. The command line prints
//! it, and the page of `admin.http` shows it.

pub mod backends;
pub mod box_health;
pub mod drops;
pub mod events;
pub mod health;
pub mod overview;
pub mod rates;
#[cfg(test)]
pub(crate) mod samples;
pub mod services;
pub mod status;
