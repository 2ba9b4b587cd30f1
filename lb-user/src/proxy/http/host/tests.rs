use hyper::Request;

use super::*;
use crate::{
    config::{Balance, Otherwise},
    proxy::snapshot::tests::routes,
};

/// The target of a request for `target` with these Hosts: the name, and the Host that the backend gets.
fn ask(target: &str, version: Version, hosts: &[&str]) -> Result<(String, String), Bad> {
    let mut request = Request::get(target).version(version);
    for host in hosts {
        request = request.header(HOST, *host);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let (method, sent) = (&parts.method, target.as_bytes());
    let asked = RequestTarget::of(method, parts.version, &parts.uri, sent, &parts.headers)?;
    let name = asked
        .name
        .map_or_else(|| "-".to_owned(), |name| name.to_string());
    let host = asked.host.map_or_else(
        || "-".to_owned(),
        |host| String::from_utf8(host.as_bytes().to_vec()).unwrap(),
    );
    Ok((name, host))
}

fn host(host: &str) -> Result<(String, String), Bad> {
    ask("/", Version::HTTP_11, &[host])
}

#[test]
fn a_name_is_the_same_however_it_is_written() {
    for written in [
        "a.lab",
        "A.Lab",
        "a.lab.",
        "a.lab:80",
        "a.lab:8080",
        "a.lab.:80",
        "a.lab:",
    ] {
        let expected = Ok(("a.lab".to_owned(), written.to_owned()));
        assert_eq!(host(written), expected, "{written}");
    }
}

#[test]
fn an_address_is_no_name() {
    for written in [
        "192.0.2.1",
        "192.0.2.1:80",
        "[2001:db8::1]",
        "[::1]:80",
        "[::1]:",
    ] {
        let expected = Ok(("-".to_owned(), written.to_owned()));
        assert_eq!(host(written), expected, "{written}");
    }
}

#[test]
fn what_is_no_host_is_bad() {
    for written in [
        "",
        ".",
        ":80",
        "a..lab",
        ".a.lab",
        "a.lab:x",
        "a.lab:65536",
        "a.lab:-1",
        "a.lab:+1",
        "a.lab:80:80",
        "a b",
        "a.lab, b.lab",
        "user@a.lab",
        "a.lab/",
        "a%2elab",
        "[::1",
        "[::1]x",
        "[::1]80",
        "[a.lab]",
        "::1",
        "\u{e4}.lab",
        "http://a.lab",
    ] {
        assert_eq!(host(written), Err(Bad), "{written:?}");
    }
    let long = format!("{}.lab", "a".repeat(64));
    assert_eq!(host(&long), Err(Bad));
}

#[test]
fn there_is_one_host() {
    assert_eq!(ask("/", Version::HTTP_11, &[]), Err(Bad));
    for version in [Version::HTTP_10, Version::HTTP_11] {
        assert_eq!(ask("/", version, &["a.lab", "a.lab"]), Err(Bad));
    }
    let nothing = ("-".to_owned(), "-".to_owned());
    assert_eq!(ask("/", Version::HTTP_10, &[]), Ok(nothing));
}

#[test]
fn the_target_comes_before_the_host() {
    let found = ask("http://B.lab:81/x", Version::HTTP_11, &["a.lab"]);
    let expected = ("b.lab".to_owned(), "B.lab:81".to_owned());
    assert_eq!(found, Ok(expected));
    for (target, hosts) in [
        ("http://b.lab/", &[][..]),
        ("http://b.lab/", &["a..lab"]),
        ("https://b.lab/", &["b.lab"]),
        ("http://user@b.lab/", &["b.lab"]),
        ("http://b.lab#x", &["b.lab"]),
        ("http://b.lab/#x", &["b.lab"]),
        ("/x#y", &["b.lab"]),
        ("/x?y#z", &["b.lab"]),
        ("b.lab:80", &["b.lab"]),
    ] {
        assert_eq!(ask(target, Version::HTTP_11, hosts), Err(Bad), "{target}");
    }
}

#[test]
fn nothing_is_tunnelled() {
    let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("a.lab:80"))]);
    let uri = Uri::from_static("a.lab:80");
    let sent = b"a.lab:80";
    let asked = RequestTarget::of(&Method::CONNECT, Version::HTTP_11, &uri, sent, &headers);
    assert_eq!(asked, Err(Bad));
}

#[test]
fn each_name_has_its_way() {
    let mut http = HttpRouting {
        routes: routes(&[
            ("a.lab", Some("a"), ""),
            ("*.lab", Some("all"), ""),
            ("b.lab", Some("b"), "10.0.0.0/8"),
            ("c.lab", None, ""),
        ]),
        no_match: Otherwise::Alert,
        balance: Balance::Client,
        timeout: std::time::Duration::from_secs(1),
        body_timeout: std::time::Duration::from_secs(1),
        response_timeout: std::time::Duration::from_secs(1),
        max_bytes: 1 << 14,
    };
    let name = |name: &str| ServerName::read(name.as_bytes()).unwrap();
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    let c = name("c.lab");
    for (asked, expected) in [
        (&name("a.lab"), RouteTarget::Pool("a")),
        (&name("x.y.lab"), RouteTarget::Pool("all")),
        (&name("b.lab"), RouteTarget::Denied),
        (&c, RouteTarget::Https(&c)),
        (&name("lab"), RouteTarget::Nothing),
    ] {
        assert_eq!(way(Some(asked), &http, stranger), expected, "{asked}");
    }
    let b = name("b.lab");
    assert_eq!(
        way(Some(&b), &http, Ipv4Addr::new(10, 0, 0, 1)),
        RouteTarget::Pool("b")
    );
    assert_eq!(way(None, &http, stranger), RouteTarget::Nothing);
    http.no_match = Otherwise::Close;
    assert_eq!(way(None, &http, stranger), RouteTarget::Close);
    http.no_match = Otherwise::Pool("rest".to_owned());
    assert_eq!(way(None, &http, stranger), RouteTarget::Pool("rest"));
    assert_eq!(way(Some(&b), &http, stranger), RouteTarget::Denied);
}
