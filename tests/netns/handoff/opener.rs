//! What opens the connections of a shared VIP, all of which XDP carries: the process, which hands them over, or XDP itself.

use anyhow::Result;
use lb_tests::{
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::Topology,
};

use crate::{
    handoff::connections::HANDED_OVER,
    proxy::{
        relayed,
        sni::{self, ROUTES, counted},
    },
};

/// Among the [outcomes](crate::handoff::connections::outcomes) of connections that XDP opens.
pub(crate) const BOUND: &str = "bound";

/// What opens a connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    Process,
    Xdp,
}

impl Opener {
    const fn late_binding(self) -> &'static str {
        match self {
            Self::Process => "never",
            Self::Xdp => "always",
        }
    }

    /// The first node behind the shared VIP: [`relayed::config`].
    pub(crate) fn config(self, topology: &Topology) -> Config {
        relayed::config(topology).service("shared", |shared| {
            shared.set("sni.late_binding", self.late_binding())
        })
    }

    /// Three names, each at a node: [`ROUTES`].
    pub(crate) fn names(self, topology: &Topology) -> Config {
        let sni = Keys::from(ROUTES).set("late_binding", self.late_binding());
        sni::config(topology, sni)
    }

    /// What has become of its connections if all is well.
    pub(crate) const fn outcome(self) -> &'static str {
        match self {
            Self::Process => HANDED_OVER,
            Self::Xdp => BOUND,
        }
    }

    /// How many connections it has opened that XDP carries.
    pub(crate) fn count(self, lb: &Lb<'_>) -> Result<u64> {
        match self {
            Self::Process => counted(lb, "handed_over"),
            Self::Xdp => counted(lb, "bound"),
        }
    }
}
