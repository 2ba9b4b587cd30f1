//! Any bytes at all: nothing panics, and what comes out is what the bytes say.
//!
//! `cargo test` runs each target for a moment with random bytes, and for a minute with
//! `LB_TEST_LONG`; `cargo bolero test -p lb-user NAME` looks for new paths with libFuzzer.
#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

mod hello;

use std::{
    env,
    panic::RefUnwindSafe,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bolero::{check, generator::produce};

/// Most bytes of an input.
const LONGEST: usize = 512;

/// Runs a target on bytes, the first of which says what to make of the others. The target says
/// whether they got as far as what it is about: enough of them must.
fn each_input(then: impl Fn(u8, &[u8]) -> bool + RefUnwindSafe) {
    // Without a length of its own a list has 64 bytes at most.
    let bytes = produce::<Vec<u8>>().with().len(0..LONGEST);
    let target = check!().with_generator(bytes).with_max_len(2 * LONGEST);
    let target = if env::var_os("LB_TEST_LONG").is_some() {
        target.with_test_time(Duration::from_secs(60))
    } else {
        target.with_iterations(20_000)
    };
    let reached = AtomicU32::new(0);
    target.for_each(|input: &Vec<u8>| {
        if let [how, rest @ ..] = &input[..] {
            reached.fetch_add(u32::from(then(*how, rest)), Ordering::Relaxed);
        }
    });
    let reached = reached.into_inner();
    assert!(reached >= 50, "{reached} got far enough");
}
