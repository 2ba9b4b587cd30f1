//! Real sockets through the attached programs, in network namespaces.
//!
//! Each test builds networks of its own, so they run side by side. They need root, the programs of
//! `peers` and `traffic` (nginx, dnsmasq, curl, python3, openssl, dig, tcpdump, nft, ethtool), haproxy, strace, libfaketime, systemd, and the
//! binaries `lb`, `lb-lab` and `lb-bench`, from `LB_BIN`, `LB_LAB_BIN` and `LB_BENCH_BIN` or from the release folder.

#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

mod account;
mod admin;
mod alive;
mod allow;
mod alone;
mod announce;
mod bad_start;
mod bench;
mod bench_ends;
mod carrier;
mod cell;
mod change;
mod churn;
mod clients;
mod clock;
mod confirm;
mod crossing;
mod dies;
mod disk;
mod endure;
mod expiry;
mod extension;
mod flap;
mod flood;
mod forged;
mod fragment;
mod guard;
mod handoff;
mod handoff_blast;
mod handoff_cost;
mod handoff_killed;
mod handoff_much;
mod handoff_scales;
mod handoff_segments;
mod handoff_size;
mod handoff_tenants;
mod handoff_trouble;
mod health;
mod host;
mod hosts;
mod hosts_ways;
mod hotplug;
mod icmp;
mod keepalive;
mod killed;
mod lab;
mod leg;
mod life;
mod limits;
mod load;
mod local;
mod migrate;
mod million;
mod mode;
mod mtu;
mod neighbours;
mod not_ours;
mod offload;
mod one_arm;
mod one_ip;
mod oracle;
mod oracle_sni;
mod oracle_sni_cases;
mod order;
mod overlap;
mod pieces;
mod ports;
mod privileges;
mod probe;
mod proxy_in;
mod proxy_out;
mod proxy_out_plain;
mod refuse;
mod reload;
mod remains;
mod replace;
mod request;
mod rest;
mod restart;
mod routed;
mod scan;
mod shared;
mod shared_guard;
mod shared_limits;
mod shared_reach;
mod shared_silence;
mod shared_tenants;
mod silence;
mod six;
mod splice;
mod spoof;
mod stop;
mod survive;
mod takeover;
mod through;
mod topology;
mod two_cpus;
mod undone;
mod unit;
mod vlan;
