//! Events at a syslog server, which reads them as RFC 5424 has them: FEATURES G9.

use std::{
    io::{BufReader, Read},
    net::{TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{poll, product::lb::Lb, topology::Topology};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, wait_for},
};

/// From a verdict to its line.
const SENT: Duration = Duration::from_secs(2);
/// The servers, in the namespace of the host.
const UDP: &str = "127.0.0.1:5514";
const TCP: &str = "127.0.0.1:5601";

/// The parts of a line (RFC 5424 section 6).
#[derive(Debug)]
struct Line {
    priority: String,
    process: String,
    id: String,
    data: String,
    message: String,
}

impl Line {
    fn read(text: &str) -> Result<Self> {
        let wrong = || format!("{text:?} is no line of RFC 5424");
        ensure!(!text.contains(char::is_control), wrong());
        let mut parts = text.splitn(7, ' ').map(str::to_owned);
        let mut next = || parts.next().with_context(wrong);
        let (priority, time, host, program) = (next()?, next()?, next()?, next()?);
        let (process, id, rest) = (next()?, next()?, next()?);
        ensure!(time.ends_with('Z') && time.contains('T'), wrong());
        ensure!(!host.is_empty() && program == "lb", wrong());
        let mut is_escaped = false;
        let end = rest.find(|found| {
            let is_end = found == ']' && !is_escaped;
            is_escaped = found == '\\' && !is_escaped;
            is_end
        });
        let (data, message) = rest.split_at(end.with_context(wrong)? + 1);
        ensure!(data.starts_with('['), wrong());
        Ok(Self {
            priority,
            process,
            id,
            data: data.to_owned(),
            message: message.strip_prefix(' ').with_context(wrong)?.to_owned(),
        })
    }
}

/// The lines that have come to the server.
fn datagrams(server: &UdpSocket, found: &mut Vec<Line>) -> Result<()> {
    let mut bytes = [0; 4096];
    while let Ok(length) = server.recv(&mut bytes) {
        found.push(Line::read(std::str::from_utf8(&bytes[..length])?)?);
    }
    Ok(())
}

/// The next line of a stream, which has its length before it.
fn counted(stream: &mut impl Read) -> Result<Line> {
    let mut length = String::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        match byte[0] {
            b' ' => break,
            digit => length.push(digit.into()),
        }
    }
    let mut bytes = vec![0; length.parse().with_context(|| length.clone())?];
    stream.read_exact(&mut bytes)?;
    Line::read(std::str::from_utf8(&bytes)?)
}

/// G9: the verdict that a backend is dead, an order, and a reload are a line each; another server is taken by a reload.
#[privileged_test]
fn g9_a_syslog_server_gets_a_line_of_each_event() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    topology.lb.run("ip link set lo up")?;
    let server = topology.lb.inside(|| UdpSocket::bind(UDP))??;
    server.set_nonblocking(true)?;
    let to = |server: &str| site.http("").set("log.syslog.to", server);
    let lb = Lb::start(&topology, &to(&format!("udp:{UDP}")))?;
    wait_for(&lb, &["up"], LIMIT)?;
    let node = topology.nodes[0].name;
    site.health[0].refuse();
    wait_for(&lb, &["dead"], SOON)?;
    let since = Instant::now();
    let mut lines = Vec::new();
    poll::until("the line of the verdict", SENT, || {
        datagrams(&server, &mut lines)?;
        let is_it = |line: &Line| line.message.contains("-> dead: ");
        Ok(lines.iter().any(is_it).then_some(()))
    })?;
    println!("after {:?}: {lines:?}", since.elapsed());
    let dead: Vec<&Line> = lines
        .iter()
        .filter(|line| line.message.contains("-> dead"))
        .collect();
    let [dead] = dead[..] else {
        anyhow::bail!("{dead:?}");
    };
    let mut events = lb.events()?.into_iter();
    let event = events.find(|event| event.words.contains("-> dead"));
    let event = event.context("the event of the verdict")?;
    assert_eq!(
        (dead.priority.as_str(), dead.id.as_str()),
        ("<28>1", "health")
    );
    assert_eq!(dead.process, lb.id().to_string());
    assert_eq!(
        dead.data,
        format!(
            "[lb@32473 instance=\"{}\" number=\"{}\" kind=\"health\" object=\"{}\"]",
            topology.run(),
            event.number,
            event.object
        )
    );
    assert_eq!(dead.message, format!("{}: {}", event.object, event.words));
    let begin = format!("backend echo-a/{node}@");
    ensure!(dead.message.starts_with(&begin), "{dead:?}");

    // Another server comes with a reload, which itself is for the one of before or the new one.
    let listener = topology.lb.inside(|| TcpListener::bind(TCP))??;
    lb.reload(&to(&format!("tcp:{TCP}")).set("log.syslog.facility", "local3"))?;
    lb.tell(&["backend", "drain", node])?.done()?;
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut stream: BufReader<TcpStream> = BufReader::new(stream);
    let mut line = counted(&mut stream)?;
    while line.id != "override" {
        line = counted(&mut stream)?;
    }
    // local3 is 19, and a notice 5.
    assert_eq!(line.priority, "<157>1");
    ensure!(line.data.contains(" by=\"uid 0, process "), "{line:?}");
    ensure!(line.message.starts_with(&begin), "{line:?}");
    ensure!(line.message.contains(": drains: "), "{line:?}");

    // What a file is called ends neither line nor value.
    let hostile = topology.write("a\u{1b}[2J\n<28>1 \"].yaml", "version: [")?;
    let hostile = hostile.to_str().context("a path")?;
    assert_eq!(lb.tell(&["reload", hostile])?.code, Some(2));
    let line = counted(&mut stream)?;
    assert_eq!(
        (line.priority.as_str(), line.id.as_str()),
        ("<155>1", "reload")
    );
    let escaped = r#"/a\\u{1b}[2J\\n<28>1 \"\].yaml" by="uid 0, process "#;
    ensure!(line.data.contains(escaped), "{line:?}");

    // The server goes and comes: what happens meanwhile arrives.
    drop((stream, listener));
    lb.tell(&["backend", "enable", node])?.done()?;
    let listener = topology.lb.inside(|| TcpListener::bind(TCP))??;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LIMIT))?;
    let line = counted(&mut stream)?;
    ensure!(
        line.id == "override" && line.message.contains("as the file"),
        "{line:?}"
    );
    lb.down()
}
