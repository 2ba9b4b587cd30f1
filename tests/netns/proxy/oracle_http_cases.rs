//! What [`crate::proxy::oracle_http`] sends, and what comes of it.

/// A client's bytes, and what it hears from each: a status, and what the backend was asked if it was.
pub(crate) struct Case {
    pub(crate) what: String,
    pub(crate) request: Vec<u8>,
    pub(crate) ours: &'static str,
    pub(crate) haproxy: &'static str,
    pub(crate) nginx: &'static str,
}

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    [of_codings(), of_chunks(), of_versions(), of_targets()]
        .into_iter()
        .flatten()
        .collect()
}

fn case(what: &str, request: &str, [ours, haproxy, nginx]: [&'static str; 3]) -> Case {
    Case {
        what: what.to_owned(),
        request: request.into(),
        ours,
        haproxy,
        nginx,
    }
}

/// A POST with this body, in this coding.
fn post(coding: &str, body: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\nTransfer-Encoding: {coding}\r\n\r\n{body}"
    )
}

/// Codings of a body: one that is chunked once is the only one that goes on.
fn of_codings() -> Vec<Case> {
    let chunked = "200 POST / HTTP/1.1 chunked";
    // nginx reads all of a body before it goes on.
    let [whole, refused] = ["200 POST / HTTP/1.1", "501"];
    let all = [
        ("chunked", [chunked, chunked, whole]),
        ("Chunked", [chunked, chunked, whole]),
        ("gzip, chunked", [refused, "422", "501"]),
        ("identity, chunked", [refused, "422", "501"]),
        ("chunked, chunked", [refused, "400", "501"]),
        (", chunked", [refused, "422", "501"]),
        ("x\r\nTransfer-Encoding: chunked", [refused, "422", "400"]),
        (
            "chunked\r\nTransfer-Encoding: chunked",
            [refused, "400", "400"],
        ),
        ("chunked, gzip", ["400", "400", "501"]),
        ("gzip", ["400", "400", "501"]),
    ];
    let cases = all.into_iter();
    let cases = cases.map(|(coding, said)| case(coding, &post(coding, "0\r\n\r\n"), said));
    cases.collect()
}

/// Bodies that are no chunks, or too long ones.
fn of_chunks() -> Vec<Case> {
    let chunked = "200 POST / HTTP/1.1 chunked";
    let all = [
        ("no size", "zz\r\n\r\n", ["400", "400", "400"]),
        ("a sign", "-1\r\nx\r\n0\r\n\r\n", ["400", "400", "400"]),
        (
            "a size of 68 bits",
            "fffffffffffffffff\r\nx",
            ["400", "400", "400"],
        ),
        (
            "a longer chunk than its size",
            "1\r\nxx\r\n0\r\n\r\n",
            ["400", "400", "400"],
        ),
        (
            "a good chunk in front",
            "1\r\nx\r\nzz\r\n",
            ["400", "400", "400"],
        ),
        (
            "good chunks",
            "1\r\nx\r\n0\r\n\r\n",
            [chunked, chunked, "200 POST / HTTP/1.1"],
        ),
    ];
    let cases = all.into_iter();
    let cases = cases.map(|(what, body, said)| case(what, &post("chunked", body), said));
    cases.collect()
}

/// HTTP/2, which HAProxy speaks, and nginx in this version does not without TLS.
fn of_versions() -> Vec<Case> {
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // With the frame that follows it.
    let settings = format!("{preface}\0\0\0\u{4}\0\0\0\0\0");
    vec![
        case("a preface", preface, ["400", "no HTTP/1", "400"]),
        case(
            "a preface and its settings",
            &settings,
            ["400", "no HTTP/1", "400"],
        ),
    ]
}

/// Targets: where it is absolute HAProxy passes it on as it is, and nginx in origin form.
fn of_targets() -> Vec<Case> {
    let all = [
        (
            "GET http://b.test",
            [
                "200 GET / HTTP/1.1",
                "200 GET http://b.test HTTP/1.1",
                "200 GET / HTTP/1.1",
            ],
        ),
        ("GET http://b.test#x", ["400", "400", "400"]),
        (
            "GET http://b.test/#x",
            ["400", "400", "200 GET /#x HTTP/1.1"],
        ),
        ("GET /x#y", ["400", "400", "200 GET /x#y HTTP/1.1"]),
        ("GET /x?y#z", ["400", "400", "200 GET /x?y#z HTTP/1.1"]),
        (
            "GET http://u@b.test/",
            ["400", "200 GET http://u@b.test/ HTTP/1.1", "400"],
        ),
        (
            "OPTIONS http://b.test",
            [
                "200 OPTIONS * HTTP/1.1",
                "200 OPTIONS http://b.test HTTP/1.1",
                "200 OPTIONS / HTTP/1.1",
            ],
        ),
        (
            "OPTIONS http://b.test/",
            [
                "200 OPTIONS / HTTP/1.1",
                "200 OPTIONS http://b.test/ HTTP/1.1",
                "200 OPTIONS / HTTP/1.1",
            ],
        ),
        (
            "OPTIONS *",
            ["200 OPTIONS * HTTP/1.1", "200 OPTIONS * HTTP/1.1", "400"],
        ),
    ];
    let cases = all.into_iter();
    let cases = cases.map(|(line, said)| {
        let head = format!("{line} HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n");
        case(line, &head, said)
    });
    cases.collect()
}
