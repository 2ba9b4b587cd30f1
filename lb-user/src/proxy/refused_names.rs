//! The names that shared VIPs have refused, for an operator that looks for a misspelt one.
//!
//! As many are kept of each service, which is for the clients of one network, and of these the client with the
//! most loses one for the next: neither another network nor a client that sends names at random takes them away.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::api::RefusedName;

/// Names of a service.
const MAX_NAMES: usize = 64;
/// Bytes of a name, as it was sent.
const MAX_NAME_BYTES: usize = 255;

/// Those of all services, by their names; shared by all threads.
#[derive(Clone, Debug, Default)]
pub struct RefusedNames(Arc<Mutex<BTreeMap<String, ServiceNames>>>);

/// Those of a service.
#[derive(Debug)]
struct ServiceNames {
    network: String,
    names: Vec<KeptName>,
}

#[derive(Debug)]
struct KeptName {
    /// None: no name was requested, or none could be read.
    name: Option<String>,
    reason: &'static str,
    count: u64,
    /// The latest of its clients, and when that was.
    client: Ipv4Addr,
    last: Instant,
}

/// A name as it may be shown on a terminal, in a file or on a page: of a longer one the beginning, with each byte that
/// is in no name written as `\xNN`.
pub(super) fn shown(sent: impl Iterator<Item = u8>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in sent.take(MAX_NAME_BYTES) {
        if byte.is_ascii_alphanumeric() || b"-_.:[]*".contains(&byte) {
            text.push(byte.into());
        } else {
            // A string takes everything.
            let _written = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

impl RefusedNames {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, ServiceNames>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a service of the clients of `network` has refused `client`, which has requested `name`, or none,
    /// for a reason that is called `reason`.
    pub(super) fn note(
        &self,
        [network, service]: [&str; 2],
        name: Option<&str>,
        reason: &'static str,
        client: Ipv4Addr,
    ) {
        let mut all = self.all();
        let known = match all.get_mut(service) {
            Some(known) => known,
            None => all
                .entry(service.to_owned())
                .or_insert_with(|| ServiceNames {
                    network: network.to_owned(),
                    names: Vec::new(),
                }),
        };
        known.note(name, reason, client, Instant::now());
    }

    /// All of them: by service, and the latest first.
    pub fn read(&self) -> Vec<RefusedName> {
        let mut lines = Vec::new();
        for (service, ServiceNames { network, names }) in &*self.all() {
            let mut latest: Vec<&KeptName> = names.iter().collect();
            latest.sort_by_key(|kept| Reverse(kept.last));
            lines.extend(latest.into_iter().map(|kept| RefusedName {
                service: service.clone(),
                network: network.clone(),
                name: kept.name.clone(),
                reason: kept.reason.to_owned(),
                count: kept.count,
                client: kept.client.to_string(),
                age_seconds: kept.last.elapsed().as_secs(),
            }));
        }
        lines
    }
}

impl ServiceNames {
    fn note(&mut self, name: Option<&str>, reason: &'static str, client: Ipv4Addr, now: Instant) {
        let mut known = self.names.iter_mut();
        let known = known.find(|known| known.name.as_deref() == name && known.reason == reason);
        if let Some(known) = known {
            known.count += 1;
            (known.client, known.last) = (client, now);
            return;
        }
        if self.names.len() >= MAX_NAMES
            && let Some(place) = self.least()
        {
            self.names.swap_remove(place);
        }
        self.names.push(KeptName {
            name: name.map(str::to_owned),
            reason,
            count: 1,
            client,
            last: now,
        });
    }

    /// The place of the one that goes for another: the least recent of the client that has the most.
    fn least(&self) -> Option<usize> {
        let mut of_client = HashMap::<Ipv4Addr, usize>::new();
        for kept in &self.names {
            *of_client.entry(kept.client).or_default() += 1;
        }
        let places = self.names.iter().enumerate();
        let least =
            places.max_by_key(|(_, kept)| (of_client.get(&kept.client), Reverse(kept.last)));
        least.map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: [&str; 2] = ["tenant-a", "shared"];

    fn names(refused: &RefusedNames, service: &str) -> Vec<String> {
        let lines = refused.read().into_iter();
        let ours = lines.filter(|line| line.service == service);
        ours.map(|line| line.name.unwrap_or_else(|| "-".to_owned()))
            .collect()
    }

    #[test]
    fn a_name_is_counted_with_its_latest_client() {
        let refused = RefusedNames::default();
        let client = |last| Ipv4Addr::new(10, 0, 0, last);
        refused.note(SERVICE, Some("d.lab"), "no_match", client(1));
        refused.note(SERVICE, None, "no_name", client(2));
        refused.note(SERVICE, Some("d.lab"), "no_match", client(3));
        refused.note(SERVICE, Some("d.lab"), "deny_tenant_name", client(4));
        let found: Vec<_> = refused.read();
        let found: Vec<_> = found
            .iter()
            .map(|line| {
                (
                    line.name.as_deref(),
                    line.reason.as_str(),
                    line.count,
                    line.client.as_str(),
                )
            })
            .collect();
        let wanted = [
            (Some("d.lab"), "deny_tenant_name", 1, "10.0.0.4"),
            (Some("d.lab"), "no_match", 2, "10.0.0.3"),
            (None, "no_name", 1, "10.0.0.2"),
        ];
        assert_eq!(found, wanted);
        assert!(refused.read().iter().all(|line| line.network == "tenant-a"));
    }

    /// Neither of another service nor of another client.
    #[test]
    fn a_flood_of_names_takes_away_its_own_alone() {
        let refused = RefusedNames::default();
        let [quiet, loud] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        refused.note(["tenant-b", "other"], Some("b.lab"), "no_match", quiet);
        refused.note(SERVICE, Some("a.lab"), "no_match", quiet);
        for number in 0..10 * MAX_NAMES {
            refused.note(SERVICE, Some(&format!("{number}.lab")), "no_match", loud);
        }
        let kept = names(&refused, "shared");
        assert_eq!(kept.len(), MAX_NAMES);
        assert!(kept.contains(&"a.lab".to_owned()), "{kept:?}");
        // The latest of the flood are there.
        let last = format!("{}.lab", 10 * MAX_NAMES - 1);
        let first = format!("{}.lab", 10 * MAX_NAMES - MAX_NAMES + 1);
        assert!(kept.contains(&last) && kept.contains(&first), "{kept:?}");
        assert_eq!(names(&refused, "other"), ["b.lab"]);
    }

    #[test]
    fn whatever_was_sent_is_shown_without_a_byte_that_does_something() {
        let text = |sent: &[u8]| shown(sent.iter().copied());
        assert_eq!(text(b"A-b_1.lab"), "A-b_1.lab");
        assert_eq!(text(b"[fd00::1]:443"), "[fd00::1]:443");
        assert_eq!(
            text(b"<script>\n\x1b[2J\"\\\0\xff"),
            r"\x3cscript\x3e\x0a\x1b[2J\x22\x5c\x00\xff"
        );
        assert_eq!(text(&[b'x'; 999]).len(), MAX_NAME_BYTES);
    }
}
