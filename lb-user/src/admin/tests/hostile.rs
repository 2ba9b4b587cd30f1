use std::{
    io::{ErrorKind, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::stage::{Stage, TEST_TIMEOUT, echoed, post, reply, rest, short};
use crate::{admin::server::AdminTimeouts, api::Request};

const CONFIRM: &str = r#"{"command":"confirm"}"#;

#[test]
fn what_is_no_request_is_answered_in_plain_words() {
    let stage = Stage::start(AdminTimeouts::default(), |order| panic!("{order:?}"));
    let get = "GET /v1/request HTTP/1.1\r\nHost: lb\r\n\r\n";
    for (bytes, status, words) in [
        (get.as_bytes().to_vec(), 405, "/v1/request takes POST"),
        (
            get.replace("/v1/request", "/").into_bytes(),
            404,
            "expected /v1/request",
        ),
        (
            String::from_utf8(post(CONFIRM))
                .unwrap()
                .replace("/v1/", "/v2/")
                .into_bytes(),
            404,
            "expected /v1/request",
        ),
        (post(""), 400, "at line 1 column 0"),
        (post("{\n \"command\":: }"), 400, "at line 2 column 12"),
        (post("{\"command\":\"\u{0}\"}"), 400, "at line 1 column 13"),
        (post("[]"), 400, "is of another version"),
        (post("null"), 400, "is of another version"),
        (post(r#"{"command":"stop"}"#), 400, "unknown variant `stop`"),
        (
            post(r#"{"command":"kill","sevice":"a"}"#),
            400,
            "unknown field `sevice`",
        ),
        (post(&"[".repeat(60_000)), 400, "is of another version"),
        (post(&" ".repeat(64 * 1024 + 1)), 413, "65536 bytes"),
    ] {
        let said = stage.exchange(&bytes);
        let start = format!("HTTP/1.1 {status} ");
        assert!(said.starts_with(&start), "{status}: {said}");
        assert!(said.contains(words), "{words}: {said}");
        assert_eq!(said.contains("allow: POST"), status == 405, "{said}");
    }
}

#[test]
fn a_body_has_a_most_size_however_it_comes() {
    let stage = Stage::echo(AdminTimeouts::default());
    let most = 64 * 1024;
    let padded = |size: usize| format!("{CONFIRM}{}", " ".repeat(size - CONFIRM.len()));
    let said = stage.exchange(&post(&padded(most)));
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    let said = stage.exchange(&post(&padded(most + 1)));
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
    let huge =
        "POST /v1/request HTTP/1.1\r\nHost: lb\r\nContent-Length: 18446744073709551614\r\n\r\n";
    let said = stage.exchange(huge.as_bytes());
    assert!(said.starts_with("HTTP/1.1 4"), "{said}");

    let mut chunked =
        b"POST /v1/request HTTP/1.1\r\nHost: lb\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..70 {
        chunked.extend(b"400\r\n");
        chunked.extend([b' '; 1024]);
        chunked.extend(b"\r\n");
    }
    let said = stage.exchange(&chunked);
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
    stage.assert_works();
}

#[test]
fn a_head_has_a_most_size() {
    let stage = Stage::echo(AdminTimeouts::default());
    let head = "POST /v1/request HTTP/1.1\r\nHost: lb\r\n";
    for head in [
        format!("{head}X: {}\r\n\r\n", "x".repeat(100_000)),
        format!("{head}{}\r\n", "X: y\r\n".repeat(100)),
        format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
    ] {
        let said = stage.exchange(head.as_bytes());
        assert!(said.starts_with("HTTP/1.1 4"), "{said}");
    }
    stage.assert_works();
}

#[test]
fn half_a_request_is_none() {
    let (sender, orders) = mpsc::channel();
    let stage = Stage::start(AdminTimeouts::default(), move |order| {
        sender.send(order.request.clone()).unwrap();
        reply(order, echoed);
    });
    let whole = post(CONFIRM);
    for end in 0..whole.len() {
        let mut stream = stage.connect();
        stream.write_all(&whole[..end]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let said = rest(stream);
        assert!(!said.starts_with("HTTP/1.1 2"), "{end}: {said}");
    }
    assert!(orders.try_recv().is_err());
    stage.assert_works();
    assert_eq!(orders.try_iter().count(), 1);
}

#[test]
fn noise_is_no_order_and_harms_nobody() {
    let stage = Stage::start(AdminTimeouts::default(), |order| {
        assert_eq!(order.request, Request::Confirm);
        reply(order, echoed);
    });
    // Xorshift: the same noise each time.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let whole = post(CONFIRM);
    for round in 0..300 {
        let mut bytes: Vec<u8> = match round % 2 {
            0 => (0..next() % 300).map(|_| next().to_le_bytes()[0]).collect(),
            _ => whole.clone(),
        };
        if round % 2 == 1 {
            for _ in 0..=next() % 4 {
                let at = usize::try_from(next()).unwrap() % bytes.len();
                bytes[at] = next().to_le_bytes()[0];
            }
        }
        let mut stream = stage.connect();
        let _early: std::io::Result<()> = stream.write_all(&bytes);
        match stream.shutdown(Shutdown::Write) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotConnected),
            Ok(()) => drop(rest(stream)),
        }
    }
    stage.assert_works();
}

#[test]
fn who_writes_slowly_is_cut_off() {
    let stage = Stage::echo(short());
    let drip = |head: &str, bytes: &[u8]| {
        let begun = Instant::now();
        let mut stream = stage.connect();
        stream.write_all(head.as_bytes()).unwrap();
        for byte in bytes.iter().cycle() {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "it is never cut off");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(begun.elapsed() >= short().read);
        rest(stream)
    };
    let head = drip("", b"x");
    assert_eq!(head, "", "a head is not answered before it is there");
    let head = "POST /v1/request HTTP/1.1\r\nHost: lb\r\nContent-Length: 60000\r\n\r\n";
    let body = drip(head, b" ");
    assert!(body.starts_with("HTTP/1.1 408 "), "{body}");
    stage.assert_works();
}

#[test]
fn a_hundred_that_say_nothing_hold_nobody_up_for_long() {
    let stage = Stage::echo(AdminTimeouts::default());
    let begun = Instant::now();
    let silent: Vec<UnixStream> = (0..100).map(|_| stage.connect()).collect();
    stage.assert_works();
    assert!(
        begun.elapsed() < AdminTimeouts::default().read / 2,
        "{begun:?}"
    );
    // The oldest have gone for those after them.
    for stream in silent.into_iter().take(100 - 16) {
        assert_eq!(rest(stream), "");
    }
    assert!(begun.elapsed() < AdminTimeouts::default().read, "{begun:?}");
}

#[test]
fn who_hangs_up_before_the_answer_is_not_waited_for() {
    let (sender, orders) = mpsc::channel();
    let stage = Stage::start(AdminTimeouts::default(), move |order| {
        sender.send(order).unwrap()
    });
    let mut stream = stage.connect();
    stream.write_all(&post(CONFIRM)).unwrap();
    let order = orders.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(!order.reply.is_closed());
    drop(stream);
    let begun = Instant::now();
    while !order.reply.is_closed() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "it took too long");
        thread::sleep(Duration::from_millis(5));
    }
    reply(order, echoed);
    let mut stream = stage.connect();
    stream.write_all(&post(CONFIRM)).unwrap();
    reply(orders.recv_timeout(TEST_TIMEOUT).unwrap(), echoed);
    assert!(rest(stream).starts_with("HTTP/1.1 200 "));
}

#[test]
fn one_connection_has_one_request() {
    let (sender, orders) = mpsc::channel();
    let stage = Stage::start(AdminTimeouts::default(), move |order| {
        sender.send(()).unwrap();
        reply(order, echoed);
    });
    let said = stage.exchange(&post(CONFIRM).repeat(5));
    assert_eq!(said.matches("HTTP/1.1 200 ").count(), 1, "{said}");
    assert!(said.contains("connection: close"), "{said}");
    assert_eq!(orders.try_iter().count(), 1);
    stage.assert_works();
}
