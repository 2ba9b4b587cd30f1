//! The listening end: which users may connect, how many at a time, and for how long.

use std::{
    fmt::{self, Display, Formatter},
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixListener as StdListener,
    },
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context as _, Result};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
    time::{self, Instant},
};

use super::{
    connections::{Connections, GRACE},
    exchange::{self, Caller},
    peer_groups,
    read_group::ReadGroup,
};
use crate::api::{Answer, Request};

/// Connections at a time; of those that have sent no request the oldest goes for one more.
const CONNECTIONS: usize = 16;
/// The same of users that may request nothing: they are refused, and keep no operator waiting.
const REFUSED_CONNECTIONS: usize = 2;
/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 * 1024;
/// Lines of a request's head.
const HEADERS: usize = 32;
/// After an error that may pass, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A request that the control loop is to carry out.
#[derive(Debug)]
pub struct Order {
    /// The request; [checked](Request::check).
    pub request: Request,
    /// The process that sent it.
    pub by: Peer,
    /// Where the answer goes. It is closed when the connection waits no more.
    pub reply: oneshot::Sender<Answer>,
}

/// The process at the other end of a connection, as the kernel saw it connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user id.
    pub uid: u32,
    /// Its process id; none if it is not visible from here.
    pub pid: Option<i32>,
    /// What it may request.
    pub access: Access,
}

/// What a process may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    None,
    /// What changes nothing.
    Read,
    /// Everything.
    All,
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)?;
        match self.pid {
            Some(pid) => write!(f, ", process {pid}"),
            None => Ok(()),
        }
    }
}

impl Access {
    /// Of a user with these groups, where this process is `own`'s and `group` may look.
    pub(super) fn of(uid: u32, own: u32, groups: &[u32], group: Option<u32>) -> Self {
        if uid == 0 || uid == own {
            return Self::All;
        }
        match group.is_some_and(|group| groups.contains(&group)) {
            true => Self::Read,
            false => Self::None,
        }
    }
}

/// How long each part of a connection may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdminTimeouts {
    /// Head and body of the request together.
    pub(super) read: Duration,
    /// The control loop, until it has answered.
    pub(super) answer: Duration,
    /// Reading the answer.
    pub(super) write: Duration,
}

impl Default for AdminTimeouts {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            write: Duration::from_secs(10),
        }
    }
}

/// The admin socket of this process; the file is gone when it is dropped.
#[derive(Debug)]
pub struct Server {
    listener: StdListener,
    _file: SocketFile,
    times: AdminTimeouts,
    group: ReadGroup,
}

impl Server {
    /// Listens at `path`, for this user and root, and for `group` once that lets members in. The folder is made if there
    /// is none. A socket that is there already is that of a process that has ended: the caller has the lock of the
    /// instance.
    ///
    /// # Errors
    ///
    /// The error of the file system, with the path.
    pub fn open(path: &Path, group: ReadGroup) -> Result<Self> {
        Self::with_times(path, AdminTimeouts::default(), group)
    }

    pub(super) fn with_times(path: &Path, times: AdminTimeouts, group: ReadGroup) -> Result<Self> {
        let (listener, file) =
            bind(path).with_context(|| format!("open the admin socket {}", path.display()))?;
        Ok(Self {
            listener,
            _file: file,
            times,
            group,
        })
    }

    /// Serves until the receiver of orders is gone. It belongs on a runtime of its process; what is open when
    /// it is dropped is closed.
    ///
    /// # Errors
    ///
    /// If the runtime cannot watch the socket.
    pub async fn serve(self, orders: mpsc::Sender<Order>) -> Result<()> {
        let Self {
            listener,
            _file,
            times,
            group,
        } = self;
        let listener = UnixListener::from_std(listener).context("watch the admin socket")?;
        let mut connections = Connections::new(CONNECTIONS);
        let mut refused = Connections::new(REFUSED_CONNECTIONS);
        loop {
            let has_room = connections.have_room();
            tokio::select! {
                () = orders.closed() => return Ok(()),
                () = connections.ended() => {}
                () = refused.ended() => {}
                () = time::sleep(GRACE), if !has_room => {}
                accepted = listener.accept(), if has_room => match accepted {
                    Ok((stream, _)) => {
                        let Some(peer) = peer(&stream, &group) else {
                            continue;
                        };
                        let all = match peer.access {
                            Access::None => &mut refused,
                            Access::Read | Access::All => &mut connections,
                        };
                        if all.have_room() {
                            let asked = Arc::default();
                            let task =
                                converse(stream, peer, Arc::clone(&asked), orders.clone(), times);
                            all.add(task, asked);
                        }
                    }
                    Err(error) => {
                        tracing::warn!("admin socket: accept a connection: {error}");
                        time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }
}

/// Listens at `path`. The socket is made in a folder that no other user may enter, and has its mode before it
/// gets its name: at no time can a stranger connect.
pub(crate) fn bind(path: &Path) -> io::Result<(StdListener, SocketFile)> {
    let mut private = path.to_owned();
    private.as_mut_os_string().push(".new");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::remove_dir_all(&private) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(&private)?;
    let unnamed = private.join("s");
    let listener = StdListener::bind(&unnamed)?;
    fs::set_permissions(&unnamed, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    let metadata = fs::symlink_metadata(&unnamed)?;
    fs::rename(&unnamed, path)?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: (metadata.dev(), metadata.ino()),
    };
    fs::remove_dir(&private)?;
    Ok((listener, file))
}

/// The name of a socket; on drop it is removed, unless it is another's by then.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Whether it is there, and not another's.
    pub(crate) fn is_there(&self) -> bool {
        let metadata = fs::symlink_metadata(&self.path);
        metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!("remove {}: {error}", self.path.display());
        }
    }
}

/// The process at the other end, if the kernel says which it is.
fn peer(stream: &UnixStream, group: &ReadGroup) -> Option<Peer> {
    let read = || {
        let credentials = stream.peer_cred()?;
        let group = group.id();
        let mut groups = vec![credentials.gid()];
        if group.is_some() {
            groups.extend(peer_groups::groups(stream)?);
        }
        let (uid, own) = (credentials.uid(), nix::unistd::geteuid().as_raw());
        io::Result::Ok(Peer {
            uid,
            pid: credentials.pid().filter(|&pid| pid != 0),
            access: Access::of(uid, own, &groups, group),
        })
    };
    read()
        .inspect_err(|error| {
            tracing::warn!("admin socket: read the credentials of the peer: {error}");
        })
        .ok()
}

/// One request, and its answer; sets `asked` when the request is there.
pub(super) async fn converse(
    stream: UnixStream,
    peer: Peer,
    asked: Arc<AtomicBool>,
    orders: mpsc::Sender<Order>,
    times: AdminTimeouts,
) {
    let caller = Caller {
        peer,
        asked,
        orders,
        read_by: Instant::now() + times.read,
        answer: times.answer,
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.read)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| exchange::exchange(request, &caller)),
        );
    let most = times.read + times.answer + times.write;
    match time::timeout(most, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("admin socket: {peer}: {error}"),
        Err(_) => tracing::debug!("admin socket: {peer}: no answer sent within {most:?}"),
    }
}
