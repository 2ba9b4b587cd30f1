//! Many elements of a map of numbers in one system call.
#![expect(unsafe_code, reason = "aya has no batch operations")]

use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Pod,
    maps::{Array, HashMap, InnerMap, MapData},
};
use nix::{
    errno::Errno,
    libc::{self, c_int},
};

/// Commands of `bpf(2)`, of Linux 5.6; for maps of maps of 5.19. See [`bpf.h`].
///
/// [`bpf.h`]: https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/bpf.h#L924
const BPF_MAP_LOOKUP_BATCH: c_int = 24;
const BPF_MAP_UPDATE_BATCH: c_int = 26;

/// `union bpf_attr`, as far as these commands read it.
#[repr(C)]
struct Attributes {
    in_batch: u64,
    out_batch: u64,
    /// Addresses of keys and values, one behind the other.
    keys: u64,
    values: u64,
    /// How many there are; the kernel writes how many it took.
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// Writes `values` to `keys` of a map whose keys and values are numbers of 32 bits (of a map of maps: descriptors).
/// They are written one after the other, in their order.
///
/// # Errors
///
/// If the kernel refuses one, or does not know the command for this kind of map: those before it are written.
pub(super) fn update(map: &impl InnerMap, keys: &[u32], values: &[u32]) -> Result<()> {
    let mut attributes = Attributes {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr().addr() as u64,
        values: values.as_ptr().addr() as u64,
        count: u32::try_from(keys.len().min(values.len())).context("count the elements")?,
        map: descriptor(map),
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads `count` numbers of 32 bits from
    // each of the slices, which both have as many and outlive the call.
    let result = unsafe { call(BPF_MAP_UPDATE_BATCH, &mut attributes) };
    result.context("write elements of a map")
}

/// All values of an array of numbers of 32 bits.
///
/// # Errors
///
/// If the kernel refuses it.
pub(super) fn values(map: &Array<MapData, u32>) -> Result<Vec<u32>> {
    let (count, descriptor) = (map.len(), descriptor(map));
    let room = usize::try_from(count).context("count the elements")?;
    let (mut last, mut keys, mut values) = (0_u32, vec![0_u32; room], vec![0_u32; room]);
    let mut attributes = Attributes {
        in_batch: 0,
        out_batch: (&raw mut last).addr() as u64,
        keys: keys.as_mut_ptr().addr() as u64,
        values: values.as_mut_ptr().addr() as u64,
        count,
        map: descriptor,
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel writes one number of 32 bits to `last`, and
    // `count` of them to each of the vectors, which have as many and outlive the call.
    let result = unsafe { call(BPF_MAP_LOOKUP_BATCH, &mut attributes) };
    match result {
        // There are no more than were wanted.
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(error) => return Err(error).context("read elements of a map"),
    }
    let read = attributes.count;
    ensure!(read == count, "read {read} of {count} elements of a map");
    Ok(values)
}

/// Keys of a hash whose keys are numbers of 32 bits.
pub(super) struct Keys {
    /// Some of them.
    pub(super) keys: Vec<u32>,
    /// Where the next ones are; none behind the last one.
    pub(super) next: Option<u32>,
}

/// Keys of a hash from a place on that an earlier call has given, or from its beginning: `room` of them at most, which is to be
/// more than one bucket has.
///
/// # Errors
///
/// If the kernel refuses it.
pub(super) fn keys<V: Pod>(
    map: &HashMap<MapData, u32, V>,
    from: Option<u32>,
    room: u32,
) -> Result<Keys> {
    let many = usize::try_from(room).context("count the elements")?;
    let (first, mut next) = (from.unwrap_or_default(), 0_u32);
    let mut keys = vec![0_u32; many];
    let mut values = vec![0_u8; many * size_of::<V>()];
    let mut attributes = Attributes {
        in_batch: from.map_or(0, |_| (&raw const first).addr() as u64),
        out_batch: (&raw mut next).addr() as u64,
        keys: keys.as_mut_ptr().addr() as u64,
        values: values.as_mut_ptr().addr() as u64,
        count: room,
        map: descriptor(map),
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads one number of 32 bits from `first`; it
    // writes one to `next`, and `count` keys and values to the vectors, which have as much room. All outlive the call.
    let result = unsafe { call(BPF_MAP_LOOKUP_BATCH, &mut attributes) };
    let is_last = match result {
        Ok(()) => false,
        // Behind the last bucket.
        Err(Errno::ENOENT) => true,
        Err(error) => return Err(error).context("read elements of a map"),
    };
    keys.truncate(usize::try_from(attributes.count).context("count the elements")?);
    Ok(Keys {
        keys,
        next: (!is_last).then_some(next),
    })
}

/// Has the kernel carry out one of the commands.
///
/// # Safety
///
/// The addresses in `attributes` must be those of as much memory as the command reads and writes there.
unsafe fn call(command: c_int, attributes: &mut Attributes) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes `attributes`, whose size it gets; the caller vouches for the rest.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw mut *attributes,
            size_of::<Attributes>(),
        )
    };
    Errno::result(result).map(drop)
}

fn descriptor(map: &impl InnerMap) -> u32 {
    map.fd().as_fd().as_raw_fd().cast_unsigned()
}
