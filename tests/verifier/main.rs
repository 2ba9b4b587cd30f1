//! What a verifier makes of the programs: this kernel's, and as far as the object shows, those of older ones.
//! The instruction budget: a program that grows says so in its commit.
#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

// The attribute in every module.
#[macro_use]
extern crate lb_tests_attribute;

mod code;
mod edges;
mod frames;
mod maps;
mod stack;
mod written;

use lb_tests::product::{budget, program::DataPlane};

const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
";

#[privileged_test]
fn every_program_stays_within_a_tenth_of_its_budget() {
    let lb = DataPlane::new(CONFIG);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    for (program, verified) in lb.verified_instructions() {
        let budget = budget::of_program(program, &release).expect("a budget for every program");
        println!("{program}: {verified} instructions verified, budget {budget}");
        assert!(
            verified * 10 <= budget * 11,
            "{program} has grown from {budget} to {verified} verified instructions: say why in the \
             commit and change tests/verifier/budget.md"
        );
    }
}
