//! Real sockets through the attached programs, in network namespaces.
//!
//! Each test builds networks of its own, so they run side by side. They need root, the programs of
//! `peers` and `traffic` (nginx, dnsmasq, curl, openssl, dig, tcpdump, nft, ethtool), and the
//! binaries `lb` and `lb-lab`, from `LB_BIN` and `LB_LAB_BIN` or from the release folder.

#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

mod bad_start;
mod cell;
mod confirm;
mod host;
mod lab;
mod load;
mod mode;
mod request;
mod restart;
mod topology;
