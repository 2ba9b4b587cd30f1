//! The addresses of a cell's inner end.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::{
    Handle,
    packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage},
};

use super::{Cell, INNER, link_local};
use crate::network::{cell_thread::Resident, link};

/// Bits of an IPv4 address alone.
const HOST_BITS: u8 = 32;

impl Cell {
    /// VIPs and SNAT addresses; with IPv6 first the one that it solicits neighbours from, and joins the
    /// groups of the others (RFC 3810 section 5). Before the others those that checks come from: the kernel asks for a
    /// neighbour that is in the prefix of none in the name of the first one.
    pub(super) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let link_local = self.speaks_ipv6().then(|| link_local(self.mac).into());
        let others = self.addresses.iter().copied();
        let others = others.filter(|address| !self.checks_from.contains(address));
        link_local
            .into_iter()
            .chain(self.checks_from.iter().copied())
            .chain(others)
    }

    /// Whether an address is among those of the interface as it must be. One with another prefix would let the kernel ask
    /// for neighbours in another name.
    pub(super) fn has_among(&self, present: &[(IpAddr, AddressMessage)], address: &IpAddr) -> bool {
        let bits = self.bits(*address);
        let is_so =
            |message: &AddressMessage| address.is_ipv6() || message.header.prefix_len == bits;
        present
            .iter()
            .any(|(found, message)| found == address && is_so(message))
    }

    pub(super) async fn add_addresses(&self, handle: &Handle, ifindex: u32) -> Result<()> {
        let present = addresses(handle, ifindex).await?;
        let missing = self.own_addresses();
        for address in missing.filter(|own| !self.has_among(&present, own)) {
            for (_, other) in present.iter().filter(|(found, _)| *found == address) {
                let removed = handle.address().del(other.clone()).execute().await;
                removed.with_context(|| format!("remove address {address} with another prefix"))?;
            }
            let bits = self.bits(address);
            let mut add = handle.address().add(ifindex, address, bits);
            if address.is_ipv4() && bits < HOST_BITS {
                // The cell has its routes of its own.
                let flags = AddressAttribute::Flags(AddressFlags::Noprefixroute);
                add.message_mut().attributes.push(flags);
            }
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

    /// What of an address is on the link: of an IPv4 one that checks come from its prefix, so that the kernel asks for the
    /// neighbours of that prefix in its name (`inet_select_addr`); of a link-local one too, so that stations with an address
    /// of that prefix are answered; of another the address alone.
    fn bits(&self, address: IpAddr) -> u8 {
        match address {
            IpAddr::V4(_) if self.checks_from.contains(&address) => {
                let mut prefixes = self.prefixes.iter();
                let on_link = prefixes.find(|prefix| prefix.contains(&address));
                on_link.map_or(HOST_BITS, IpNet::prefix_len)
            }
            IpAddr::V4(_) => HOST_BITS,
            IpAddr::V6(address) if address.is_unicast_link_local() => 64,
            IpAddr::V6(_) => 128,
        }
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
