//! One frame in; verdict, frame and counters out: the loaded object through BPF_PROG_TEST_RUN.
//!
//! Every test asserts the whole outcome: the action, every byte of the frame, and the one counter
//! that went up. `cargo xtask test` runs them as root.
#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

// The attribute in every module.
#[macro_use]
extern crate lb_tests_attribute;

mod affinity;
mod answer;
mod arp;
mod balance;
mod bind;
mod bind_again;
mod bind_agreed;
mod bind_by_client;
mod bind_cut;
mod bind_ends;
mod bind_header;
mod bind_options;
mod bind_plain;
mod bind_plain_guess;
mod bind_slot;
mod bind_two;
mod blind;
mod budget;
mod close;
mod cookies;
mod counts;
mod cut;
mod door;
mod drop;
mod ended;
mod enter;
mod event;
mod family;
mod four;
mod fragment;
mod given;
mod grow;
mod handed_over;
mod hello_segments;
mod host;
mod icmp;
mod index;
mod local;
mod lying;
mod mark;
mod mss;
mod mtu;
mod next_backend;
mod one_arm;
mod options;
mod partial;
mod pass;
mod peers;
mod policy;
mod ports;
mod queue;
mod quota;
mod race;
mod recover;
mod redispatch;
mod replicas;
mod reply;
mod request;
mod reset;
mod ring;
mod shared;
mod six;
mod splice;
mod stop;
mod stranger;
mod table;
mod vary;
mod vlan;
