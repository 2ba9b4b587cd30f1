//! The rules of networks.

use super::*;

#[test]
fn roles_are_mgmt_and_tenant() {
    let text =
        "  mgmt: { role: public, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }";
    refused(
        &[(3, text)],
        "networks.mgmt.role",
        "\"public\" is not a role; expected tenant, mgmt or uplink",
    );
}

#[test]
fn interface_names_are_those_of_the_kernel() {
    for name in [
        "\"\"",
        "\"a b\"",
        "a/b",
        "\"a:b\"",
        "..",
        "abcdefghijklmnop",
    ] {
        let text = format!(
            "  tenant-a: {{ role: tenant, interface: {name}, prefixes: [192.168.203.0/24] }}"
        );
        refused(
            &[(4, &text)],
            "networks.tenant-a.interface",
            "is not an interface name",
        );
    }
    let text =
        "  tenant-a: { role: tenant, interface: abcdefghijklmno, prefixes: [192.168.203.0/24] }";
    accepted(&[(4, text)]);
    refused(
        &[(
            4,
            "  tenant-a: { role: tenant, interface: eth1, prefixes: [192.168.203.0/24] }",
        )],
        "networks.tenant-a.interface",
        "\"eth1\" without a vlan already carries network mgmt in line 3",
    );
}

#[test]
fn prefixes_are_canonical_and_disjoint() {
    let key = "networks.tenant-a.prefixes";
    let with = |list: &str| tenant(&format!("prefixes: [{list}]"));
    refused(&[(4, &with(""))], key, "found an empty list");
    let first = format!("{key}[0]");
    let second = format!("{key}[1]");
    refused(
        &[(4, &with("192.168.203.9/24"))],
        &first,
        "did you mean 192.168.203.0/24?",
    );
    refused(
        &[(4, &with("192.168.203.0/31"))],
        &first,
        "no prefix length of 8 to 30",
    );
    refused(
        &[(4, &with("192.168.203.0"))],
        &first,
        "has no prefix length",
    );
    refused(
        &[(4, &with("fd00::/127"))],
        &first,
        "no prefix length of 16 to 126",
    );
    refused(
        &[(4, &with("192.168.0.0/16, 192.168.203.0/24"))],
        &second,
        "192.168.203.0/24 overlaps 192.168.0.0/16 in line 4",
    );
    refused(
        &[(4, &with("192.168.203.0/24, 192.168.0.0/16"))],
        &second,
        "192.168.0.0/16 overlaps 192.168.203.0/24 in line 4",
    );
    refused(
        &[(4, &with("192.168.203.0/24, 192.168.203.0/24"))],
        &second,
        "overlaps",
    );
    accepted(&[(4, &with("192.168.203.0/25, 192.168.203.128/25"))]);
    // Two networks may use the same addresses.
    accepted(&[(
        3,
        &mgmt("prefixes: [10.32.96.0/20, 192.168.203.0/24], snat: [10.32.96.50]"),
    )]);
}

#[test]
fn snat_addresses_are_hosts_of_their_network() {
    let key = "networks.mgmt.snat[0]";
    let with = |list: &str| mgmt(&format!("prefixes: [10.32.96.0/20], snat: [{list}]"));
    refused(
        &[(3, &with("10.33.0.1"))],
        key,
        "is a SNAT address outside its network's prefixes; network mgmt has 10.32.96.0/20",
    );
    refused(
        &[(3, &with("10.32.96.0"))],
        key,
        "is the network address of 10.32.96.0/20",
    );
    refused(
        &[(3, &with("10.32.111.255"))],
        key,
        "is the broadcast address of 10.32.96.0/20",
    );
    refused(&[(3, &with("224.0.0.1"))], key, "is a multicast address");
    refused(&[(3, &with("127.0.0.1"))], key, "is a loopback address");
    refused(&[(3, &with("0.0.0.0"))], key, "is the unspecified address");
    refused(
        &[(3, &with("fd00::1, 10.32.96.50"))],
        key,
        "fd00::1 is a SNAT address outside its network's prefixes",
    );
    refused(
        &[(3, &with("10.32.96.50, 10.32.96.50"))],
        "networks.mgmt.snat[1]",
        "10.32.96.50 is already listed in line 3",
    );
    let config = accepted(&[(3, &with("10.32.96.52, 10.32.96.51"))]);
    assert_eq!(config.snat_addresses(), 2);
    assert_eq!(
        config.networks[0].snat[0].address,
        IpAddr::from([10, 32, 96, 52])
    );
}
