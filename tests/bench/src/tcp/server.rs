//! The end that answers: a process of its own in the server's namespace.

use std::{
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    runtime,
};

use crate::tcp::{
    answer::{Content, Speech, Wish},
    http,
};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;
/// What it says when it listens.
pub(crate) const READY: &str = "ready";

/// How it is started.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Serve {
    /// Where it listens, on all addresses
    #[arg(long)]
    pub(crate) port: u16,
    /// Bytes of each request; without it requests are of HTTP
    #[arg(long)]
    pub(crate) request: Option<usize>,
}

impl Serve {
    fn speech(self) -> Speech {
        self.request.map_or(Speech::Http, Speech::Bytes)
    }
}

/// Answers until it is killed.
///
/// # Errors
///
/// When the port is taken.
pub(crate) fn run(serve: Serve) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build();
    runtime
        .context("start the runtime")?
        .block_on(listen(serve))
}

async fn listen(serve: Serve) -> Result<()> {
    let socket = TcpSocket::new_v4().context("make a socket")?;
    socket.set_reuseaddr(true)?;
    // Where several serve each has its part.
    socket.set_reuseport(true)?;
    let at = SocketAddr::from((Ipv4Addr::UNSPECIFIED, serve.port));
    socket.bind(at).with_context(|| format!("bind {at}"))?;
    let listener = socket.listen(BACKLOG).context("listen")?;
    writeln!(io::stdout(), "{READY}")?;
    let content = Arc::new(Content::new());
    loop {
        let (stream, from) = listener.accept().await.context("accept")?;
        let content = Arc::clone(&content);
        tokio::spawn(async move {
            // The client misses it, and fails.
            if let Err(error) = answer(stream, serve.speech(), &content).await {
                eprintln!("{from}: {error:#}");
            }
        });
    }
}

/// Reads the request, answers, and is the first to close.
async fn answer(mut stream: TcpStream, speech: Speech, content: &Content) -> Result<()> {
    let wish = hear(&mut stream, speech).await?;
    let mut sent = 0;
    while sent < wish.bytes {
        let more = content.at(wish, sent);
        let left = usize::try_from(wish.bytes - sent).unwrap_or(usize::MAX);
        let part = more.get(..left).unwrap_or(more);
        stream.write_all(part).await.context("answer")?;
        sent += u64::try_from(part.len())?;
    }
    Ok(())
}

/// Reads a request; the head of an answer of HTTP is sent with it.
async fn hear(stream: &mut TcpStream, speech: Speech) -> Result<Wish> {
    match speech {
        Speech::Bytes(length) => {
            let mut request = vec![0; length];
            let read = stream.read_exact(&mut request).await;
            read.context("read the request")?;
            Wish::of(&request)
        }
        Speech::Http => {
            let (head, _) = http::read_head(stream).await?;
            let wish = http::wish(&head)?;
            let sent = stream.write_all(&http::answer_head(wish)).await;
            sent.context("answer").map(|()| wish)
        }
    }
}
