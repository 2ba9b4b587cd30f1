use super::*;

#[test]
fn what_is_no_name_is_not_added() {
    let mut names = ServerNameMap::default();
    for pattern in [
        "",
        "*",
        "*.",
        "*.*.test",
        "a.*.test",
        "x*.test",
        "*..test",
        "192.0.2.1",
        "a b",
    ] {
        assert!(!names.add(pattern, ()), "{pattern}");
    }
    assert!(names.add("*.a.test", ()));
}

#[test]
fn expressions_that_are_none() {
    for expression in [
        "(",
        "a)|(?:b",
        "a)|(b",
        r"\z)|.*",
        "(?x)a # b",
        "[a-z]{1000}{1000}",
        r"\pL",
    ] {
        assert!(whole(expression).is_err(), "{expression}");
    }
    let expression = whole("a|ab").unwrap();
    let found = ["a", "AB", "abc", "xa", "a\n"].map(|name| expression.is_match(name.as_bytes()));
    assert_eq!(found, [true, true, false, false, false]);
}
