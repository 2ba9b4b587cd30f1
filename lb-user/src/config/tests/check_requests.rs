//! The rules of what an HTTP or TLS check requests, and of which host.

use super::{
    health::{health, read, wrong},
    *,
};

#[test]
fn an_http_check_asks_for_what_a_url_can_have() {
    let path = |path: &str| format!("{{ http: {{ path: {path} }} }}");
    for text in [
        "/readyz",
        "/",
        "\"/a%2Fb/c;v=1?x=y&z=/?@:!$'()*+,~_-.\"",
        &format!("/{}", "a".repeat(1023)),
    ] {
        let Check::Http(get) = read(&path(text)).check else {
            panic!("{text}");
        };
        assert_eq!(get.path, text.trim_matches('"'));
    }
    let words = "is not a path; expected one such as /readyz or /health?full, in at most 1024 \
                 characters of a URL and without a fragment";
    for text in [
        "readyz",
        "",
        "/a b",
        "/a#b",
        "/a\\tb",
        "/a\\r\\nHost: b",
        "/ü",
        "/a%2",
        "/a%",
        "/a%2g",
        "/[a]",
        "http://a/",
        "*",
    ] {
        let shown = text.replace("\\t", "\t").replace("\\r\\n", "\r\n");
        let words = format!("{} {words}", place::quote(&shown));
        wrong(&path(&format!("\"{text}\"")), ".http.path", &words);
    }
    let long = format!("/{}", "a".repeat(1024));
    wrong(
        &path(&long),
        ".http.path",
        &format!("{} {words}", place::quote(&long)),
    );
}

#[test]
fn a_status_is_one_or_a_range() {
    let status = |status: &str| format!("{{ http: {{ status: {status} }} }}");
    for (text, range) in [
        ("200", (200, 200)),
        ("\"401\"", (401, 401)),
        ("200-399", (200, 399)),
        ("100-599", (100, 599)),
    ] {
        let Check::Http(get) = read(&status(text)).check else {
            panic!("{text}");
        };
        assert_eq!(get.status, range);
    }
    for text in [
        "99",
        "600",
        "200-600",
        "2xx",
        "200-",
        "-200",
        "200-300-400",
        "ok",
    ] {
        let words =
            format!("\"{text}\" is not a status; expected 100 to 599, or a range such as 200-399");
        wrong(&status(text), ".http.status", &words);
    }
    let words = "399-200 ends before it starts";
    wrong(&status("399-200"), ".http.status", words);
}

#[test]
fn who_is_asked_has_a_legal_name() {
    let long = ["a".repeat(63).as_str(); 4].join(".");
    let sni = |name: &str| format!("{{ tls: {{ sni: \"{name}\" }} }}");
    for name in ["api", "api.tenant-a.example.com", &"a".repeat(63)] {
        read(&sni(name));
    }
    let words = "is not a DNS name; expected one such as tenant-a.example.com, in lower case";
    for name in [
        "",
        "10.32.96.105",
        "::1",
        "Api",
        "a_b",
        "a.",
        "-a",
        "a:6443",
        "*.a",
        &long,
    ] {
        let words = format!("{} {words}", place::quote(name));
        wrong(&sni(name), ".tls.sni", &words);
    }
    let host = |name: &str| format!("{{ http: {{ host: \"{name}\" }} }}");
    for name in [
        "api",
        "api:1",
        "api.a.example.com:65535",
        "10.32.96.105",
        "10.32.96.105:80",
        "[fd00::1]",
        "[fd00::1]:80",
    ] {
        read(&host(name));
    }
    let words = "is not a host; expected a DNS name in lower case or an IP address, with :PORT or \
                 without";
    for name in [
        "", ":80", "a:", "a:0", "a:65536", "a:b", "a:1:2", "a::1", "fd00::1", "[::1", "[::1]x",
        "[a]", "10.32.96", "a b", "a/b", "u@a", "A", &long,
    ] {
        let words = format!("{} {words}", place::quote(name));
        wrong(&host(name), ".http.host", &words);
    }
    let ca = |path: &str| format!("{{ https: {{ ca: {path} }} }}");
    for path in ["ca.pem", "\"\"", "/etc/lb/", "\"/a\\0b\""] {
        let found = problems(&file(&[(7, &health(&ca(path)))]));
        assert_eq!(found.len(), 1, "{found:?}");
        let (line, key, words) = &found[0];
        assert_eq!((*line, key.as_str()), (8, "pools.kas-a.health.https.ca"));
        let end = "is not the path of a file; expected one from the root, such as /etc/lb/ca.pem";
        assert!(words.ends_with(end), "{words}");
    }
}
