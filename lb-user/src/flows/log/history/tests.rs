//! Logs that are searched, and their files.

use super::*;

const SNAT: &str = "10.0.0.4:1031";

/// A line of the flow `id` of this port at a second of 1970.
fn line(event: &str, id: u32, second: u32, duration: Option<u32>) -> String {
    let duration = duration.map_or_else(|| "null".to_owned(), |ms| ms.to_string());
    format!(
        r#"{{"time":"1970-01-01T00:00:{second:02}.000Z","event":"{event}","id":{id},"network":"n","service":"s","protocol":"tcp","client":"192.0.2.{id}:{second}","vip":"10.0.0.2:443","snat":"{SNAT}","backend":"10.0.0.3:443","name":null,"bytes_request":1,"bytes_reply":2,"reason":"finished","duration_ms":{duration}}}"#
    )
}

fn search(lines: &[String], second: i64) -> PastFlows {
    let first = second * 1000;
    let last = first + 999;
    let mut search = Search::new(SNAT.parse().unwrap(), Moment { first, last });
    for line in lines {
        search.read(line.as_bytes());
    }
    search.finish()
}

/// The clients that had the port in that second, and when they began and ended.
fn found(lines: &[String], second: i64) -> Vec<(String, [Option<u32>; 2])> {
    let second_of = |time: Option<String>| time?.get(17..19)?.parse().ok();
    let flows = search(lines, second).flows.into_iter();
    flows
        .map(|flow| {
            (
                flow.client.unwrap(),
                [flow.began, flow.ended].map(second_of),
            )
        })
        .collect()
}

#[test]
fn a_port_is_that_of_the_flow_between_its_beginning_and_its_end() {
    let lines = [
        line("began", 7, 10, None),
        line("ended", 7, 12, Some(2000)),
        line("began", 7, 15, None),
        line("began", 8, 16, None),
        line("ended", 7, 17, Some(2000)),
    ];
    let first = ("192.0.2.7:12".to_owned(), [Some(10), Some(12)]);
    let second = ("192.0.2.7:17".to_owned(), [Some(15), Some(17)]);
    let open = ("192.0.2.8:16".to_owned(), [Some(16), None]);
    assert_eq!(found(&lines, 9), []);
    for at in 10..=12 {
        assert_eq!(found(&lines, at), std::slice::from_ref(&first), "{at}");
    }
    assert_eq!(found(&lines, 13), []);
    assert_eq!(found(&lines, 15), std::slice::from_ref(&second));
    // Two networks have the address.
    assert_eq!(found(&lines, 16), [second, open.clone()]);
    assert_eq!(found(&lines, 50), [open]);
}

#[test]
fn a_flow_whose_beginning_or_end_is_not_there_is_found_as_far_as_it_is_known() {
    let ended = [line("ended", 7, 12, Some(2000))];
    let known = ("192.0.2.7:12".to_owned(), [Some(10), Some(12)]);
    assert_eq!((found(&ended, 11), found(&ended, 9)), (vec![known], vec![]));
    let unknown = ("192.0.2.7:12".to_owned(), [None, Some(12)]);
    assert_eq!(found(&[line("ended", 7, 12, None)], 3), [unknown]);
    // The next one on the port shows that it is over.
    let lost = [
        line("began", 7, 10, None),
        line("began", 7, 15, None),
        line("ended", 7, 16, None),
    ];
    let before = ("192.0.2.7:10".to_owned(), [Some(10), None]);
    let after = ("192.0.2.7:16".to_owned(), [Some(15), Some(16)]);
    assert_eq!(found(&lost, 12), [before]);
    assert_eq!(found(&lost, 16), [after]);
}

#[test]
fn what_is_no_line_of_the_port_is_left_out() {
    let other = line("began", 7, 10, None).replace(SNAT, "10.0.0.4:10310");
    let lines = [
        other,
        "{".to_owned(),
        format!("x{}", line("began", 7, 10, None)),
        line("began", 7, 10, None).replace("1970-", "x"),
        line("turned", 7, 10, None),
    ];
    let history = search(&lines, 11);
    assert_eq!(history.flows, []);
    assert_eq!(history.since.as_deref(), Some("1970-01-01T00:00:10.000Z"));
}

#[test]
fn the_files_are_those_that_the_log_was_renamed_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flows.json");
    assert_eq!(LogFiles::of(&path).unwrap(), LogFiles::default());
    let others = [
        "flows.json.bak",
        "flows.jsonx",
        "http.json",
        "flows-x.json",
        "flows.json.d",
    ];
    let plain = [
        "flows.json.2",
        "flows.json-20261126",
        "flows-20261125.json",
        "flows.json",
    ];
    for name in others
        .iter()
        .chain(&plain)
        .chain(&["flows.json.3.gz", "flows.json-1.xz"])
    {
        fs::write(
            folder.path().join(name),
            format!("{}\n", line("began", 7, 10, None)),
        )
        .unwrap();
    }
    for (age, name) in plain.iter().rev().enumerate() {
        let file = File::open(folder.path().join(name)).unwrap();
        let age = std::time::Duration::from_secs(10 * u64::try_from(age).unwrap());
        file.set_modified(SystemTime::now() - age).unwrap();
    }
    let files = LogFiles::of(&path).unwrap();
    let names = |paths: &[PathBuf]| -> Vec<String> {
        let names = paths
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap());
        names.map(str::to_owned).collect()
    };
    assert_eq!(names(&files.plain), plain);
    assert_eq!(
        names(&files.compressed),
        ["flows.json-1.xz", "flows.json.3.gz"]
    );
    let moment = Moment {
        first: 11_000,
        last: 11_000,
    };
    let found = files.search(SNAT.parse().unwrap(), moment).unwrap();
    // The same line four times: each but the last was followed by another.
    assert_eq!(found.flows.len(), 1);
    // Bytes that are no lines, however many, are no trouble.
    fs::write(&path, vec![b'x'; 3 << 20]).unwrap();
    assert_eq!(
        files
            .search(SNAT.parse().unwrap(), moment)
            .unwrap()
            .flows
            .len(),
        1
    );
}
