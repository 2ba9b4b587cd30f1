//! The XDP programs of the switch in the tests' networks: a VLAN trunk towards the load balancer, and
//! trouble.
//!
//! Not every kernel has VLAN devices, or a bridge that knows VLANs, and a veth carries the tag of a
//! kernel stack beside the frame, where XDP does not see it. These programs put the tag into the
//! frame, as a wire would bring it:
//!
//! ```text
//!  [ bridge of VLAN 2003 ] -- veth -- access port |            |
//!                                      `access`   | switch  trunk port -- NIC of the load balancer
//!  [ bridge of VLAN 2004 ] -- veth -- access port |          `trunk`
//! ```
//!
//! Any program at all on a port also makes a veth take the frames that XDP sends to it: `pass` is
//! there for nothing else.
#![no_std]
#![no_main]
#![deny(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod frame;

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::HashMap,
    helpers::{bpf_get_prandom_u32, bpf_xdp_adjust_head},
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use network_types::eth::EtherType;

use crate::frame::{header, redirect};

/// Written once, before the programs run.
type Ports = HashMap<u32, u32, 64>;

/// VLAN id to the interface index of its access port.
#[btf_map]
static ACCESS_PORTS: Ports = Ports::new();

/// Interface index of an access port to its VLAN id.
#[btf_map]
static VLANS: Ports = Ports::new();

/// Interface index of an access port to that of the trunk port.
#[btf_map]
static TRUNKS: Ports = Ports::new();

/// Interface index of a port with trouble to that of the port where userspace makes it.
#[btf_map]
static DIVERTED: Ports = Ports::new();

/// Interface index of a port with trouble to how many frames one is taken out of.
#[btf_map]
static OUT_OF: Ports = Ports::new();

/// The VLAN id in a tag's control information.
const VLAN_ID: u16 = 0x0fff;
/// Bytes of a tag.
const TAG: i32 = 4;

/// Both addresses of an Ethernet header, in words: what moves when a tag goes in or out.
type Addresses = [u32; 3];

/// Both addresses and the tag behind them.
#[repr(C, packed)]
struct Tagged {
    addresses: Addresses,
    ethertype: u16,
    control: u16,
}

/// On the trunk port: takes the tag off and sends the frame to the access port of its VLAN. What
/// has no tag, or that of a VLAN without a port, is the kernel's: the port may be in a bridge.
#[xdp]
pub fn trunk(ctx: XdpContext) -> u32 {
    untag(&ctx).unwrap_or(xdp_action::XDP_PASS)
}

/// On an access port: puts the VLAN's tag on and sends the frame to the trunk port.
#[xdp]
pub fn access(ctx: XdpContext) -> u32 {
    tag(&ctx).unwrap_or(xdp_action::XDP_DROP)
}

/// On a port of a plain bridge. With fragments, so that the port takes an MTU of any size.
#[xdp(frags)]
pub fn pass(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// On a port of a plain bridge: one IPv4 frame of many goes to userspace, which loses it, or sends it later
/// or twice.
#[xdp]
pub fn trouble(ctx: XdpContext) -> u32 {
    divert(&ctx).unwrap_or(xdp_action::XDP_PASS)
}

#[inline(always)]
fn divert(ctx: &XdpContext) -> Option<u32> {
    let frame = header::<Tagged>(ctx)?;
    // SAFETY: `header` checked the bounds, and `Tagged` has no alignment.
    let (_, ethertype, _) = unsafe { frame.read() }.into_parts();
    if ethertype != EtherType::Ipv4 as u16 {
        return None;
    }
    let port = ctx.ingress_ifindex() as u32;
    let (late, out_of) = (lookup(&DIVERTED, port)?, lookup(&OUT_OF, port)?);
    // SAFETY: the helper has no arguments.
    let roll = unsafe { bpf_get_prandom_u32() };
    (roll.checked_rem(out_of)? == 0).then(|| redirect(late))
}

#[inline(always)]
fn untag(ctx: &XdpContext) -> Option<u32> {
    let frame = header::<Tagged>(ctx)?;
    // SAFETY: `header` checked the bounds, and `Tagged` has no alignment.
    let (addresses, ethertype, control) = unsafe { frame.read() }.into_parts();
    if ethertype != EtherType::Ieee8021q as u16 {
        return None;
    }
    let vlan = u32::from(u16::from_be(control) & VLAN_ID);
    let port = lookup(&ACCESS_PORTS, vlan)?;
    move_start(ctx, TAG)?;
    write_addresses(ctx, addresses)?;
    Some(redirect(port))
}

#[inline(always)]
fn tag(ctx: &XdpContext) -> Option<u32> {
    let port = ctx.ingress_ifindex() as u32;
    let vlan = lookup(&VLANS, port)?;
    let trunk = lookup(&TRUNKS, port)?;
    let frame = header::<Addresses>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned read needs nothing else.
    let addresses = unsafe { frame.read_unaligned() };
    move_start(ctx, -TAG)?;
    let frame = header::<Tagged>(ctx)?;
    let tagged = Tagged {
        addresses,
        ethertype: EtherType::Ieee8021q as u16,
        control: (vlan as u16).to_be(),
    };
    // SAFETY: `header` checked the bounds, and `Tagged` has no alignment.
    unsafe { frame.write(tagged) };
    Some(redirect(trunk))
}

#[inline(always)]
fn lookup(map: &Ports, key: u32) -> Option<u32> {
    // SAFETY: no process writes while the programs run, so the value does not change under us.
    unsafe { map.get(&key) }.copied()
}

impl Tagged {
    #[inline(always)]
    fn into_parts(self) -> (Addresses, u16, u16) {
        let Self {
            addresses,
            ethertype,
            control,
        } = self;
        (addresses, ethertype, control)
    }
}

#[inline(always)]
fn write_addresses(ctx: &XdpContext, addresses: Addresses) -> Option<()> {
    let frame = header::<Addresses>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned write needs nothing else.
    unsafe { frame.write_unaligned(addresses) };
    Some(())
}

#[inline(always)]
fn move_start(ctx: &XdpContext, by: i32) -> Option<()> {
    // SAFETY: the context is that of the running program; all pointers are taken anew afterwards.
    let failed = unsafe { bpf_xdp_adjust_head(ctx.ctx, by) };
    (failed == 0).then_some(())
}
