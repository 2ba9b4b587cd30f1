//! IPv6 beside IPv4 on the hosts of [`Topology`]: `fd00:203::50` where IPv4 has 192.168.203.50, and
//! `fd00:32::105` for 10.32.96.105.

use std::net::{Ipv6Addr, SocketAddrV6};

use anyhow::Result;

use super::{DNS, ECHO, Host, Topology};

/// The address that tenants know.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x203, 0, 0, 0, 0, 0, 0x110);
/// The only address that backends see.
pub const SNAT6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x50);
/// TCP to the harness's own server.
pub const ECHO6: SocketAddrV6 = SocketAddrV6::new(VIP6, ECHO.port(), 0, 0);
/// UDP.
pub const DNS6: SocketAddrV6 = SocketAddrV6::new(VIP6, DNS.port(), 0, 0);

/// The IPv6 address of a host of [`Topology`], once it has one.
pub fn address6(host: &Host) -> Ipv6Addr {
    let [first, _, third, last] = host.address.octets();
    let network = if first == 10 {
        0x32
    } else {
        hexadecimal(third)
    };
    Ipv6Addr::new(0xfd00, network, 0, 0, 0, 0, 0, hexadecimal(last))
}

/// The number that has these digits in hexadecimal: `50` is 0x50.
fn hexadecimal(digits: u8) -> u16 {
    let digits = u16::from(digits);
    ((digits / 100) << 8) | (((digits / 10) % 10) << 4) | (digits % 10)
}

impl Topology {
    /// Gives every client, worker and node an IPv6 address, and a link-local one: `fe80::50`.
    ///
    /// # Errors
    ///
    /// When they have them already.
    pub fn add_ipv6(&self) -> Result<()> {
        let hosts = self.clients.iter().chain(&self.workers).chain(&self.nodes);
        for host in hosts {
            let address = address6(host);
            let [.., last] = address.segments();
            let addresses = [format!("{address}/64"), format!("fe80::{last:x}/64")];
            host.netns.add_ipv6("eth0", &addresses)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_stay_digits() {
        for (digits, number) in [(7, 0x7), (50, 0x50), (105, 0x105), (203, 0x203)] {
            assert_eq!(hexadecimal(digits), number);
        }
    }
}
