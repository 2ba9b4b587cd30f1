//! One request of HTTP/1.1 and its answer, as the two ends of the bench say them.

use anyhow::{Context as _, Result, ensure};
use lb_tests::traffic::hello::CAPTURED_NAME;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::tcp::answer::Wish;

/// The most bytes of a head, with what a proxy adds to it.
const MAX_HEAD: usize = 1 << 16;
const END: &[u8] = b"\r\n\r\n";

/// The request of a wish, on a connection that ends with its answer.
pub(crate) fn request(wish: Wish) -> Vec<u8> {
    let Wish { bytes, number } = wish;
    let line = format!("GET /{bytes}/{number} HTTP/1.1\r\n");
    format!("{line}Host: {CAPTURED_NAME}\r\nConnection: close\r\n\r\n").into_bytes()
}

/// The head of the answer to it.
pub(crate) fn answer_head(wish: Wish) -> Vec<u8> {
    let length = wish.bytes;
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").into_bytes()
}

/// The wish of a request with this head.
///
/// # Errors
///
/// When it is none of [`request`].
pub(crate) fn wish(head: &str) -> Result<Wish> {
    let path = head.split(' ').nth(1);
    let numbers = path.and_then(|path| path.strip_prefix('/')?.split_once('/'));
    let (bytes, number) = numbers.with_context(|| format!("a path in {head:?}"))?;
    Ok(Wish {
        bytes: bytes.parse()?,
        number: number.parse()?,
    })
}

/// Reads a head to its end; what came behind it, too.
///
/// # Errors
///
/// When the connection fails or ends before, or the head is too long.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<(String, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let read = stream.read_buf(&mut head).await.context("read a head")?;
        ensure!(read > 0, "the connection has ended within a head");
        if let Some(end) = head.windows(END.len()).position(|bytes| bytes == END) {
            let rest = head.split_off(end + END.len());
            return Ok((String::from_utf8(head)?, rest));
        }
        ensure!(head.len() < MAX_HEAD, "a head of {} bytes", head.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_read_as_it_was_written() {
        let wish = Wish {
            bytes: 3000,
            number: 77,
        };
        let mut all = request(wish);
        all.extend(b"rest");
        let (head, rest) = read_head(&mut &all[..]).await.expect("a head");
        assert_eq!(
            (super::wish(&head).expect("a wish"), &rest[..]),
            (wish, &b"rest"[..])
        );
        let half = read_head(&mut &all[..20]).await;
        assert!(half.is_err());
        assert!(super::wish("GET / HTTP/1.1").is_err());
    }
}
