use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    path::Path,
    thread,
    time::Duration,
};

use super::stage::{Stage, TEST_TIMEOUT};
use crate::{
    admin::{
        client::{Failure, ask_at},
        server::AdminTimeouts,
    },
    api::{Answer, Event, Request, Severity},
};

fn ask(socket: &Path, patience: Duration) -> Failure {
    ask_at(socket, "lab", &Request::Confirm, patience).unwrap_err()
}

#[test]
fn it_says_that_nobody_listens() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("lb.sock");
    let words = "instance lab has no running control plane: start it with `lb run`";
    let failure = ask(&socket, TEST_TIMEOUT);
    assert!(matches!(failure, Failure::NotRunning { .. }), "{failure:?}");
    assert_eq!(failure.to_string(), words);
    drop(UnixListener::bind(&socket).unwrap());
    let failure = ask(&socket, TEST_TIMEOUT);
    assert!(matches!(failure, Failure::NotRunning { .. }), "{failure:?}");
}

#[test]
fn it_does_not_wait_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("lb.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let failure = ask(&socket, Duration::from_millis(50));
    assert!(matches!(failure, Failure::Late { .. }), "{failure:?}");
    assert!(failure.to_string().contains("has not answered within 0 s"));
}

#[test]
fn whatever_answers_it_is_an_answer_or_an_error() {
    let json = |body: &str| {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    for (said, words) in [
        (String::new(), "ended before it answered"),
        ("SSH-2.0-x\r\n".to_owned(), "ended before it answered"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_owned(),
            "read the answer",
        ),
        (json("{}"), "another version"),
        (json(r#"{"answer":"later"}"#), "another version"),
        (json("\u{fffd}"), "another version"),
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nx\n".to_owned(),
            "the control plane says: x",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("lb.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let text = said.clone();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream.write_all(text.as_bytes()).unwrap();
        });
        let failure = ask(&socket, TEST_TIMEOUT).to_string();
        assert!(failure.contains(words), "{said}: {failure}");
        server.join().unwrap();
    }
}

#[test]
fn a_long_answer_arrives_whole() {
    let event = |number| Event {
        severity: Severity::Notice,
        number,
        time_ms: 0,
        kind: "health".to_owned(),
        object: "x".repeat(1000),
        words: "y".repeat(1000),
        by: None,
    };
    let events: Vec<Event> = (1..=2000).map(event).collect();
    let answer = Answer::Events { events };
    let said = answer.clone();
    let stage = Stage::start(AdminTimeouts::default(), move |order| {
        super::stage::reply(order, |_| said.clone());
    });
    assert_eq!(stage.ask(&Request::Events { after: 0 }).unwrap(), answer);
}
