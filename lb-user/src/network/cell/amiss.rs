//! What of a cell is not as it was made.

use anyhow::{Context as _, Result};
use rtnetlink::Handle;

use super::{Cell, INNER, addresses::addresses};
use crate::network::{
    cell_thread::Resident,
    link::{self, Link},
    sysctl,
};

impl Cell {
    /// What is amiss, in words: interfaces, addresses, routes and sysctls that something else has taken away
    /// or changed. [`Self::build`] mends it. None if its pair of interfaces is gone.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn amiss(&self, resident: &Resident) -> Result<Option<Vec<String>>> {
        let name = self.outer();
        let outer = link::with_netlink(async |handle| link::find(&handle, &name).await)?;
        let Some(outer) = outer else {
            return Ok(None);
        };
        let cell = self.clone();
        let look = move || {
            let found = link::with_netlink(async |handle| cell.amiss_inside(&handle).await)?;
            let sysctls = sysctl::changed_in_cell(INNER, cell.speaks_ipv6());
            Ok((found, sysctls))
        };
        let (inside, sysctls) = resident
            .run(look)
            .with_context(|| format!("look at cell {}", self.name))?;
        let Some(mut found) = inside else {
            return Ok(None);
        };
        found.extend(sysctls?);
        found.extend(self.amiss_of(&name, &outer));
        found.extend(sysctl::changed_outside(&name)?);
        Ok(Some(found))
    }

    /// Of the inner end, if it is there.
    async fn amiss_inside(&self, handle: &Handle) -> Result<Option<Vec<String>>> {
        let Some(inner) = link::find(handle, INNER).await? else {
            return Ok(None);
        };
        let mut found: Vec<String> = self.amiss_of(INNER, &inner).collect();
        if inner.mac != self.mac {
            found.push(format!("the MAC of {INNER} was {}", inner.mac));
        }
        let present = addresses(handle, inner.ifindex).await?;
        let missing = self.own_addresses();
        let missing = missing.filter(|own| !self.has_among(&present, own));
        found.extend(missing.map(|address| format!("address {address} was missing")));
        let routes = self
            .missing_routes(handle, inner.ifindex)
            .await?
            .into_iter();
        found.extend(routes.map(|to| format!("the route to {to} was missing")));
        Ok(Some(found))
    }

    fn amiss_of(&self, name: &str, link: &Link) -> impl Iterator<Item = String> + use<> {
        let down = (!link.up).then(|| format!("{name} was down"));
        let mtu = (link.mtu != self.mtu).then(|| format!("the MTU of {name} was {}", link.mtu));
        down.into_iter().chain(mtu)
    }
}
