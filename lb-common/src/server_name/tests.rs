use super::{MAX_LABEL, NameFault, ServerName};

fn read(name: &str) -> Result<String, NameFault> {
    ServerName::read(name.as_bytes()).map(|name| name.to_string())
}

#[test]
fn names_are_in_lower_case_without_a_dot_behind() {
    for (sent, name) in [
        ("hub.example.test", "hub.example.test"),
        ("HUB.Example.TEST.", "hub.example.test"),
        ("localhost", "localhost"),
        ("_sip._tcp.example.test", "_sip._tcp.example.test"),
        ("-a-.xn--4ca.test", "-a-.xn--4ca.test"),
        ("1.2.3.4a", "1.2.3.4a"),
        ("127.0.0.1.example.test", "127.0.0.1.example.test"),
        ("0xyz", "0xyz"),
        ("x0", "x0"),
        ("dead.beef", "dead.beef"),
    ] {
        assert_eq!(read(sent).as_deref(), Ok(name));
    }
}

#[test]
fn others_are_none() {
    for (sent, fault) in [
        ("", NameFault::Empty),
        (".", NameFault::Empty),
        ("..", NameFault::EmptyLabel),
        ("a..", NameFault::EmptyLabel),
        (".a", NameFault::EmptyLabel),
        ("a..b", NameFault::EmptyLabel),
        ("a\0.test", NameFault::Nul),
        ("\0", NameFault::Nul),
        ("*.test", NameFault::Byte(b'*')),
        ("a b", NameFault::Byte(b' ')),
        ("a.test:443", NameFault::Byte(b':')),
        ("a/b", NameFault::Byte(b'/')),
        ("caf\u{e9}.test", NameFault::Byte(0xc3)),
        ("a\n", NameFault::Byte(b'\n')),
        ("192.0.2.1", NameFault::Address),
        ("192.0.2.1.", NameFault::Address),
        ("127.1", NameFault::Address),
        ("2130706433", NameFault::Address),
        ("0x7f.0X1", NameFault::Address),
        ("0x", NameFault::Address),
        ("a.test.1", NameFault::Address),
        ("::1", NameFault::Address),
        ("2001:db8::1", NameFault::Address),
        ("[2001:db8::1]", NameFault::Address),
        ("fe80::1%eth0", NameFault::Address),
        ("::ffff:192.0.2.1", NameFault::Address),
        ("[2001]", NameFault::Byte(b'[')),
    ] {
        assert_eq!(read(sent), Err(fault), "{sent}");
    }
}

/// An address ends at its zone, which may have any length, and a bracket behind that is not looked for.
#[test]
fn addresses_with_brackets_and_zones() {
    for address in [
        "[fe80::1%eth0]",
        "fe80::1%25eth0]",
        "[::1",
        "::1]",
        "1111:2222:3333:4444:5555:6666:255.255.255.255",
        "[1111:2222:3333:4444:5555:6666:255.255.255.255]",
        &format!("fe80::1%{}", "*".repeat(1000)),
    ] {
        assert_eq!(read(address), Err(NameFault::Address), "{address}");
    }
    for other in [
        "::1]%eth0",
        "[[::1]]",
        "01111:2222:3333:4444:5555:6666:255.255.255.255",
        &format!("{}::1", "1:".repeat(1000)),
    ] {
        let fault = read(other).unwrap_err();
        assert!(matches!(fault, NameFault::Byte(b':' | b'[')), "{other}");
    }
}

#[test]
fn lengths() {
    let label = "a".repeat(MAX_LABEL);
    assert_eq!(read(&label).as_deref(), Ok(&*label));
    assert_eq!(read(&format!("{label}a.test")), Err(NameFault::LongLabel));
    assert_eq!(read(&format!("test.{label}a")), Err(NameFault::LongLabel));
    // Three labels of 64 bytes with their dots, and one of the rest.
    let name = |rest: usize| format!("{label}.{label}.{label}.{}", "b".repeat(rest));
    assert_eq!(name(61).len(), 253);
    assert_eq!(read(&name(61)), Ok(name(61)));
    assert_eq!(read(&format!("{}.", name(61))), Ok(name(61)));
    assert_eq!(read(&name(62)), Err(NameFault::Long));
    assert_eq!(read(&"a.".repeat(40_000)), Err(NameFault::Long));
}

/// Whatever is read once is read the same again.
#[test]
fn every_byte() {
    for byte in 0..=u8::MAX {
        let name = [b'a', byte, b'a'];
        let is_in_names =
            matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        let read = ServerName::read(&name);
        assert_eq!(read.is_ok(), is_in_names, "{byte}");
        if let Ok(read) = read {
            assert_eq!(read.as_str().as_bytes(), name.to_ascii_lowercase());
        }
    }
}
