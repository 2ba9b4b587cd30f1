//! The keys of two boxes with one service.

use std::net::SocketAddr;

use super::{
    declare::section,
    kinds::{Address, Entries, File, Name, kinds},
    values::parsed,
};
use crate::config::{address, place::At};

section! {
    /// Two boxes with one service: the active one has the VIPs, and the standby knows its flows. Both have the same file but for
    /// `box`, and `syn_cookie_key` is required. No network may have `address: host`.
    struct RawHa = "ha" {
        /// The name of this box among `boxes`.
        optional r#box: Name => "the host name, up to its first dot",
        /// The boxes, two for now, by names as networks have them.
        required boxes: Entries<RawBox>,
        /// The address that keepalived gives to the active box: the box that has it on one of its interfaces is active. It is no VIP,
        /// no SNAT address and none of `checks_from`.
        required marker: Address,
        /// A PEM file, by its path from the root, with the CAs that certificates of boxes are from.
        required ca: File,
        /// A PEM file with this box's certificate, and those between it and a CA.
        required certificate: File,
        /// A PEM file with the key of that certificate. No other user may read it.
        required key: File,
    }
}

section! {
    /// One of the boxes.
    struct RawBox = "box" {
        /// The address and port at which the other box reaches it, on a network between the two; 1024 or more.
        required sync: EndpointOfBox,
    }
}

kinds! {
    EndpointOfBox("address and port"): Option<At<SocketAddr>> = parsed(address::endpoint_of_box);
}
