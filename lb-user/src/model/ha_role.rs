//! What a box is among those that have one service together.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use crate::config::Ha;

/// What a box does for the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HaRole {
    /// It has the service alone.
    #[default]
    Alone,
    /// It has the VIPs, and the SNAT addresses of all boxes.
    Active,
    /// It is ready to take them over, and silent until then.
    Standby,
}

impl HaRole {
    /// The role of a box whose host has these addresses: with the marker it is active.
    pub fn of(ha: Option<&Ha>, addresses: &BTreeSet<IpAddr>) -> Self {
        match ha {
            None => Self::Alone,
            Some(ha) if addresses.contains(&ha.marker) => Self::Active,
            Some(_) => Self::Standby,
        }
    }

    /// Whether it forwards the flows of the service, and so may end them by its own clock.
    pub const fn serves(self) -> bool {
        !matches!(self, Self::Standby)
    }
}

impl fmt::Display for HaRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "alone",
            Self::Active => "active",
            Self::Standby => "standby",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_box_that_has_the_marker_is_active() {
        let marker = IpAddr::from([10, 32, 96, 60]);
        let ha = Ha {
            box_name: "a".to_owned(),
            boxes: Vec::new(),
            marker,
            ca: PathBuf::new(),
            certificate: PathBuf::new(),
            key: PathBuf::new(),
        };
        let other = BTreeSet::from([IpAddr::from([10, 32, 96, 61])]);
        let both = BTreeSet::from([marker, IpAddr::from([10, 32, 96, 61])]);
        assert_eq!(HaRole::of(Some(&ha), &other), HaRole::Standby);
        assert_eq!(HaRole::of(Some(&ha), &both), HaRole::Active);
        assert_eq!(HaRole::of(None, &both), HaRole::Alone);
        let serve = [HaRole::Alone, HaRole::Active, HaRole::Standby].map(HaRole::serves);
        assert_eq!(serve, [true, true, false]);
    }
}
