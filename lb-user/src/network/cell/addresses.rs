//! The addresses of a cell's inner end.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use rtnetlink::{
    Handle,
    packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
};

use super::{Cell, INNER, link_local};
use crate::network::{cell_thread::Resident, link};

impl Cell {
    /// VIPs and SNAT addresses; with IPv6 first the one that it solicits neighbours from, and joins the
    /// groups of the others (RFC 3810 section 5).
    pub(super) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let link_local = self.speaks_ipv6().then(|| link_local(self.mac).into());
        link_local.into_iter().chain(self.addresses.iter().copied())
    }

    pub(super) async fn add_addresses(&self, handle: &Handle, ifindex: u32) -> Result<()> {
        let present = addresses(handle, ifindex).await?;
        let is_present = |address: &IpAddr| present.iter().any(|(found, _)| found == address);
        for address in self.own_addresses().filter(|address| !is_present(address)) {
            let bits = prefix_bits(address);
            let mut add = handle.address().add(ifindex, address, bits);
            if address.is_ipv6() {
                // It would not be answered for before the maps have it, and no other station may take it
                // away.
                add.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            }
            let added = add.execute().await;
            added.with_context(|| format!("add address {address}"))?;
        }
        Ok(())
    }

    pub(super) async fn remove_addresses(&self, handle: &Handle, ifindex: u32) -> Result<()> {
        for (address, message) in addresses(handle, ifindex).await? {
            if !self.own_addresses().any(|own| own == address) {
                let removed = handle.address().del(message).execute().await;
                removed.with_context(|| format!("remove address {address}"))?;
            }
        }
        Ok(())
    }
}

/// Takes an address off a cell that need not answer for it any more.
///
/// # Errors
///
/// If the cell is gone or the kernel refuses.
pub fn remove_address(resident: &Resident, address: IpAddr) -> Result<()> {
    let remove = move || {
        link::with_netlink(async |handle| {
            let Some(inner) = link::find(&handle, INNER).await? else {
                return Ok(());
            };
            for (found, message) in addresses(&handle, inner.ifindex).await? {
                if found == address {
                    handle.address().del(message).execute().await?;
                }
            }
            Ok(())
        })
    };
    resident
        .run(remove)
        .with_context(|| format!("remove {address} from its cell"))
}

/// What of an address of a cell is on the link: of a link-local one its prefix, so that stations with an
/// address of that prefix are answered; of another the address alone.
fn prefix_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(address) if address.is_unicast_link_local() => 64,
        IpAddr::V6(_) => 128,
    }
}

/// The addresses of an interface, each with the message that it can be removed by.
pub(super) async fn addresses(
    handle: &Handle,
    ifindex: u32,
) -> Result<Vec<(IpAddr, AddressMessage)>> {
    let mut found = Vec::new();
    let mut list = handle
        .address()
        .get()
        .set_link_index_filter(ifindex)
        .execute();
    while let Some(message) = list.try_next().await.context("list the cell's addresses")? {
        let address = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Local(address @ IpAddr::V4(_))
                | AddressAttribute::Address(address @ IpAddr::V6(_)) => Some(*address),
                _ => None,
            });
        found.extend(address.map(|address| (address, message)));
    }
    Ok(found)
}
