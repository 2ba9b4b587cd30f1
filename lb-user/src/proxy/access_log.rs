//! The access log: a line of JSON for each request that a service with `http` has had.

use std::{
    cell::Cell,
    net::SocketAddrV4,
    path::Path,
    rc::Rc,
    sync::Arc,
    time::{Instant, SystemTime},
};

use anyhow::Result;
use hyper::{
    Request,
    header::{HOST, HeaderMap, HeaderName, USER_AGENT},
};
use serde::Serialize;

use crate::flows::log::{
    Stamp,
    writer::{Writer, WrittenLog},
};

/// The most bytes of a path with its query, and of another value of a client's.
const MAX_PATH: usize = 2048;
const MAX_VALUE: usize = 256;

/// What the log is for, as its messages name it.
const LOG: WrittenLog = WrittenLog {
    name: "access log",
    thread: "lb-access-log",
    too_fast: "requests came faster than the file was written",
};

/// The log of one instance, shared by all threads; without one nothing is written.
#[derive(Clone, Debug, Default)]
pub struct AccessLog(Option<Arc<Writer>>);

/// A line.
#[derive(Serialize)]
struct AccessLine<'l> {
    time: String,
    network: &'l str,
    service: &'l str,
    client: SocketAddrV4,
    vip: SocketAddrV4,
    method: &'l str,
    host: Option<&'l str>,
    /// With its query.
    path: &'l str,
    /// None: the connection ended before an answer.
    status: Option<u16>,
    /// Why there is no answer of a backend.
    refused: Option<&'static str>,
    backend: Option<SocketAddrV4>,
    /// Bytes of the answer's body that were sent on.
    bytes: u64,
    /// From the head of the request to the end of the answer.
    duration_ms: u128,
    user_agent: Option<&'l str>,
}

/// What is known of a request when it comes. Its line is written when this is dropped: at the end of its answer, or of
/// its connection.
#[derive(Debug)]
pub(super) struct AccessRecord {
    log: Arc<Writer>,
    network: String,
    service: String,
    client: SocketAddrV4,
    vip: SocketAddrV4,
    method: String,
    host: Option<String>,
    path: String,
    user_agent: Option<String>,
    time: SystemTime,
    begun: Instant,
    pub(super) refused: Option<&'static str>,
    pub(super) bytes: u64,
    /// What the connection knows of it.
    outcome: RequestOutcome,
}

/// Of the request that a connection has at the moment.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestOutcome(Rc<OutcomeCells>);

#[derive(Debug, Default)]
struct OutcomeCells {
    status: Cell<Option<u16>>,
    backend: Cell<Option<SocketAddrV4>>,
}

impl RequestOutcome {
    /// The client gets this status.
    pub(super) fn answered(&self, status: u16) {
        self.0.status.set(Some(status));
    }

    /// The request goes to this backend.
    pub(super) fn sent_to(&self, backend: SocketAddrV4) {
        self.0.backend.set(Some(backend));
    }
}

impl AccessLog {
    /// Appends to the file at `path`, which is made with the first line.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(path: &Path) -> Result<Self> {
        let writer = Writer::start(LOG, path, Arc::default())?;
        Ok(Self(Some(Arc::new(writer))))
    }

    /// A request of `client`; none if no log is written. `outcome` is that of the request.
    pub(super) fn begin<B>(
        &self,
        [network, service]: [&str; 2],
        [client, vip]: [SocketAddrV4; 2],
        request: &Request<B>,
        outcome: &RequestOutcome,
    ) -> Option<AccessRecord> {
        let log = Arc::clone(self.0.as_ref()?);
        let (uri, headers) = (request.uri(), request.headers());
        let authority = uri
            .authority()
            .map(|authority| cut(authority.as_str(), MAX_VALUE));
        let path = uri.path_and_query().map_or("", |path| path.as_str());
        Some(AccessRecord {
            log,
            network: network.to_owned(),
            service: service.to_owned(),
            client,
            vip,
            method: cut(request.method().as_str(), MAX_VALUE),
            host: authority.or_else(|| value(headers, &HOST)),
            path: cut(path, MAX_PATH),
            user_agent: value(headers, &USER_AGENT),
            time: SystemTime::now(),
            begun: Instant::now(),
            refused: None,
            bytes: 0,
            outcome: outcome.clone(),
        })
    }
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        let line = AccessLine {
            time: Stamp(self.time).to_string(),
            network: &self.network,
            service: &self.service,
            client: self.client,
            vip: self.vip,
            method: &self.method,
            host: self.host.as_deref(),
            path: &self.path,
            status: self.outcome.0.status.get(),
            refused: self.refused,
            backend: self.outcome.0.backend.get(),
            bytes: self.bytes,
            duration_ms: self.begun.elapsed().as_millis(),
            user_agent: self.user_agent.as_deref(),
        };
        // Text and numbers can always be written.
        if let Ok(text) = serde_json::to_string(&line) {
            self.log.write(escaped(&text));
        }
    }
}

/// A line of JSON that means the same in printable ASCII: what clients have sent drives no terminal, and is no markup.
fn escaped(text: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(text.len() + 1);
    for char in text.chars() {
        match u8::try_from(char) {
            Ok(byte @ b' '..=b'~') if !b"<>&".contains(&byte) => line.push(byte),
            // Such a character is in a string.
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    line.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
                }
            }
        }
    }
    line.push(b'\n');
    line
}

/// The value of a header, whatever bytes it has.
fn value(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let bytes = headers.get(name)?.as_bytes();
    let bytes = bytes.get(..MAX_VALUE).unwrap_or(bytes);
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// The beginning of a text, at most so many bytes of it.
fn cut(text: &str, most: usize) -> String {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    /// What becomes of a request.
    type Change = fn(&mut AccessRecord, &RequestOutcome);

    /// The lines of requests of which this becomes.
    fn lines(requests: Vec<(Request<()>, Change)>) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http.json");
        let log = AccessLog::start(&path).unwrap();
        let ends = ["192.0.2.1:40000", "192.0.2.9:80"].map(|end| end.parse().unwrap());
        for (request, change) in requests {
            let outcome = RequestOutcome::default();
            let mut record = log.begin(["n", "s"], ends, &request, &outcome).unwrap();
            change(&mut record, &outcome);
        }
        drop(log);
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn request(uri: &str, host: &[u8]) -> Request<()> {
        Request::get(uri).header(HOST, host).body(()).unwrap()
    }

    #[test]
    fn a_request_is_a_line() {
        let answered: Change = |record: &mut AccessRecord, outcome: &RequestOutcome| {
            outcome.answered(200);
            outcome.sent_to("10.0.0.1:80".parse().unwrap());
            record.bytes = 5;
        };
        let refused: Change = |record: &mut AccessRecord, outcome: &RequestOutcome| {
            outcome.answered(421);
            record.refused = Some("no_match");
        };
        let lines = lines(vec![
            (request("/x?y=1", b"a.lab"), answered),
            (request("http://b.lab/", b"a.lab"), refused),
            (request("/", b"a.lab"), |_, _| {}),
        ]);
        let mut lines: Vec<Value> = lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for line in &mut lines {
            let fields = line.as_object_mut().unwrap();
            let time = fields.remove("time").unwrap();
            assert_eq!(
                time.as_str().unwrap().len(),
                "2026-11-26T11:28:42.332Z".len()
            );
            assert!(fields.remove("duration_ms").unwrap().as_u64().unwrap() < 10_000);
        }
        let line = |host: &str,
                    path: &str,
                    status: Value,
                    refused: Value,
                    backend: Value,
                    bytes: u32| {
            json!({
                "network": "n", "service": "s", "client": "192.0.2.1:40000", "vip": "192.0.2.9:80",
                "method": "GET", "host": host, "path": path, "status": status, "refused": refused,
                "backend": backend, "bytes": bytes, "user_agent": null,
            })
        };
        let null = || Value::Null;
        assert_eq!(
            lines[0],
            line(
                "a.lab",
                "/x?y=1",
                json!(200),
                null(),
                json!("10.0.0.1:80"),
                5
            )
        );
        assert_eq!(
            lines[1],
            line("b.lab", "/", json!(421), json!("no_match"), null(), 0)
        );
        assert_eq!(lines[2], line("a.lab", "/", null(), null(), null(), 0));
    }

    /// A header may have any byte above 0x7f, among them the control characters of eight bits.
    #[test]
    fn a_line_is_printable_whatever_was_sent() {
        let none: Change = |_: &mut AccessRecord, _: &RequestOutcome| {};
        let long = format!("/{}", "x".repeat(9999));
        let lines = lines(vec![
            (request("/", b"<script>\"\\&"), none),
            (request("/", b"\xc2\x9b2J\xff"), none),
            (request(&long, &[b'x'; 999]), none),
        ]);
        let hosts = ["<script>\"\\&", "\u{9b}2J\u{fffd}", &"x".repeat(MAX_VALUE)];
        for (line, host) in lines.iter().zip(hosts) {
            assert!(
                line.bytes().all(|byte| matches!(byte, b' '..=b'~')),
                "{line}"
            );
            assert!(!line.contains(['<', '>', '&']), "{line}");
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["host"], host);
            assert!(line["path"].as_str().unwrap().len() <= MAX_PATH);
        }
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn without_a_log_nothing_is_kept() {
        let ends = ["192.0.2.1:40000", "192.0.2.9:80"].map(|end| end.parse().unwrap());
        let log = AccessLog::default();
        let record = log.begin(
            ["n", "s"],
            ends,
            &request("/", b"a"),
            &RequestOutcome::default(),
        );
        assert!(record.is_none());
    }
}
