//! A wire: a socket that reports what goes through it, and that others may hold besides.

use std::{
    io,
    os::fd::AsRawFd as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use nix::sys::socket::{Shutdown, shutdown};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{lines::RequestLines, timeouts::Stages};

/// Gets what goes through a wire.
pub(super) trait Note: Unpin + Send + 'static {
    /// These bytes came; none: the other end has closed its side.
    fn read(&self, bytes: &[u8]);
    /// So many bytes went.
    fn written(&self, bytes: usize);
    /// Nothing goes until the other end has read more.
    fn blocked(&self) {}
    /// All that was to go has gone.
    fn flushed(&self) {}
    /// We have closed our side.
    fn closed(&self) {}
    /// It has failed.
    fn failed(&self) {}
}

/// A socket, and what gets its bytes noted.
pub(super) struct Wire<N> {
    stream: Arc<TcpStream>,
    note: N,
}

impl<N: Note> Wire<N> {
    pub(super) const fn new(stream: Arc<TcpStream>, note: N) -> Self {
        Self { stream, note }
    }

    fn note<T>(&self, result: io::Result<T>) -> Poll<io::Result<T>> {
        if result.is_err() {
            self.note.failed();
        }
        Poll::Ready(result)
    }
}

impl<N: Note> AsyncRead for Wire<N> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Err(error) = ready!(self.stream.poll_read_ready(context)) {
                return self.note(Err(error));
            }
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(bytes) => {
                    buffer.advance(bytes);
                    let came = buffer.filled().len() - bytes;
                    self.note
                        .read(buffer.filled().get(came..).unwrap_or_default());
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.note(Err(error)),
            }
        }
    }
}

impl<N: Note> AsyncWrite for Wire<N> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.poll_write_ready(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return self.note(Err(error)),
                Poll::Pending => {
                    self.note.blocked();
                    return Poll::Pending;
                }
            }
            match self.stream.try_write_vectored(pieces) {
                Ok(bytes) => {
                    self.note.written(bytes);
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.note(Err(error)),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.note.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.note.closed();
        Poll::Ready(shutdown(self.stream.as_raw_fd(), Shutdown::Write).map_err(io::Error::from))
    }
}

/// What comes from a client, for its stage and for the lines of its requests.
pub(super) struct FromClient(pub(super) Stages, pub(super) RequestLines);

impl Note for FromClient {
    fn read(&self, bytes: &[u8]) {
        self.0.read(bytes);
        self.1.came(bytes);
    }

    fn written(&self, bytes: usize) {
        self.0.written(bytes);
    }

    fn blocked(&self) {
        self.0.blocked();
    }

    fn flushed(&self) {
        self.0.flushed();
    }
}
