//! Real sockets through the attached programs, in network namespaces.
//!
//! Each test builds networks of its own, so they run side by side. They need root, the programs of
//! `peers` and `traffic` (nginx, dnsmasq, curl, python3, openssl, dig, tcpdump, nft, ethtool), haproxy, keepalived, prometheus, strace, libfaketime, systemd,
//! chromium with node and npm, and the binaries `lb`, `lb-lab` and `lb-bench`, from `LB_BIN`, `LB_LAB_BIN` and `LB_BENCH_BIN` or from the release folder.

#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

// The attribute in every module.
#[macro_use]
extern crate lb_tests_attribute;

mod bench;
mod flows;
mod ha;
mod handoff;
mod health;
mod ip;
mod isolation;
mod kubernetes;
mod lab;
mod lifecycle;
mod metrics;
mod nic;
mod operate;
mod oracle;
mod policy;
mod proxy;
mod six;
mod topology;
