//! Values that are one word each: the same in a file, in data and on a terminal.

use std::fmt;

use serde::Serialize as _;

use super::{
    algorithm::Algorithm,
    health::OnDead,
    listen::Protocol,
    model::{BelowMinUp, OnStop, ProxyProtocol, Role, SecondSegment},
    shared::{Balance, Ech, LateBinding, SynCookies},
};

/// Displays values by the word that they are in data.
macro_rules! words {
    ($($Type:ty),* $(,)?) => {$(
        impl fmt::Display for $Type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )*};
}

words!(
    Algorithm,
    Balance,
    BelowMinUp,
    Ech,
    SecondSegment,
    LateBinding,
    OnDead,
    OnStop,
    Protocol,
    ProxyProtocol,
    Role,
    SynCookies
);
