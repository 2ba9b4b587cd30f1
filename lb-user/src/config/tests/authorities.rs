//! Files of CAs.

use std::{fs, process::Command};

use nix::{sys::stat::Mode, unistd::mkfifo};
use tempfile::TempDir;

use super::{health::health, *};

/// A CA that openssl makes, as a PEM text.
fn certificate() -> String {
    let mut openssl = Command::new("openssl");
    openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split(' '));
    let output = openssl.args(["-days", "2", "-subj", "/CN=ca", "-keyout", "/dev/null"]);
    let output = output.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A folder with a configuration whose check trusts `ca.pem` there, and its main file.
fn site() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    let check = health(&format!("{{ tls: {{ ca: {} }} }}", ca.display()));
    let main = folder.path().join("lb.yaml");
    fs::write(&main, file(&[(7, &check)])).unwrap();
    (folder, main)
}

#[test]
fn a_file_of_cas_is_read_with_the_configuration() {
    let (folder, main) = site();
    let ca = folder.path().join("ca.pem");
    let certificate = certificate();
    fs::write(&ca, &certificate).unwrap();
    let before = load(&main).unwrap();
    assert_eq!(load(&main).as_ref(), Ok(&before));
    let comment = format!("{certificate}# a comment\n");
    fs::write(&ca, comment).unwrap();
    assert_eq!(load(&main).as_ref(), Ok(&before), "the same CAs");
    fs::write(&ca, self::certificate()).unwrap();
    assert_ne!(load(&main).as_ref(), Ok(&before), "read again");
}

#[test]
fn a_file_of_cas_that_is_none_is_a_problem_of_its_key() {
    let (folder, main) = site();
    let ca = folder.path().join("ca.pem");
    let text = fs::read_to_string(&main).unwrap();
    let refused = |words: &str| {
        let problems = load(&main).unwrap_err();
        let [problem] = problems.as_slice() else {
            panic!("{problems}");
        };
        let (line, key) = (problem.line, problem.key.as_str());
        assert_eq!((line, key), (8, "pools.kas-a.health.tls.ca"));
        let words = format!("{} {words}", place::quote(&ca.display().to_string()));
        assert_eq!(problem.words, words);
        // What was applied once is not refused for it: not by a rollback, and not by `lb status`.
        assert!(parse("applied.yaml", &text).is_ok());
    };
    refused("cannot be read: No such file or directory (os error 2)");
    mkfifo(&ca, Mode::S_IRWXU).unwrap();
    refused("cannot be read: it is not a regular file");
    fs::remove_file(&ca).unwrap();
    fs::create_dir(&ca).unwrap();
    refused("cannot be read: it is not a regular file");
    fs::remove_dir(&ca).unwrap();
    fs::write(&ca, "no certificate").unwrap();
    let none = "has no certificate of a CA (0 are none that can be used); expected a PEM file";
    refused(none);
    let padding = "#".repeat(1 << 20);
    fs::write(&ca, certificate() + &padding).unwrap();
    refused("cannot be read: it has more than 1 MiB");
}
