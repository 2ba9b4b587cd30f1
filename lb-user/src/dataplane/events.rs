//! The ring buffer of flow events, as a stream.
#![expect(
    unsafe_code,
    reason = "a record of the kernel's programs is bytes until it is read"
)]

use std::{io, path::Path};

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData, RingBuf};
use lb_common::{addr::Be128, maps::event::FlowEvent};
use tokio::io::{Interest, unix::AsyncFd};

/// The flow events of the data plane. Only one process may read them.
pub struct FlowEvents {
    buffer: AsyncFd<RingBuf<MapData>>,
}

impl FlowEvents {
    /// Opens the pinned buffer in `folder`; needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the pin is missing, or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        let map = MapData::from_pin(folder.join("FLOW_EVENTS"))
            .context("open the pinned map FLOW_EVENTS")?;
        let buffer: RingBuf<MapData> = Map::RingBuf(map).try_into()?;
        // SAFETY: the buffer owns its map's descriptor, which is valid as long as the buffer is, and nothing
        // replaces or closes it meanwhile.
        let buffer = unsafe { AsyncFd::register_with_interest(buffer, Interest::READABLE) };
        let buffer = buffer.map_err(io::Error::from);
        let buffer = buffer.context("watch the flow events")?;
        Ok(Self { buffer })
    }

    /// The next event, as soon as there is one. Nothing is lost if this is not awaited to its end.
    ///
    /// # Errors
    ///
    /// If the runtime cannot watch the buffer.
    pub async fn next(&mut self) -> io::Result<FlowEvent> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            // What comes from here on makes it ready again.
            self.buffer.readable_mut().await?.clear_ready();
            if let Some(event) = self.take() {
                return Ok(event);
            }
        }
    }

    /// The next event, if it is there.
    pub fn take(&mut self) -> Option<FlowEvent> {
        loop {
            let record = self.buffer.get_mut().next()?;
            if let Some(event) = read(&record) {
                return Some(event);
            }
        }
    }
}

/// Bytes of an event before IPv6, as an older data plane reports it.
const WITHOUT_CLIENT: usize = size_of::<FlowEvent>() - size_of::<Be128>();

/// The event in a record; nothing if it is too short for one.
fn read(record: &[u8]) -> Option<FlowEvent> {
    let mut bytes = [0; size_of::<FlowEvent>()];
    let length = match record.len() {
        whole if whole >= bytes.len() => bytes.len(),
        older if older >= WITHOUT_CLIENT => WITHOUT_CLIENT,
        _ => return None,
    };
    bytes
        .get_mut(..length)?
        .copy_from_slice(record.get(..length)?);
    // SAFETY: `bytes` is as long as the event, which is plain integers: any bits are valid, and the read
    // needs no alignment.
    Some(unsafe { bytes.as_ptr().cast::<FlowEvent>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_an_event_if_it_is_whole() {
        let mut bytes = vec![0; size_of::<FlowEvent>() + 9];
        bytes[65..69].copy_from_slice(&7u32.to_ne_bytes());
        let record = &bytes[1..];
        assert_eq!(read(record).map(|event| event.id), Some(7));
        assert_eq!(read(&record[..size_of::<FlowEvent>()]).unwrap().id, 7);
        assert_eq!(read(&record[..WITHOUT_CLIENT]).unwrap().id, 7);
        assert_eq!(read(&record[..WITHOUT_CLIENT - 1]), None);
        assert_eq!(read(&[]), None);
    }
}
