//! The hand-over from one process to the next, over a unix socket: the lock of the instance, and the
//! listeners of its shared VIPs, so that at no time nobody listens. The data plane needs none: it is
//! pinned.
//!
//! The new process asks. The old one stops to be the control plane, gives what it has, and from then on
//! only finishes the connections that it carries. The new one says when it is up, so that the old one knows
//! if there will be no control plane. A message is its length, as four bytes in network order, and what it
//! is about in JSON; its descriptor comes with its first byte.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    net::SocketAddrV4,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;

use crate::{
    admin::server::{SocketFile, bind},
    dataplane::pins::Pins,
    host::Lock,
    shared::listeners::Place,
    supervisor,
};

/// How long the other process may take for its next message.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a process is told whose supervisor would be left with none.
const SUPERVISED: &str = "it runs under a supervisor, which would start it anew beside this process: \
                          `systemctl reload lb` takes over";
/// Bytes of a message at most.
const LONGEST: usize = 4096;

/// What a message is about.
#[derive(Debug, Serialize, Deserialize)]
enum Part {
    /// The lock of the instance.
    Lock,
    /// A listener.
    Listener {
        network: String,
        address: SocketAddrV4,
    },
    /// That was all. No descriptor comes with it.
    End,
    /// Nothing comes, and why. No descriptor comes with it.
    Refusal(String),
}

/// What the new process says when it has got everything and will say when it is up; one of an earlier
/// version says nothing.
const TAKEN: u8 = 0;
/// What it says when it is up.
const UP: u8 = 1;

/// What the process before has given.
#[derive(Debug)]
pub struct Inheritance {
    /// The lock of the instance.
    pub lock: Lock,
    /// The listeners of its shared VIPs.
    pub listeners: Vec<(Place, OwnedFd)>,
    /// Where it waits to hear that this process is up.
    pub giver: Giver,
}

/// The process before, which waits to hear that this one is up. It knows that this will never be when this
/// is dropped.
#[derive(Debug)]
pub struct Giver(UnixStream);

impl Giver {
    /// Says that this process is up.
    pub fn hear(mut self) {
        // It may have had nothing to finish, and is gone.
        let _gone = self.0.write_all(&[UP]);
    }
}

/// Asks the process that runs the instance of `pins` for what it has; none if there is no such process.
///
/// # Errors
///
/// If it does not give it.
pub fn inherit(pins: &Pins) -> Result<Option<Inheritance>> {
    let path = pins.heirs();
    let stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("connect to {}", path.display())),
    };
    take(stream)
        .map(Some)
        .with_context(|| format!("take over instance {}", pins.instance()))
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn take(stream: UnixStream) -> Result<Inheritance> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut lock = None;
    let mut listeners = Vec::new();
    loop {
        match receive(&stream)? {
            (Part::Lock, Some(descriptor)) => lock = Some(Lock::inherit(descriptor)?),
            (Part::Listener { network, address }, Some(descriptor)) => {
                listeners.push(((network, address), descriptor));
            }
            (Part::End, _) => break,
            (Part::Refusal(words), _) => bail!(words),
            (part, None) => bail!("{part:?} came without its descriptor"),
        }
    }
    let lock = lock.context("the lock did not come")?;
    // It may have had nothing to finish, and is gone.
    let _gone = (&stream).write_all(&[TAKEN]);
    Ok(Inheritance {
        lock,
        listeners,
        giver: Giver(stream),
    })
}

/// Where the next process asks.
#[derive(Debug)]
pub struct Door {
    listener: tokio::net::UnixListener,
    _file: SocketFile,
}

/// The next process, which has asked.
#[derive(Debug)]
pub struct Heir(UnixStream);

impl Door {
    /// Opens it, for this user and root only. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// What the file system says, with the path.
    pub fn open(pins: &Pins) -> Result<Self> {
        let path = pins.heirs();
        let open = || {
            let (listener, file) = bind(&path)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            io::Result::Ok(Self {
                listener,
                _file: file,
            })
        };
        open().with_context(|| format!("open {}", path.display()))
    }

    /// Waits for the next process.
    pub async fn heir(&self) -> Heir {
        loop {
            match self.accept().await {
                Ok(heir) => return heir,
                Err(error) => {
                    tracing::warn!("somebody wanted to take over, and did not: {error:#}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn accept(&self) -> Result<Heir> {
        let (stream, _) = self.listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        let own = nix::unistd::geteuid().as_raw();
        ensure!(uid == 0 || uid == own, "uid {uid} may not");
        let pid = stream.peer_cred()?.pid();
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        if supervisor::is_others(pid) {
            send(&stream, &Part::Refusal(SUPERVISED.to_owned()), None)?;
            bail!(
                "process {} is not the supervisor's",
                pid.unwrap_or_default()
            );
        }
        Ok(Heir(stream))
    }
}

impl Heir {
    /// Whether it has gone already.
    pub fn has_gone(&self) -> bool {
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // It says nothing before it has got something.
        recv(&self.0, &mut [0_u8; 1], peek) != Err(Errno::AGAIN)
    }

    /// Gives it what this process has. Nobody but the heir has the lock afterwards.
    ///
    /// # Errors
    ///
    /// If it has gone, or does not take it.
    pub fn give(&self, lock: Lock, listeners: Vec<(Place, OwnedFd)>) -> Result<()> {
        let stream = &self.0;
        send(stream, &Part::Lock, Some(&lock.into()))?;
        for ((network, address), descriptor) in listeners {
            let part = Part::Listener { network, address };
            send(stream, &part, Some(&descriptor))?;
        }
        send(stream, &Part::End, None)
    }

    /// Waits until it is up; or it has ended before, which is `false`. One of an earlier version does not
    /// say it, and counts as up. Needs a tokio runtime.
    pub async fn is_up(self) -> bool {
        let read = async {
            self.0.set_nonblocking(true)?;
            let mut stream = tokio::net::UnixStream::from_std(self.0)?;
            io::Result::Ok((stream.read_u8().await?, stream.read_u8().await.ok()))
        };
        match read.await {
            Ok((TAKEN, said)) => said == Some(UP),
            _ => true,
        }
    }
}

fn send(mut stream: &UnixStream, part: &Part, descriptor: Option<&OwnedFd>) -> Result<()> {
    let text = serde_json::to_vec(part)?;
    let length = u32::try_from(text.len())?.to_be_bytes();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor
        .iter()
        .map(|descriptor| descriptor.as_fd())
        .collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&length)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    ensure!(sent == length.len(), "the other process does not read");
    stream.write_all(&text)?;
    Ok(())
}

fn receive(mut stream: &UnixStream) -> Result<(Part, Option<OwnedFd>)> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut length)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    ensure!(received.bytes > 0, "the other process has ended");
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    if let Some(rest) = length.get_mut(received.bytes..) {
        stream.read_exact(rest)?;
    }
    let length = usize::try_from(u32::from_be_bytes(length))?;
    ensure!(length <= LONGEST, "a message of {length} bytes");
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok((serde_json::from_slice(&text)?, descriptor))
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    fn place(network: &str, address: &str) -> Place {
        (network.to_owned(), address.parse().unwrap())
    }

    #[test]
    fn what_is_given_is_taken() {
        let (old, new) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = Lock::at(&path, "i").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listeners = vec![
            (place("a", "10.0.0.1:443"), listener.into()),
            (
                place("b", "10.0.0.1:443"),
                TcpListener::bind("127.0.0.1:0").unwrap().into(),
            ),
        ];
        let heir = Heir(old);
        assert!(!heir.has_gone());
        let giver = thread::spawn(move || heir.give(lock, listeners).map(|()| heir));
        let Inheritance {
            lock,
            listeners,
            giver: before,
        } = take(new).unwrap();
        let heir = giver.join().unwrap().unwrap();
        let places: Vec<&Place> = listeners.iter().map(|(place, _)| place).collect();
        assert_eq!(
            places,
            [&place("a", "10.0.0.1:443"), &place("b", "10.0.0.1:443")]
        );
        let mut listeners = listeners.into_iter();
        let first = TcpListener::from(listeners.next().unwrap().1);
        assert_eq!(first.local_addr().unwrap(), address);
        // It has been held all the time, and ends with the one who has it.
        assert!(Lock::at(&path, "i").is_err());
        drop(lock);
        assert!(Lock::at(&path, "i").is_ok());
        before.hear();
        assert!(is_up(heir));
    }

    #[test]
    fn an_heir_that_ends_before_it_is_up_is_missed() {
        let (old, new) = UnixStream::pair().unwrap();
        let heir = Heir(old);
        assert!(!heir.has_gone());
        (&new).write_all(&[TAKEN]).unwrap();
        drop(Giver(new));
        assert!(!is_up(heir));
    }

    #[test]
    fn an_heir_of_an_earlier_version_says_nothing_and_is_up() {
        let (old, new) = UnixStream::pair().unwrap();
        let heir = Heir(old);
        drop(new);
        assert!(heir.has_gone());
        assert!(is_up(heir));
    }

    fn is_up(heir: Heir) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(heir.is_up())
    }

    /// Who has nothing to finish ends as soon as it has given everything.
    #[test]
    fn who_has_given_everything_may_be_gone() {
        let (old, new) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::at(&folder.path().join("lock"), "i").unwrap();
        let heir = Heir(old);
        heir.give(lock, Vec::new()).unwrap();
        drop(heir);
        take(new).unwrap().giver.hear();
    }

    #[test]
    fn half_of_it_is_nothing() {
        for sent in [
            &b""[..],
            b"\0",
            b"\0\0\0\x05\"End",
            b"\0\0\0\x05\"End\"",
            b"\0\0\0\x06\"Lock\"",
            b"\xff\xff\xff\xff",
        ] {
            let (mut old, new) = UnixStream::pair().unwrap();
            old.write_all(sent).unwrap();
            drop(old);
            assert!(take(new).is_err(), "{sent:?}");
        }
    }
}
