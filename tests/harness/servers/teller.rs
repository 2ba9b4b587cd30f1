//! A server that says who it is, and gives back every byte that it got once the client has closed its
//! side: the client learns where it has come to, and whether its bytes have come there unchanged.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::socket;

use crate::{
    netns::Netns,
    process,
    traffic::client::{open, was_reset},
};

/// A connection that is silent for this long is given up.
const SILENCE: Duration = Duration::from_secs(60);
/// What a name ends with: a byte that is in no name and no alert.
pub const END: u8 = 0xff;

/// The server on one node; it ends with this.
#[derive(Debug)]
pub struct Teller {
    listener: TcpListener,
    acceptor: Option<JoinHandle<Result<()>>>,
}

impl Teller {
    /// Listens at an address of `netns`, under a name of its own.
    ///
    /// # Errors
    ///
    /// When the port cannot be bound.
    pub fn start(netns: &Netns, address: SocketAddrV4, name: &str) -> Result<Self> {
        Self::serving(netns, address, name, serve)
    }

    /// The same, but it says nothing before it has heard something.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_listening(netns: &Netns, address: SocketAddrV4, name: &str) -> Result<Self> {
        Self::serving(netns, address, name, |stream, name| {
            let heard = stream.set_read_timeout(Some(SILENCE)).is_ok()
                && stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
            if heard {
                serve(stream, name);
            }
        })
    }

    /// The same behind a header of the PROXY protocol, version 2, without which it says nothing; it says the client's address
    /// as well, behind a blank.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_behind_header(netns: &Netns, address: SocketAddrV4, name: &str) -> Result<Self> {
        Self::serving(netns, address, name, |stream, name| {
            if let Ok(Some(client)) = client_of_header(stream) {
                let name = name.strip_suffix(&[END]).unwrap_or(name);
                let client = client.to_string();
                serve(stream, &[name, b" ", client.as_bytes(), &[END]].concat());
            }
        })
    }

    /// The same, which serves a connection like this; it gets its name, and the byte behind it.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn serving(
        netns: &Netns,
        address: SocketAddrV4,
        name: &str,
        serve: impl Fn(&TcpStream, &[u8]) + Clone + Send + 'static,
    ) -> Result<Self> {
        let listener = netns.inside(|| TcpListener::bind(address))?;
        let listener = listener.with_context(|| format!("listen at {address}"))?;
        let accepting = listener.try_clone().context("share the listener")?;
        let name = [name.as_bytes(), &[END]].concat();
        let acceptor = netns.spawn(move || {
            // Until the listener is shut down.
            while let Ok((stream, _)) = accepting.accept() {
                let (name, serve) = (name.clone(), serve.clone());
                let work = move || serve(&stream, &name);
                thread::Builder::new()
                    .spawn(work)
                    .context("start a thread")?;
            }
            Ok(())
        })?;
        Ok(Self {
            listener,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        // Refused only for what does not listen.
        let _refused = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        if let Some(Ok(Err(error))) = self.acceptor.take().map(JoinHandle::join) {
            process::complain(format_args!("a teller: {error:#}"));
        }
    }
}

/// Reads a header of TCP over IPv4: its client; none if it is something else.
fn client_of_header(mut stream: &TcpStream) -> std::io::Result<Option<SocketAddrV4>> {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed)?;
    let [signature @ .., high, low] = fixed;
    if signature != *b"\r\n\r\n\0\r\nQUIT\n\x21\x11" {
        return Ok(None);
    }
    let mut rest = vec![0; u16::from_be_bytes([high, low]).into()];
    stream.read_exact(&mut rest)?;
    let [a, b, c, d, _, _, _, _, high, low, ..] = rest[..] else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([high, low]);
    Ok(Some(SocketAddrV4::new([a, b, c, d].into(), port)))
}

fn serve(mut stream: &TcpStream, name: &[u8]) {
    let mut tell = || {
        stream.set_read_timeout(Some(SILENCE))?;
        stream.write_all(name)?;
        let mut received = Vec::new();
        stream.read_to_end(&mut received)?;
        stream.write_all(&received)
    };
    // The client's business to report.
    let _gone: std::io::Result<()> = tell();
}

/// Connects to `to` and sends the pieces, this long one after the other; the name that the server sends, if one
/// does before the connection ends.
///
/// # Errors
///
/// When no server does either, or the bytes that it got are not those that were sent.
pub fn ask(to: SocketAddrV4, pieces: &[&[u8]], pause: Duration) -> Result<Option<String>> {
    match open(None, to) {
        Err(error) if was_reset(&error) => Ok(None),
        stream => ask_on(stream?, pieces, pause),
    }
}

/// As [`ask`], on a connection that is there.
///
/// # Errors
///
/// As for [`ask`].
pub fn ask_on(mut stream: TcpStream, pieces: &[&[u8]], pause: Duration) -> Result<Option<String>> {
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 {
            thread::sleep(pause);
        }
        // A connection that is refused at once is closed.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let Some(name) = hear(&stream)? else {
        return Ok(None);
    };
    stream
        .shutdown(Shutdown::Write)
        .context("close this side")?;
    let mut received = Vec::new();
    stream
        .read_to_end(&mut received)
        .context("read what came there")?;
    let sent = pieces.concat();
    let same = received
        .iter()
        .zip(&sent)
        .take_while(|(one, other)| one == other);
    let same = same.count();
    ensure!(
        received == sent,
        "{name} got {} bytes of {}, of which the first {same} are right",
        received.len(),
        sent.len()
    );
    Ok(Some(name))
}

/// The name that is said, if one is.
fn hear(mut stream: &TcpStream) -> Result<Option<String>> {
    let mut said = Vec::new();
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) if byte == [END] => break,
            Ok(_) => said.extend(byte),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(anyhow!(error).context("hear who it is")),
        }
    }
    Ok(String::from_utf8(said).map(Some)?)
}
