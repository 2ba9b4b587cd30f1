//! Bytes from one socket to another through a pipe of the kernel, without a copy in this process.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, SpliceFFlags, splice},
    sys::socket::{Shutdown, shutdown},
    unistd::pipe2,
};

use tokio::{io::Interest, net::TcpStream, task::consume_budget, time::sleep};

use crate::proxy::fd_budget::Descriptors;

/// Bytes that are moved at most in one go: what a pipe holds.
const PIPE_BYTES: usize = 1 << 16;
/// How long until a pipe that could not be had is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Pipes that nothing is in. A connection has one only while bytes are on their way.
#[derive(Clone, Debug)]
pub(crate) struct Pipes {
    spare: Rc<RefCell<Vec<Pipe>>>,
    /// How many of them are kept.
    most: usize,
}

#[derive(Debug)]
struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

/// Which socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The one that is read.
    From,
    /// The one that is written.
    To,
}

impl Pipes {
    /// As many as [`Descriptors`] lets one of so many threads of a network keep for later.
    pub(crate) fn new(descriptors: &Descriptors, threads: usize) -> Self {
        Self {
            spare: Rc::default(),
            most: descriptors.spare_pipes().div_ceil(threads.max(1)),
        }
    }

    fn take(&self) -> io::Result<Pipe> {
        let spare = self.spare.borrow_mut().pop();
        spare.map_or_else(Pipe::open, Ok)
    }

    /// Keeps an empty pipe.
    fn give_back(&self, pipe: Pipe) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < self.most {
            spare.push(pipe);
        }
    }
}

impl Pipe {
    fn open() -> io::Result<Self> {
        let (out, into) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Self { out, into })
    }
}

/// Moves bytes until `from` has closed its side, and then closes that of `to`. `note` gets how many have
/// arrived, each time.
///
/// # Errors
///
/// What failed first. Bytes may be lost then.
pub(super) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    pipes: &Pipes,
    note: impl Fn(usize),
) -> Result<(), Failed> {
    loop {
        from.readable().await.map_err(|_| Failed::From)?;
        // A task that always finds bytes and room lets others have their turn.
        consume_budget().await;
        let Ok(pipe) = pipes.take() else {
            // No descriptors are left: the bytes wait in the socket.
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        let read = from.try_io(Interest::READABLE, || {
            move_bytes(from, &pipe.into, PIPE_BYTES)
        });
        match read {
            Ok(0) => {
                pipes.give_back(pipe);
                // It may be gone already, which its other direction will find.
                let _gone = shutdown(to.as_raw_fd(), Shutdown::Write);
                return Ok(());
            }
            Ok(bytes) => {
                empty(&pipe, to, bytes, &note)
                    .await
                    .map_err(|_| Failed::To)?;
                pipes.give_back(pipe);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => pipes.give_back(pipe),
            Err(_) => return Err(Failed::From),
        }
    }
}

/// Moves the bytes that are in the pipe.
async fn empty(pipe: &Pipe, to: &TcpStream, bytes: usize, note: impl Fn(usize)) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        to.writable().await?;
        consume_budget().await;
        match to.try_io(Interest::WRITABLE, || move_bytes(&pipe.out, to, left)) {
            Ok(written) => {
                note(written);
                left -= written;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn move_bytes(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    loop {
        match splice(&from, None, &to, None, most, flags) {
            Err(Errno::EINTR) => {}
            moved => return Ok(moved?),
        }
    }
}
