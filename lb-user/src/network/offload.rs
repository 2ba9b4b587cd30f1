//! Offloads of interfaces: what the driver does to frames before XDP sees them.
//!
//! No netlink library sets these yet, so this is done by ioctl (linux/ethtool.h).
#![expect(unsafe_code, reason = "SIOCETHTOOL takes a pointer inside an ifreq")]

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    errno::Errno,
    libc::{self, c_char},
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

const GET_DRIVER: u32 = 0x03;
const GET_TX_CHECKSUM: u32 = 0x16;
const SET_TX_CHECKSUM: u32 = 0x17;
const GET_STRINGS: u32 = 0x1b;
const GET_STRING_COUNT: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;

/// `ETH_SS_FEATURES`: the set of the features' names.
const FEATURE_NAMES: u32 = 4;
/// Words of `struct ethtool_drvinfo`, of which the second to ninth are the driver's name.
const DRIVER_WORDS: usize = 49;
/// Bytes of a name (`ETH_GSTRING_LEN`).
const NAME_BYTES: usize = 32;
/// Words of a block of 32 features: available, requested, active, never changed.
const BLOCK: usize = 4;

mod ioctl {
    nix::ioctl_readwrite_bad!(ethtool, nix::libc::SIOCETHTOOL, nix::libc::ifreq);
}

/// A feature of an interface, as `ethtool -k` knows it by its kernel name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Feature {
    /// Whether it is on.
    pub(super) active: bool,
    /// Whether it can be changed.
    pub(super) changeable: bool,
    bit: usize,
    /// Blocks of all features: the kernel wants the bits of all of them.
    blocks: usize,
}

/// Prepares a veth end of the calling thread's namespace for XDP redirects: a frame from a kernel
/// stack must carry its whole checksum before XDP sees it, and a veth end takes redirected frames
/// only with NAPI, which GRO switches on.
///
/// # Errors
///
/// If the interface does not exist, or a setting does not hold.
pub(super) fn prepare_veth(interface: &str) -> Result<()> {
    call(interface, &mut [SET_TX_CHECKSUM, 0])
        .with_context(|| format!("set tx checksum offload of {interface} off"))?;
    let mut found = [GET_TX_CHECKSUM, 1];
    call(interface, &mut found)?;
    ensure!(
        found == [GET_TX_CHECKSUM, 0],
        "tx checksum offload of {interface} was set off, but it reads on"
    );
    set(interface, "rx-gro", true)
}

/// The name of the driver of an interface; empty if it has none.
///
/// # Errors
///
/// If the interface does not exist.
pub(super) fn driver(interface: &str) -> Result<String> {
    let mut request = [0; DRIVER_WORDS];
    request[0] = GET_DRIVER;
    match call(interface, &mut request) {
        Err(error) if error.downcast_ref() == Some(&Errno::EOPNOTSUPP) => return Ok(String::new()),
        called => called.with_context(|| format!("read the driver of {interface}"))?,
    }
    let name: Vec<u8> = request
        .iter()
        .skip(1)
        .take(NAME_BYTES / size_of::<u32>())
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    Ok(text(&name))
}

/// A feature of an interface by its kernel name, or `None` if the kernel has no such feature.
///
/// # Errors
///
/// If the interface does not exist.
pub(super) fn feature(interface: &str, name: &str) -> Result<Option<Feature>> {
    let names = names(interface).with_context(|| format!("list the features of {interface}"))?;
    let Some(bit) = names.iter().position(|found| found == name) else {
        return Ok(None);
    };
    let blocks = names.len().div_ceil(32);
    let mut request = vec![0; 2 + blocks * BLOCK];
    if let [command, size, ..] = request.as_mut_slice() {
        (*command, *size) = (GET_FEATURES, u32::try_from(blocks)?);
    }
    call(interface, &mut request).with_context(|| format!("read {name} of {interface}"))?;
    let word = |offset: usize| request.get(2 + bit / 32 * BLOCK + offset).copied();
    let has = |offset| word(offset).is_some_and(|word| word >> (bit % 32) & 1 == 1);
    Ok(Some(Feature {
        active: has(2),
        changeable: has(0) && !has(3),
        bit,
        blocks,
    }))
}

/// Switches a feature on or off, and reads it back.
///
/// # Errors
///
/// If the interface does not have it, or it does not hold.
pub(super) fn set(interface: &str, name: &str, on: bool) -> Result<()> {
    let Some(feature) = feature(interface, name)? else {
        bail!("{interface} has no feature {name}");
    };
    let mut request = vec![0; 2 + feature.blocks * 2];
    if let [command, size, blocks @ ..] = request.as_mut_slice() {
        (*command, *size) = (SET_FEATURES, u32::try_from(feature.blocks)?);
        if let Some([valid, requested, ..]) = blocks.get_mut(feature.bit / 32 * 2..) {
            *valid = 1 << (feature.bit % 32);
            *requested = if on { *valid } else { 0 };
        }
    }
    call(interface, &mut request)
        .with_context(|| format!("switch {name} of {interface} {}", word(on)))?;
    let now = self::feature(interface, name)?.is_some_and(|feature| feature.active);
    ensure!(
        now == on,
        "{name} of {interface} was switched {}, but it reads {}",
        word(on),
        word(now)
    );
    Ok(())
}

const fn word(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// The kernel's names of all features; the position is the bit.
fn names(interface: &str) -> Result<Vec<String>> {
    // Command, reserved, a mask of 64 bits, and one length.
    let mut count = [GET_STRING_COUNT, 0, 1 << FEATURE_NAMES, 0, 0];
    call(interface, &mut count)?;
    let [.., count] = count;
    let count = usize::try_from(count)?;
    let mut request = vec![0u32; 3 + count * NAME_BYTES / size_of::<u32>()];
    if let [command, set, length, ..] = request.as_mut_slice() {
        (*command, *set, *length) = (GET_STRINGS, FEATURE_NAMES, u32::try_from(count)?);
    }
    call(interface, &mut request)?;
    let bytes: Vec<u8> = request
        .iter()
        .skip(3)
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    Ok(bytes.chunks(NAME_BYTES).map(text).collect())
}

/// A name up to its terminating zero.
fn text(name: &[u8]) -> String {
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// One ethtool command; `request` begins with its number and has room for the answer that the
/// command gives for the lengths in it.
fn call(interface: &str, request: &mut [u32]) -> Result<()> {
    ensure!(
        interface.len() < libc::IFNAMSIZ,
        "{interface} is no interface name"
    );
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut name: [c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    let mut ifreq = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: request.as_mut_ptr().cast(),
        },
    };
    // SAFETY: the ifreq holds a terminated name and a pointer to a live buffer that is as long as
    // the lengths in its header say, which is all that these commands read and write.
    unsafe { ioctl::ethtool(socket.as_raw_fd(), &raw mut ifreq) }?;
    Ok(())
}
