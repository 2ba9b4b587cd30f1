//! The bench itself.

mod ends;
mod nics;
