use super::*;

/// A request with this line and body.
fn request(line: &str, body: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: a.lab\r\n\r\n{body}")
}

/// The targets of requests with these bodies, in segments of so many bytes.
fn targets(requests: &[(String, Option<u64>)], step: usize) -> Vec<String> {
    let lines = RequestLines::default();
    let stream: Vec<u8> = requests.iter().flat_map(|(text, _)| text.bytes()).collect();
    let mut segments = stream.chunks(step);
    let mut known = 0;
    let mut end = 0;
    let mut found = Vec::new();
    for (text, length) in requests {
        let head = text.find("\r\n\r\n").unwrap() + 4;
        // A head is read once all of it is there, and not before.
        while known < end + head {
            let segment = segments.next().unwrap();
            known += segment.len();
            lines.came(segment);
        }
        end += text.len();
        let hint = length.map_or_else(SizeHint::default, SizeHint::with_exact);
        let line = lines.next(&hint).unwrap();
        let target = line.target(&Method::GET).unwrap();
        found.push(String::from_utf8(target.to_vec()).unwrap());
    }
    found
}

#[test]
fn each_request_has_its_line_in_whatever_segments_it_comes() {
    let chunks = "3;a=b\r\nGET\r\n00A\r\n /x HTTP/1\r\n0\r\nX: GET /y\r\n\r\n";
    let requests = [
        (request("GET /1#a", ""), Some(0)),
        (request("GET /2", "GET /no HTTP/1.1\r\n\r\n"), Some(20)),
        (request("GET http://a.lab", chunks), None),
        (request("GET /4", "0\r\n\r\n"), None),
        (format!("\r\n\n{}", request("GET /5", "")), Some(0)),
        ("GET /6 HTTP/1.1\nHost: a.lab\n\r\n\r\n".to_owned(), Some(0)),
    ];
    let length = requests.iter().map(|(text, _)| text.len()).sum();
    for step in 1..=length {
        let expected = ["/1#a", "/2", "http://a.lab", "/4", "/5", "/6"];
        assert_eq!(targets(&requests, step), expected, "{step}");
    }
}

#[test]
fn a_line_of_another_method_has_no_target() {
    let lines = RequestLines::default();
    lines.came(request("GET /", "").as_bytes());
    let line = lines.next(&SizeHint::with_exact(0)).unwrap();
    assert_eq!(line.target(&Method::POST), None);
    assert_eq!(lines.next(&SizeHint::with_exact(0)), None);
}

#[test]
fn what_is_no_request_any_more_is_not_kept() {
    let lines = RequestLines::default();
    for _ in 0..=MAX_BYTES / 1000 {
        lines.came(&[b'x'; 1000]);
    }
    assert!(lines.ahead().bytes.is_none());
    assert_eq!(lines.next(&SizeHint::with_exact(0)), None);
}
