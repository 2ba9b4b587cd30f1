//! The vocabulary of the tests: packets, programs, and networks in namespaces.
//!
//! [`frames`] and [`product::program`] are for one frame through the loaded object. Everything else is for real
//! sockets: a [`topology`] of network namespaces, real [`servers`] in it, the [`product`] on its host, [`traffic`]
//! through it, [`fault`]s, and what the kernel itself says about it ([`oracle`]).
//!
//! Every resource is a guard that removes itself. What a killed run leaves is removed by the next
//! one ([`leftovers`]).

pub mod documents;
pub mod fault;
pub mod frames;
pub mod leftovers;
pub mod netns;
pub mod oracle;
pub mod poll;
pub mod process;
pub mod product;
pub mod seeded_rng;
pub mod servers;
pub mod topology;
pub mod traffic;
