//! The ring buffer of hellos to shared VIPs, as a stream.
#![expect(
    unsafe_code,
    reason = "a record of the kernel's programs is bytes until it is read"
)]

use std::{io, path::Path};

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData, RingBuf};
use lb_common::maps::hello::HelloHead;
use tokio::io::{Interest, unix::AsyncFd};

/// The hellos that the data plane has for this process. Only one process may read them.
pub struct HelloRing {
    buffer: AsyncFd<RingBuf<MapData>>,
}

/// What a client has sent first.
#[derive(Debug)]
pub struct HelloRecord {
    /// What is known of it.
    pub head: HelloHead,
    /// The bytes of its segments, one after the other.
    pub bytes: Vec<u8>,
}

impl HelloRing {
    /// Opens the pinned buffer in `folder`; needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the pin is missing, or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        let map = MapData::from_pin(folder.join("HELLOS")).context("open the pinned map HELLOS")?;
        let buffer: RingBuf<MapData> = Map::RingBuf(map).try_into()?;
        // SAFETY: the buffer owns its map's descriptor, which is valid as long as the buffer is, and nothing
        // replaces or closes it meanwhile.
        let buffer = unsafe { AsyncFd::register_with_interest(buffer, Interest::READABLE) };
        let buffer = buffer.map_err(io::Error::from);
        let buffer = buffer.context("watch the hellos")?;
        Ok(Self { buffer })
    }

    /// The next one, as soon as there is one. Nothing is lost if this is not awaited to its end.
    ///
    /// # Errors
    ///
    /// If the runtime cannot watch the buffer.
    pub async fn next(&mut self) -> io::Result<HelloRecord> {
        loop {
            if let Some(hello) = self.take() {
                return Ok(hello);
            }
            // What comes from here on makes it ready again.
            self.buffer.readable_mut().await?.clear_ready();
            if let Some(hello) = self.take() {
                return Ok(hello);
            }
        }
    }

    /// The next one, if it is there.
    pub fn take(&mut self) -> Option<HelloRecord> {
        loop {
            let record = self.buffer.get_mut().next()?;
            if let Some(hello) = read(&record) {
                return Some(hello);
            }
        }
    }
}

/// The hello in a record; none if it is too short for one.
fn read(record: &[u8]) -> Option<HelloRecord> {
    let (head, bytes) = record.split_first_chunk::<{ size_of::<HelloHead>() }>()?;
    // SAFETY: there are as many bytes as the head has, which is plain integers: any bits are valid, and the read needs no
    // alignment.
    let head = unsafe { head.as_ptr().cast::<HelloHead>().read_unaligned() };
    let length = head.lengths.into_iter().map(usize::from).sum();
    let bytes = bytes.get(..length)?.to_vec();
    Some(HelloRecord { head, bytes })
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;

    #[test]
    fn a_record_is_a_hello_if_it_is_whole() {
        let mut record = vec![0; size_of::<HelloHead>()];
        let at = mem::offset_of!(HelloHead, lengths);
        record[at..at + 4].copy_from_slice(&[3, 0, 2, 0]);
        record.extend(b"hello and what pads it");
        let read_it = |length: usize| read(&record[..length]);
        let found = read_it(record.len()).unwrap();
        assert_eq!(
            (found.bytes.as_slice(), found.head.lengths),
            (&b"hello"[..], [3, 2])
        );
        let whole = size_of::<HelloHead>() + 5;
        assert!(read_it(whole).is_some() && read_it(whole - 1).is_none() && read_it(9).is_none());
    }
}
