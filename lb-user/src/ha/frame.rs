//! Frames: the length of all messages in one, four bytes, and behind it each message as postcard writes it.

use std::io::{Error, ErrorKind};

use anyhow::{Context as _, Result};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes after which a frame is sent.
const FULL: usize = 1 << 15;
/// Most bytes of a frame: those of the last message come on top of a full one.
const MAX_BYTES: usize = 1 << 16;
/// Bytes of the length.
const LENGTH: usize = size_of::<u32>();

/// Messages that wait to be sent.
#[derive(Debug)]
pub struct MessageFrame {
    /// The length first, which is written last.
    bytes: Vec<u8>,
}

impl Default for MessageFrame {
    fn default() -> Self {
        Self {
            bytes: vec![0; LENGTH],
        }
    }
}

impl MessageFrame {
    /// Adds a message.
    ///
    /// # Errors
    ///
    /// If it cannot be written as postcard.
    pub fn push(&mut self, message: &impl Serialize) -> Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(message, bytes).context("write a message")?;
        Ok(())
    }

    /// Whether it is to be sent before more is added.
    pub const fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }

    /// Sends what there is, if anything.
    ///
    /// # Errors
    ///
    /// Those of the stream.
    pub async fn send(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        let length = self.bytes.len() - LENGTH;
        if length == 0 {
            return Ok(());
        }
        let written = u32::try_from(length)?.to_be_bytes();
        self.bytes[..LENGTH].copy_from_slice(&written);
        stream.write_all(&self.bytes).await?;
        stream.flush().await?;
        self.bytes.truncate(LENGTH);
        Ok(())
    }
}

/// Reads a frame.
///
/// # Errors
///
/// Those of the stream, or if it is longer than any.
pub async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let length = usize::try_from(stream.read_u32().await?)?;
    if length > MAX_BYTES {
        let words = format!("a frame of {length} bytes; {MAX_BYTES} are the most");
        return Err(Error::new(ErrorKind::InvalidData, words).into());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// The messages of a frame, in order; the first error is the last.
pub fn messages<T: DeserializeOwned>(mut bytes: &[u8]) -> impl Iterator<Item = Result<T>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let read = postcard::take_from_bytes(std::mem::take(&mut bytes));
        Some(match read {
            Ok((message, rest)) => {
                bytes = rest;
                Ok(message)
            }
            Err(error) => Err(error).context("read a message"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ha::{dictionary::ObjectNumber, message::SyncMessage};

    fn named(id: u32) -> SyncMessage {
        SyncMessage::Object(ObjectNumber {
            kind: 1,
            id,
            name: "x".repeat(200),
        })
    }

    #[tokio::test]
    async fn messages_come_as_they_were_sent() {
        let mut stream = Vec::new();
        let mut frame = MessageFrame::default();
        frame.send(&mut stream).await.unwrap();
        assert!(stream.is_empty(), "nothing to send");
        let sent: Vec<SyncMessage> = (0..3).map(named).chain([SyncMessage::Passed]).collect();
        for message in &sent {
            frame.push(message).unwrap();
        }
        frame.send(&mut stream).await.unwrap();
        frame.push(&SyncMessage::Passed).unwrap();
        frame.send(&mut stream).await.unwrap();
        let mut stream = stream.as_slice();
        let first = receive(&mut stream).await.unwrap();
        let first: Vec<SyncMessage> = messages(&first).map(Result::unwrap).collect();
        assert_eq!(first, sent);
        let second = receive(&mut stream).await.unwrap();
        let mut second = messages(&second).map(Result::unwrap);
        assert_eq!(second.next(), Some(SyncMessage::Passed));
        assert_eq!(second.next(), None);
        assert!(receive(&mut stream).await.is_err());
    }

    #[tokio::test]
    async fn a_full_frame_is_one_that_is_taken() {
        let mut frame = MessageFrame::default();
        while !frame.is_full() {
            frame.push(&named(7)).unwrap();
        }
        let mut stream = Vec::new();
        frame.send(&mut stream).await.unwrap();
        assert!(receive(&mut stream.as_slice()).await.is_ok());
        let longer = u32::try_from(MAX_BYTES).unwrap() + 1;
        let error = receive(&mut longer.to_be_bytes().as_slice()).await;
        assert!(error.unwrap_err().to_string().contains("65537 bytes"));
    }

    #[test]
    fn what_is_no_message_is_an_error_once() {
        let mut read = messages::<SyncMessage>(&[5, 77, 77, 77]);
        assert_eq!(read.next().unwrap().unwrap(), SyncMessage::Passed);
        assert!(read.next().unwrap().is_err());
        assert!(read.next().is_none());
    }
}
