//! The hand-over from one process to the next, over a unix socket: the lock of the instance, and the
//! listeners of its shared VIPs, so that there is a listener at all times. The data plane needs no hand-over:
//! it is pinned.
//!
//! The new process connects, and sends the version of this protocol that it speaks. The old one rests, gives
//! duplicates of what it has, and keeps its own until the new one is up: if that dies before, the old one
//! goes on. Afterwards it only finishes the connections that it carries. A message is its length, as four
//! bytes in network order, and what it is about in JSON; its descriptor comes with its first byte. The new
//! process sends single bytes.
//!
//! Processes from before there were versions send none. They do not wait for one either, so a new process
//! that is turned away without an answer connects again and sends none.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    net::{Shutdown, SocketAddrV4},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncReadExt as _, time};

use crate::{
    admin::server::{SocketFile, bind},
    dataplane::pins::Pins,
    host::{self, Lock},
    system::systemd::{self, ListenerKey},
};

/// How long the other process may take for its next message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The refusal where the supervisor of the old process would be left with none.
const SUPERVISED: &str = "it runs under a supervisor, which would start it anew beside this process: \
                          `systemctl reload lb` takes over";
/// Bytes of a message at most.
const MAX_MESSAGE: usize = 4096;

/// How long a new process may take to send its version. One from before there were versions sends none.
const FIRST_WORD: Duration = Duration::from_millis(200);
/// How long a new process that has closed its end may take to be gone.
const LEAVES: Duration = Duration::from_secs(3);
/// How often that is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What a message is about.
#[derive(Debug, Serialize, Deserialize)]
enum Part {
    /// The version that the old process speaks. Only for one that has sent its own. No descriptor comes with
    /// it.
    Version(u8),
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

/// Sent by the new process when it has got everything and will send `UP`.
const TAKEN: u8 = 0;
/// Sent when it is up.
const UP: u8 = 1;
/// Sent first: it speaks this version. No other message has this number.
const VERSION: u8 = 2;
/// Sent before it has its supervisor take it for the main process: if it dies from then on, the supervisor
/// starts another one.
const MAIN: u8 = 3;

/// What the process before has given.
#[derive(Debug)]
pub struct Handoff {
    /// The lock of the instance.
    pub lock: Lock,
    /// The listeners of its shared VIPs.
    pub listeners: Vec<(ListenerKey, OwnedFd)>,
    /// Where it waits for `UP` of this process.
    pub giver: Predecessor,
}

/// The process before, which waits for `UP` of this one. When this is dropped, it sees that this one will
/// never be up.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    /// None: from before there were versions.
    version: Option<u8>,
}

impl Predecessor {
    /// Sends that the supervisor is about to take this process for the main one.
    pub fn prepare(&self) {
        if self.version.is_some() {
            self.say(MAIN);
        }
    }

    /// Sends that this process is up.
    pub fn hear(self) {
        self.say(UP);
    }

    fn say(&self, word: u8) {
        // It may have had nothing to finish, and is gone.
        let _gone = (&self.stream).write_all(&[word]);
    }
}

/// Takes over from the process that runs the instance of `pins` what it has; none if there is no such
/// process.
///
/// # Errors
///
/// If it does not give it.
pub fn inherit(pins: &Pins) -> Result<Option<Handoff>> {
    let path = pins.heirs();
    let ask = |word: &[u8]| -> Result<Asked> {
        let mut stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(error) if is_absent(&error) => return Ok(Asked::Absent),
            Err(error) => {
                return Err(error).with_context(|| format!("connect to {}", path.display()));
            }
        };
        // One that is gone gives nothing.
        let _gone = stream.write_all(word);
        take(stream).with_context(|| format!("take over instance {}", pins.instance()))
    };
    let mut asked = ask(&[VERSION])?;
    if matches!(asked, Asked::TurnedAway) {
        asked = ask(&[])?;
    }
    match asked {
        Asked::Given(inheritance) => Ok(Some(*inheritance)),
        Asked::Absent => Ok(None),
        Asked::TurnedAway => bail!(
            "take over instance {}: the old process has ended",
            pins.instance()
        ),
    }
}

/// What came of the request.
#[derive(Debug)]
enum Asked {
    Given(Box<Handoff>),
    /// It has closed without an answer.
    TurnedAway,
    /// There is no such process.
    Absent,
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn take(stream: UnixStream) -> Result<Asked> {
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    let (mut version, mut lock) = (None, None);
    let mut listeners = Vec::new();
    let mut next = receive(&stream)?;
    if next.is_none() {
        return Ok(Asked::TurnedAway);
    }
    loop {
        match next.context("the old process has ended")? {
            (Part::Version(said), _) => version = Some(said),
            (Part::Lock, Some(descriptor)) => lock = Some(Lock::inherit(descriptor)?),
            (Part::Listener { network, address }, Some(descriptor)) => {
                listeners.push(((network, address), descriptor));
            }
            (Part::End, _) => break,
            (Part::Refusal(words), _) => bail!(words),
            (part, None) => {
                bail!("the message {part:?} of the old process came without its descriptor")
            }
        }
        next = receive(&stream)?;
    }
    let lock = lock.context("the old process has not sent the lock of the instance")?;
    let giver = Predecessor { stream, version };
    giver.say(TAKEN);
    Ok(Asked::Given(Box::new(Handoff {
        lock,
        listeners,
        giver,
    })))
}

/// Where the next process connects.
#[derive(Debug)]
pub struct TakeoverListener {
    listener: tokio::net::UnixListener,
    file: SocketFile,
}

/// The next process, which has connected.
#[derive(Debug)]
pub struct Successor {
    stream: UnixStream,
    /// None where its processes are not visible from here.
    pid: Option<i32>,
    /// None: from before there were versions.
    version: Option<u8>,
}

/// What became of the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is up.
    Up,
    /// It is gone before it was up, and no other process will be the control plane.
    Gone,
    /// It will not be up, but it lives on with what it has got, or a supervisor starts another one.
    Lost,
}

impl TakeoverListener {
    /// Opens it, for this user and root only. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// The error of the file system, with the path.
    pub fn open(pins: &Pins) -> Result<Self> {
        let path = pins.heirs();
        let open = || {
            let (listener, file) = bind(&path)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            io::Result::Ok(Self { listener, file })
        };
        open().with_context(|| format!("open {}", path.display()))
    }

    /// Whether the next process would find it.
    pub fn is_there(&self) -> bool {
        self.file.is_there()
    }

    /// Waits for the next process.
    pub async fn heir(&self) -> Successor {
        loop {
            match self.accept().await {
                Ok(heir) => return heir,
                Err(error) => {
                    tracing::warn!("refused a process that connected to take over: {error:#}");
                    time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn accept(&self) -> Result<Successor> {
        let (stream, _) = self.listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        let own = nix::unistd::geteuid().as_raw();
        ensure!(
            uid == 0 || uid == own,
            "it runs as uid {uid}, and only root and the own user may take over"
        );
        let pid = stream.peer_cred()?.pid();
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
        if systemd::is_others(pid) {
            send(&stream, &Part::Refusal(SUPERVISED.to_owned()), None)?;
            bail!(
                "process {} is not in the supervisor's control group",
                pid.unwrap_or_default()
            );
        }
        Ok(Successor {
            stream,
            pid,
            version: None,
        })
    }
}

impl Successor {
    /// Waits for its first byte, which is its version; none if it has gone already. Needs a tokio runtime.
    pub async fn greeted(mut self) -> Option<Self> {
        let read = async {
            self.stream.set_nonblocking(true)?;
            let mut stream = tokio::net::UnixStream::from_std(self.stream.try_clone()?)?;
            let word = time::timeout(FIRST_WORD, stream.read_u8()).await;
            self.stream.set_nonblocking(false)?;
            io::Result::Ok(word)
        };
        match read.await {
            Ok(Ok(Ok(version))) => self.version = Some(version),
            // It sends nothing.
            Ok(Err(_)) => {}
            Ok(Ok(Err(_))) | Err(_) => return None,
        }
        Some(self)
    }

    /// Gives it duplicates of what this process has.
    ///
    /// # Errors
    ///
    /// If it has gone, or does not take it; the connection is shut down then.
    pub fn give(
        &self,
        lock: &Lock,
        listeners: io::Result<Vec<(ListenerKey, OwnedFd)>>,
    ) -> Result<()> {
        let give = || {
            let stream = &self.stream;
            let listeners = listeners.context("duplicate the listeners")?;
            if self.version.is_some() {
                send(stream, &Part::Version(VERSION), None)?;
            }
            send(stream, &Part::Lock, Some(lock.as_fd()))?;
            for ((network, address), descriptor) in listeners {
                let part = Part::Listener { network, address };
                send(stream, &part, Some(descriptor.as_fd()))?;
            }
            send(stream, &Part::End, None)
        };
        give().inspect_err(|_| {
            // It has gone, or will see this.
            let _gone = self.stream.shutdown(Shutdown::Both);
        })
    }

    /// Waits until it is up or will not be. Needs a tokio runtime.
    pub async fn fate(self) -> Fate {
        let said = self.said().await.unwrap_or_default();
        if said.last() == Some(&UP) {
            return Fate::Up;
        }
        let is_gone = self.is_gone().await;
        let is_versioned = self.version.is_some();
        // One without a version does not send `MAIN`: a supervisor may have taken it for the main process.
        let starts_another = systemd::is_there() && (!is_versioned || said.contains(&MAIN));
        match (is_gone, is_versioned || said.contains(&TAKEN)) {
            (true, _) if starts_another => Fate::Lost,
            (true, _) => Fate::Gone,
            (false, true) => Fate::Lost,
            // One from before `TAKEN` was sent at all.
            (false, false) => Fate::Up,
        }
    }

    /// The bytes that it sends until it is up, or sends no more.
    async fn said(&self) -> io::Result<Vec<u8>> {
        self.stream.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(self.stream.try_clone()?)?;
        let mut said = Vec::new();
        while let Ok(word) = stream.read_u8().await {
            said.push(word);
            if word == UP {
                break;
            }
        }
        Ok(said)
    }

    /// Whether its process is gone, or is soon: two must not be the control plane.
    async fn is_gone(&self) -> bool {
        let Some(pid) = self.pid.filter(|pid| *pid > 0) else {
            return true;
        };
        let begun = Instant::now();
        while host::is_process(&pid.to_string()) {
            if begun.elapsed() > LEAVES {
                return false;
            }
            time::sleep(POLL_INTERVAL).await;
        }
        true
    }
}

fn send(mut stream: &UnixStream, part: &Part, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
    let text = serde_json::to_vec(part)?;
    let length = u32::try_from(text.len())?.to_be_bytes();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&length)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    ensure!(sent == length.len(), "the new process does not read");
    stream.write_all(&text)?;
    Ok(())
}

/// The next message; none if the other process has ended.
fn receive(mut stream: &UnixStream) -> Result<Option<(Part, Option<OwnedFd>)>> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut length)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    let received = match received {
        // It has not read what was sent to it.
        Err(Errno::CONNRESET) => return Ok(None),
        received => received?,
    };
    if received.bytes == 0 {
        return Ok(None);
    }
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
    ensure!(
        length <= MAX_MESSAGE,
        "found a message of {length} bytes, expected at most {MAX_MESSAGE}"
    );
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(Some((serde_json::from_slice(&text)?, descriptor)))
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    fn place(network: &str, address: &str) -> ListenerKey {
        (network.to_owned(), address.parse().unwrap())
    }

    /// What the old process gives it, and what it has got.
    fn given(version: Option<u8>) -> (Successor, Handoff, tempfile::TempDir) {
        let (heir, new) = pair(version);
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::at(&folder.path().join("lock"), "i").unwrap();
        let giver = thread::spawn(move || heir.give(&lock, Ok(Vec::new())).map(|()| heir));
        let inheritance = taken(new);
        (giver.join().unwrap().unwrap(), inheritance, folder)
    }

    /// The next process, at both ends; it is no process that can be looked at.
    fn pair(version: Option<u8>) -> (Successor, UnixStream) {
        let (stream, new) = UnixStream::pair().unwrap();
        let heir = Successor {
            stream,
            pid: None,
            version,
        };
        (heir, new)
    }

    fn taken(new: UnixStream) -> Handoff {
        match take(new).unwrap() {
            Asked::Given(inheritance) => *inheritance,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_given_is_taken() {
        let (heir, new) = pair(Some(VERSION));
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
        let giver = thread::spawn(move || {
            heir.give(&lock, Ok(listeners)).unwrap();
            (heir, lock)
        });
        let Handoff {
            lock,
            listeners,
            giver: before,
        } = taken(new);
        let (heir, kept) = giver.join().unwrap();
        let places: Vec<&ListenerKey> = listeners.iter().map(|(place, _)| place).collect();
        assert_eq!(
            places,
            [&place("a", "10.0.0.1:443"), &place("b", "10.0.0.1:443")]
        );
        let mut listeners = listeners.into_iter();
        let first = TcpListener::from(listeners.next().unwrap().1);
        assert_eq!(first.local_addr().unwrap(), address);
        before.prepare();
        before.hear();
        assert_eq!(fate(heir), Fate::Up);
        // It has been held all the time, and ends with the last process that has it.
        drop(kept);
        assert!(Lock::at(&path, "i").is_err());
        drop(lock);
        assert!(Lock::at(&path, "i").is_ok());
    }

    /// An heir that dies leaves the lock with the process that has given it.
    #[test]
    fn the_lock_stays_with_the_giver() {
        let (heir, new) = pair(Some(VERSION));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = Lock::at(&path, "i").unwrap();
        heir.give(&lock, Ok(Vec::new())).unwrap();
        drop(taken(new));
        assert_eq!(fate(heir), Fate::Gone);
        assert!(Lock::at(&path, "i").is_err());
        drop(lock);
        assert!(Lock::at(&path, "i").is_ok());
    }

    /// How far ever it has got.
    #[test]
    fn an_heir_that_ends_before_it_is_up_is_gone() {
        for version in [Some(VERSION), None] {
            let (heir, new) = pair(version);
            drop(new);
            assert_eq!(fate(heir), Fate::Gone, "before it has read anything");
            let (heir, taken, _folder) = given(version);
            drop(taken);
            assert_eq!(fate(heir), Fate::Gone, "{version:?}");
            let (heir, taken, _folder) = given(version);
            taken.giver.prepare();
            drop(taken);
            assert_eq!(fate(heir), Fate::Gone, "without a supervisor");
        }
    }

    /// This process lives, and has closed its end.
    #[test]
    fn of_an_heir_that_lives_nothing_is_taken_back() {
        let own = Some(i32::try_from(std::process::id()).unwrap());
        for (version, said, fated) in [
            (Some(VERSION), &[][..], Fate::Lost),
            (None, &[TAKEN], Fate::Lost),
            // It is from before `TAKEN` was sent.
            (None, &[], Fate::Up),
        ] {
            let (heir, mut new) = pair(version);
            new.write_all(said).unwrap();
            drop(new);
            let heir = Successor { pid: own, ..heir };
            assert_eq!(fate(heir), fated, "{version:?} {said:?}");
        }
    }

    #[test]
    fn an_heir_says_its_version_or_nothing() {
        for (said, version) in [
            (&[VERSION][..], Some(VERSION)),
            (&[], None),
            (&[9], Some(9)),
        ] {
            let (heir, mut new) = pair(None);
            new.write_all(said).unwrap();
            let heir = in_runtime(heir.greeted()).unwrap();
            assert_eq!(heir.version, version);
        }
        let (heir, new) = pair(None);
        drop(new);
        assert!(in_runtime(heir.greeted()).is_none(), "it has gone");
    }

    /// One that sends no version gets no message that it does not know.
    #[test]
    fn an_heir_of_before_gets_what_it_knows() {
        for (version, first) in [(None, "\"Lock\""), (Some(VERSION), "{\"Version\":2}")] {
            let (heir, mut new) = pair(version);
            let folder = tempfile::tempdir().unwrap();
            let lock = Lock::at(&folder.path().join("lock"), "i").unwrap();
            heir.give(&lock, Ok(Vec::new())).unwrap();
            let mut text = vec![0; 4 + first.len()];
            new.read_exact(&mut text).unwrap();
            assert_eq!(&text[4..], first.as_bytes());
        }
    }

    /// One from before there were versions turns away an heir that sends first.
    #[test]
    fn who_is_turned_away_knows_it() {
        for said in [&[][..], &[VERSION]] {
            let (old, mut new) = UnixStream::pair().unwrap();
            new.write_all(said).unwrap();
            drop(old);
            assert!(matches!(take(new).unwrap(), Asked::TurnedAway), "{said:?}");
        }
    }

    fn fate(heir: Successor) -> Fate {
        in_runtime(heir.fate())
    }

    fn in_runtime<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work)
    }

    /// A process that is gone as soon as it has given everything is no loss.
    #[test]
    fn who_has_given_everything_may_be_gone() {
        let (heir, taken, _folder) = given(None);
        drop(heir);
        taken.giver.hear();
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
            assert!(
                !matches!(take(new), Ok(Asked::Given(_) | Asked::Absent)),
                "{sent:?}"
            );
        }
    }
}
