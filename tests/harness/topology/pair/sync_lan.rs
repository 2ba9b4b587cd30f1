//! The LAN between two boxes, which can be cut: without a loss of carrier, as by a switch between them.

use anyhow::Result;

use super::{BoxName, SYNC_NIC};
use crate::{
    netns::Netns,
    process,
    topology::{self, Site},
};

/// What both boxes have addresses of.
const PREFIX_BITS: u8 = 24;
/// Where the rules are that lose frames.
const TABLE: &str = "netdev sync";

/// A switch with a port for each box; rules at the ports lose what comes in there.
#[derive(Debug)]
pub struct SyncLan {
    lan: Netns,
}

impl SyncLan {
    pub(super) fn build(lan: Netns) -> Result<Self> {
        lan.run(&format!("nft add table {TABLE}"))?;
        Ok(Self { lan })
    }

    /// Plugs a box in that has no NIC here.
    pub(super) fn join(&self, site: &Site, name: BoxName) -> Result<()> {
        let port = name.port();
        topology::plug(&self.lan, "br0", port, &site.lb, SYNC_NIC, 1)?;
        site.lb.ip_batch(&format!(
            "addr add {}/{PREFIX_BITS} dev {SYNC_NIC}\nlink set {SYNC_NIC} up\n",
            name.sync().ip(),
        ))?;
        // The chain of a port that was there before is bound to that one.
        let _none = self.nft(&format!("delete chain {TABLE} {port}"));
        let hook = format!("{{ type filter hook ingress device {port} priority 0 ; }}");
        self.nft(&format!("add chain {TABLE} {port} {hook}"))
    }

    pub(super) fn settle(&self) -> Result<()> {
        topology::settle(&self.lan)
    }

    /// Nothing comes through any more, in either direction.
    ///
    /// # Errors
    ///
    /// When nft fails; so for all of these.
    pub fn cut(&self) -> Result<()> {
        self.mend()?;
        BoxName::ALL
            .into_iter()
            .try_for_each(|name| self.lose(name, "drop"))
    }

    /// Nothing that this box sends comes through any more; it still hears the other one.
    ///
    /// # Errors
    ///
    /// As for [`Self::cut`].
    pub fn cut_from(&self, name: BoxName) -> Result<()> {
        self.mend()?;
        self.lose(name, "drop")
    }

    /// So many of a hundred frames are lost, at random, in both directions.
    ///
    /// # Errors
    ///
    /// As for [`Self::cut`].
    pub fn lose_some(&self, percent: u32) -> Result<()> {
        self.mend()?;
        let rule = format!("numgen random mod 100 < {percent} drop");
        BoxName::ALL
            .into_iter()
            .try_for_each(|name| self.lose(name, &rule))
    }

    /// Everything comes through again.
    ///
    /// # Errors
    ///
    /// As for [`Self::cut`].
    pub fn mend(&self) -> Result<()> {
        self.nft(&format!("flush table {TABLE}"))
    }

    /// Both boxes lose their carrier, as of one cable between them, or have it again.
    ///
    /// # Errors
    ///
    /// When a box has no power.
    pub fn set_carrier(&self, is_there: bool) -> Result<()> {
        let state = if is_there { "up" } else { "down" };
        let line = |name: BoxName| format!("link set {} {state}\n", name.port());
        self.lan.ip_batch(&BoxName::ALL.map(line).concat())?;
        if is_there {
            self.settle()?;
        }
        Ok(())
    }

    fn lose(&self, name: BoxName, rule: &str) -> Result<()> {
        self.nft(&format!("add rule {TABLE} {} {rule}", name.port()))
    }

    fn nft(&self, line: &str) -> Result<()> {
        process::succeed(self.lan.command("nft").arg(line)).map(drop)
    }
}
