use super::*;

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

/// What becomes of the headers of a request, in order.
fn forwarded(lines: &[(&'static str, &'static str)], framing: Framing) -> Vec<String> {
    let mut headers = headers(lines);
    forward(
        &mut headers,
        HeaderValue::from_static("a.lab"),
        CLIENT,
        framing,
    );
    sorted(&headers)
}

fn sorted(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.iter();
    let lines = lines.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

#[test]
fn what_is_of_the_connection_stays_there() {
    let request = [
        ("host", "a.lab"),
        ("connection", "close, X-Mine, host"),
        ("connection", "x-forwarded-for"),
        ("x-mine", "1"),
        ("x-kept", "2"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
    ];
    let expected = ["host: a.lab", "x-forwarded-for: 192.0.2.7", "x-kept: 2"];
    assert_eq!(forwarded(&request, Framing::Length), expected);
    let chunked = forwarded(&request, Framing::Chunks);
    assert_eq!(chunked[1], "transfer-encoding: chunked");
    assert_eq!(chunked.len(), 4);
}

#[test]
fn the_client_comes_last_of_those_it_was_forwarded_for() {
    let request = [
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-for", "10.0.0.2, 10.0.0.3"),
    ];
    let expected = [
        "host: a.lab",
        "x-forwarded-for: 10.0.0.1, 10.0.0.2, 10.0.0.3, 192.0.2.7",
    ];
    assert_eq!(forwarded(&request, Framing::Length), expected);
}

#[test]
fn an_upgrade_is_passed_on_but_for_one() {
    let upgrade = |protocols| {
        [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", protocols),
        ]
    };
    let passed = forwarded(&upgrade("websocket"), Framing::Length);
    assert_eq!(passed[0], "connection: upgrade");
    assert_eq!(passed[2], "upgrade: websocket");
    for protocols in ["h2c", "websocket, H2C"] {
        assert_eq!(forwarded(&upgrade(protocols), Framing::Length).len(), 2);
        let headers = headers(&upgrade(protocols));
        assert!(!wishes_upgrade(Version::HTTP_11, &headers));
    }
    let headers = headers(&upgrade("websocket"));
    assert!(wishes_upgrade(Version::HTTP_11, &headers));
    assert!(!wishes_upgrade(Version::HTTP_10, &headers));
}

#[test]
fn an_answer_loses_what_is_of_its_connection() {
    let lines = [
        ("connection", "upgrade, x-mine"),
        ("upgrade", "websocket"),
        ("x-mine", "1"),
        ("content-length", "0"),
    ];
    let mut answer = headers(&lines);
    give_back(StatusCode::OK, &mut answer);
    assert_eq!(sorted(&answer), ["content-length: 0"]);
    let mut answer = headers(&lines);
    give_back(StatusCode::SWITCHING_PROTOCOLS, &mut answer);
    let expected = [
        "connection: upgrade",
        "content-length: 0",
        "upgrade: websocket",
    ];
    assert_eq!(sorted(&answer), expected);
}

#[test]
fn the_target_is_in_origin_form() {
    for (method, uri, expected) in [
        (Method::GET, "http://a.lab/x?y=1", "/x?y=1"),
        (Method::GET, "http://a.lab", "/"),
        (Method::GET, "/x", "/x"),
        (Method::OPTIONS, "*", "*"),
        (Method::OPTIONS, "http://a.lab", "*"),
        (Method::OPTIONS, "http://a.lab:80", "*"),
        (Method::OPTIONS, "http://a.lab/", "/"),
        (Method::OPTIONS, "http://a.lab?y=//a.lab", "/?y=//a.lab"),
        (Method::OPTIONS, "/x", "/x"),
    ] {
        let found = target(&method, &Uri::from_static(uri), uri.as_bytes());
        assert_eq!(found.to_string(), expected, "{method} {uri}");
    }
}

#[test]
fn a_body_is_chunked_once_or_not_at_all() {
    let is_good = |codings: &[&'static str]| {
        let lines = codings.iter().map(|coding| ("transfer-encoding", *coding));
        is_decoded(&headers(&lines.collect::<Vec<_>>()))
    };
    assert!(is_good(&[]) && is_good(&["chunked"]) && is_good(&["Chunked"]));
    for codings in [
        &["gzip, chunked"][..],
        &["identity, chunked"],
        &["chunked, chunked"],
        &[", chunked"],
        &["chunked,"],
        &["x", "chunked"],
        &["chunked", "chunked"],
        &["gzip"],
        &["chunked;a"],
        &[""],
    ] {
        assert!(!is_good(codings), "{codings:?}");
    }
}
