//! Two boxes with one service: which there are, which is this one, and what each has of its own.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use crate::config::{
    address::family,
    authorities::Authorities,
    box_files,
    list::{List, Named},
    model::{Config, Ha, HaBox},
    names::{self, Names},
    place::{At, Location, MAIN, quote},
    problem::Findings,
    schema::{RawBox, RawHa, RawNetwork, RawSnat},
};

/// How many boxes there are, for now.
const BOXES: usize = 2;

/// The boxes as far as other sections depend on them.
pub(in crate::config) struct Boxes<'r> {
    /// None: this box is alone.
    names: Option<Names<'r>>,
    pub(super) raw: &'r [Named<RawBox>],
    /// The name of this one, if it is known.
    own: Option<String>,
}

impl<'r> Boxes<'r> {
    /// Those of `ha`, if it is there; the host is called `host` where it says so.
    pub(in crate::config) fn new(
        ha: Option<&'r At<RawHa>>,
        host: impl FnOnce() -> Option<String>,
        findings: &mut Findings,
    ) -> Self {
        let Some(At { place, value }) = ha else {
            return Self {
                names: None,
                raw: &[],
                own: None,
            };
        };
        let names = Names::new("box", &value.boxes);
        check_count(&value.boxes, place, findings);
        let own = match &value.r#box {
            Some(written) => names.find(written, findings).map(|_| written.value.clone()),
            None => by_host(host(), &value.boxes, &names, place, findings),
        };
        Self {
            names: Some(names),
            raw: &value.boxes.elements,
            own,
        }
    }

    /// Whether a SNAT address, or one that checks come from, is of another box.
    pub(super) fn is_of_peer(
        &self,
        owner: Option<&At<String>>,
        place: &Location,
        findings: &mut Findings,
    ) -> bool {
        match (&self.names, owner) {
            (None, None) => false,
            (None, Some(written)) => {
                let words = format!(
                    "found {}, but there is no `ha`, which says what boxes there are",
                    quote(&written.value)
                );
                findings.add(&written.place, words);
                false
            }
            (Some(_), None) => {
                let key = format!("{}.box", place.key);
                let words = "missing; with `ha` each SNAT address is of one box: { address: ADDRESS, \
                             box: NAME }";
                findings.add(&place.with_key(key), words);
                false
            }
            (Some(names), Some(written)) => {
                let is_known = names.find(written, findings).is_some();
                is_known && self.own.as_ref().is_some_and(|own| *own != written.value)
            }
        }
    }

    /// Reports each box that has no SNAT address of a family in a network that has some of it: its new flows would have none
    /// there.
    pub(super) fn check_shares(&self, network: &Named<RawNetwork>, findings: &mut Findings) {
        let snat = &network.value.snat;
        let Some(first) = snat.elements.first().filter(|_| snat.whole) else {
            return;
        };
        let is_whole = |at: &At<RawSnat>| {
            let known = |name: &At<String>| self.raw.iter().any(|one| one.name == name.value);
            at.value.address.is_some() && at.value.r#box.as_ref().is_some_and(known)
        };
        if !snat.elements.iter().all(is_whole) {
            return;
        }
        let place = first.place.with_key(format!("{}.snat", network.place.key));
        for is_ipv4 in [true, false] {
            let addresses = snat.elements.iter().filter_map(|at| {
                let address = at.value.address.as_ref()?.value;
                let owner = at.value.r#box.as_ref()?.value.as_str();
                (address.is_ipv4() == is_ipv4).then_some((owner, address))
            });
            let owners: HashSet<&str> = addresses.clone().map(|(owner, _)| owner).collect();
            let Some((_, address)) = addresses.clone().next() else {
                continue;
            };
            for one in self.raw.iter().filter(|one| !owners.contains(&*one.name)) {
                let words = format!(
                    "box {} has no SNAT address of {} in network {}; expected one or more of each box",
                    one.name,
                    family(address),
                    network.name
                );
                findings.add(&place, words);
            }
        }
    }
}

fn check_count(boxes: &List<Named<RawBox>>, place: &Location, findings: &mut Findings) {
    let count = boxes.elements.len();
    if boxes.whole && count != BOXES {
        let words = format!("found {count}, expected two boxes");
        findings.add(&place.with_key(format!("{}.boxes", place.key)), words);
    }
}

/// The box that is called as its host.
fn by_host(
    host: Option<String>,
    boxes: &List<Named<RawBox>>,
    names: &Names<'_>,
    place: &Location,
    findings: &mut Findings,
) -> Option<String> {
    let host = host.unwrap_or_default();
    let name = host.split('.').next().unwrap_or_default();
    if names.position(name).is_some() {
        return Some(name.to_owned());
    }
    if boxes.whole {
        let known = boxes.elements.iter().map(|one| quote(&one.name));
        let words = format!(
            "missing, and no box has the name of this host, {}; expected one of {}",
            quote(name),
            names::listed(known)
        );
        findings.add(&place.with_key(format!("{}.box", place.key)), words);
    }
    None
}

/// What is written of `ha`, and what it needs of the rest of `config`, which has everything else.
pub(super) fn ha(
    raw: Option<&At<RawHa>>,
    boxes: &Boxes<'_>,
    networks: &[Named<RawNetwork>],
    config: &Config,
    findings: &mut Findings,
) -> Option<Ha> {
    let At { place, value } = raw?;
    check_networks(networks, findings);
    if config.syn_cookie_key.is_none() {
        let place = Location {
            file: MAIN,
            ..place.with_key("syn_cookie_key".to_owned())
        };
        let words = "missing; with `ha` both boxes have the same one, so that each takes the other's cookies";
        findings.add(&place, words);
    }
    check_sync(&value.boxes.elements, config, findings);
    if let Some(At { place, value }) = &value.marker {
        check_is_of_host(*value, "marker", place, config, findings);
    }
    let (ca, certificate, key) = files(value, findings);
    let one = |named: &Named<RawBox>| {
        Some(HaBox {
            name: named.name.clone(),
            sync: named.value.sync.as_ref()?.value,
        })
    };
    Some(Ha {
        box_name: boxes.own.clone()?,
        boxes: value.boxes.elements.iter().filter_map(one).collect(),
        marker: value.marker.as_ref()?.value,
        ca: ca?,
        certificate: certificate?,
        key: key?,
    })
}

/// The host's own addresses are not taken from one box to the other.
fn check_networks(networks: &[Named<RawNetwork>], findings: &mut Findings) {
    for network in networks {
        if let Some(At { place, value: true }) = &network.value.address {
            let words = format!(
                "with `ha` network {} needs addresses of its own: those of the host stay with its box",
                network.name
            );
            findings.add(network.blame(place), words);
        }
    }
}

/// Each box has an address and port of its own, which is nothing else.
fn check_sync(boxes: &[Named<RawBox>], config: &Config, findings: &mut Findings) {
    let mut known: Vec<(SocketAddr, &Location)> = Vec::new();
    for At { place, value } in boxes.iter().filter_map(|one| one.value.sync.as_ref()) {
        check_is_of_host(value.ip(), "sync address", place, config, findings);
        match known.iter().find(|(sync, _)| sync == value) {
            Some((_, first)) => {
                let line = findings.line(first, place);
                findings.add(place, format!("{value} is that of another box in {line}"));
            }
            None => known.push((*value, place)),
        }
    }
}

/// That an address, which is a `what` of the host, is none that lb has.
fn check_is_of_host(
    address: IpAddr,
    what: &str,
    place: &Location,
    config: &Config,
    findings: &mut Findings,
) {
    let mut services = config.services.iter();
    let vip = services.find(|one| one.listen.iter().any(|listen| listen.address == address));
    let mut networks = config.networks.iter();
    let snat = networks.find(|network| network.all_snat().any(|snat| snat.address == address));
    let mut networks = config.networks.iter();
    let of_checks = networks.find(|one| one.all_checks_from().any(|other| other == address));
    let other = match (vip, snat, of_checks) {
        (Some(service), ..) => format!("a VIP of service {}", service.name),
        (None, Some(network), _) => format!("a SNAT address of network {}", network.name),
        (None, None, Some(network)) => {
            format!(
                "an address that checks of network {} come from",
                network.name
            )
        }
        (None, None, None) => return,
    };
    let words = format!("{address} is {other}; expected a {what} that only the host has");
    findings.add(place, words);
}

/// The CAs, the certificate and its key, each of which can be read.
fn files(
    raw: &RawHa,
    findings: &mut Findings,
) -> (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>) {
    let mut file =
        |at: Option<&At<String>>, example, check: &dyn Fn(PathBuf) -> Result<(), String>| {
            let at = at?;
            let path = names::file_path(at, example, findings)?;
            if let Err(why) = check(path.clone()) {
                findings.add_of_file(&at.place, format!("{} {why}", quote(&at.value)));
            }
            Some(path)
        };
    (
        file(raw.ca.as_ref(), "/etc/lb/ha/ca.pem", &|path| {
            Authorities::read(path).roots().map(|_| ())
        }),
        file(raw.certificate.as_ref(), "/etc/lb/ha/box.pem", &|path| {
            box_files::certificates(&path).map(|_| ())
        }),
        file(raw.key.as_ref(), "/etc/lb/ha/box.key", &|path| {
            box_files::key(&path).map(|_| ())
        }),
    )
}
