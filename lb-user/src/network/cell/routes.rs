//! The routes of a cell: what is on its link, and what is behind gateways there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::{
    Handle, RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        route::{
            RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
            RouteType,
        },
    },
};

use super::Cell;

impl Cell {
    /// Destinations, and the gateways of those that have one. On-link prefixes first: a gateway must
    /// be reachable when its route is added.
    fn all_routes(&self) -> impl Iterator<Item = (IpNet, Option<IpAddr>)> {
        let on_link = self.prefixes.iter().map(|prefix| (*prefix, None));
        let behind = self.routes.iter().map(|route| (route.to, Some(route.via)));
        on_link.chain(behind)
    }

    pub(super) async fn add_routes(&self, handle: &Handle, ifindex: u32) -> Result<()> {
        for (to, via) in self.all_routes() {
            let route = route(ifindex, to, via);
            let added = handle.route().add(route).replace().execute().await;
            added.with_context(|| format!("add the route to {to}"))?;
        }
        Ok(())
    }

    pub(super) async fn remove_routes(&self, handle: &Handle, ifindex: u32) -> Result<()> {
        for (to, route) in present(handle, ifindex).await? {
            if !self.all_routes().any(|(prefix, _)| prefix.trunc() == to) {
                let removed = handle.route().del(route).execute().await;
                removed.with_context(|| format!("remove the route to {to}"))?;
            }
        }
        Ok(())
    }

    pub(super) async fn missing_routes(&self, handle: &Handle, ifindex: u32) -> Result<Vec<IpNet>> {
        let present = present(handle, ifindex).await?;
        let all = self.all_routes().map(|(to, _)| to.trunc());
        let missing = all.filter(|to| !present.iter().any(|(found, _)| found == to));
        Ok(missing.collect())
    }
}

/// The destinations of the ordinary routes over `ifindex`, each with the message that it can be removed by.
async fn present(handle: &Handle, ifindex: u32) -> Result<Vec<(IpNet, RouteMessage)>> {
    let families = [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ];
    let mut present = Vec::new();
    for family in families {
        let mut all = handle.route().get(family).execute();
        while let Some(route) = all.try_next().await.context("list the cell's routes")? {
            present.extend(unicast(&route, ifindex).map(|to| (to, route)));
        }
    }
    Ok(present)
}

/// The message that a route is added by.
fn route(ifindex: u32, to: IpNet, via: Option<IpAddr>) -> RouteMessage {
    let mut route = match to {
        IpNet::V4(to) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to.network(), to.prefix_len())
            .output_interface(ifindex)
            .build(),
        IpNet::V6(to) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(to.network(), to.prefix_len())
            .output_interface(ifindex)
            .build(),
    };
    match via {
        Some(via) => route.attributes.push(RouteAttribute::Gateway(via.into())),
        None => route.header.scope = RouteScope::Link,
    }
    route
}

/// The destination of an ordinary route over `ifindex`, unless the kernel has made it of an address.
fn unicast(route: &RouteMessage, ifindex: u32) -> Option<IpNet> {
    let header = &route.header;
    if header.kind != RouteType::Unicast
        || header.table != RouteHeader::RT_TABLE_MAIN
        || header.protocol == RouteProtocol::Kernel
    {
        return None;
    }
    let mut to = match header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut over = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => to = (*address).into(),
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => to = (*address).into(),
            RouteAttribute::Oif(index) => over = Some(*index),
            _ => {}
        }
    }
    let prefix = IpNet::new(to, header.destination_prefix_length).ok()?;
    (over == Some(ifindex)).then_some(prefix)
}
