//! Two CPUs run the program on the same maps at the same moment.

mod binding;
mod duel;
mod index;
mod mix;
mod reuse;
mod stage;
