//! What there is to see of a cluster that is followed: what is known, and how old that may be.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use super::{
    kinds::{EndpointSlices, HostedClusterObjects, Kind, Nodes, Routes, Services},
    known::KnownObjects,
};
use crate::config::ObjectName;

/// The kinds of objects that are followed of each cluster.
const KINDS: [&str; 3] = [Services::NAME, Nodes::NAME, EndpointSlices::NAME];
/// Those that hosted clusters need beside them.
const HOSTED_KINDS: [&str; 2] = [HostedClusterObjects::NAME, Routes::NAME];
/// The most objects of a kind that are taken of a cluster: twice what Kubernetes is made for (5,000 nodes, 10,000 services),
/// so that one cluster cannot take the memory of the others.
pub(super) const MAX_OBJECTS: usize = 20_000;

/// What is known of a cluster now.
#[derive(Debug, Default)]
pub(super) struct ClusterView {
    known: KnownObjects,
    /// Whether an earlier process knew it.
    is_kept: bool,
    /// The kinds of which there has been a whole list.
    listed: BTreeSet<&'static str>,
    /// What does not answer.
    errors: BTreeMap<&'static str, Trouble>,
    /// What has become of the status of each Service that is to have VIPs there.
    statuses: BTreeMap<ObjectName, StatusOutcome>,
}

/// What has become of the status of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatusOutcome {
    /// It had what is wanted.
    Has,
    /// It would be written, if anything might be.
    Planned(Vec<IpAddr>),
    /// It was written.
    Written(Vec<IpAddr>),
    /// It is left as it is, for this reason.
    Left(String),
    /// It could not be written, for this reason: that is tried again.
    Failed(String),
}

/// Why something does not answer, and since when.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) words: String,
    pub(super) since: Instant,
    /// When it was noted last.
    last: Instant,
}

impl ClusterView {
    /// Of a cluster that an earlier process has followed.
    pub(super) fn kept(known: KnownObjects) -> Self {
        Self {
            known,
            is_kept: true,
            ..Self::default()
        }
    }

    /// What is known, once that is all of it.
    pub(super) fn known(&self) -> Option<&KnownObjects> {
        self.has_all(&KINDS).then_some(&self.known)
    }

    /// The same with all hosted clusters.
    pub(super) fn known_hosted(&self) -> Option<&KnownObjects> {
        let known = self.known()?;
        self.has_all(&HOSTED_KINDS).then_some(known)
    }

    fn has_all(&self, kinds: &[&str]) -> bool {
        self.is_kept || kinds.iter().all(|kind| self.listed.contains(kind))
    }

    /// Since when not all of it answers, and the reason that was noted last.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let all = self.errors.values();
        let since = all.clone().map(|trouble| trouble.since).min()?;
        let latest = all.max_by_key(|trouble| trouble.last)?.clone();
        Some(Trouble { since, ..latest })
    }

    /// A list is whole: it takes the place of what was known. Of an object that could not be read that stays. Whether
    /// anything differs.
    pub(super) fn replace<K: Kind>(&mut self, listed: BTreeMap<K::Key, Option<K::Value>>) -> bool {
        let is_first = self.listed.insert(K::NAME);
        self.note_good(K::NAME);
        let all = K::all(&mut self.known);
        let mut now = BTreeMap::new();
        for (key, value) in listed {
            if let Some(value) = value.or_else(|| all.get(&key).cloned()) {
                now.insert(key, value);
            }
        }
        let differs = *all != now;
        *all = now;
        differs || is_first
    }

    /// The API does not have this kind. What was known of it stays.
    pub(super) fn lacks<K: Kind>(&mut self) -> bool {
        self.note_good(K::NAME);
        self.listed.insert(K::NAME)
    }

    /// Whether anything differs. One too many is an error, and not taken.
    pub(super) fn put<K: Kind>(&mut self, key: K::Key, value: K::Value) -> bool {
        let all = K::all(&mut self.known);
        if all.len() >= MAX_OBJECTS && !all.contains_key(&key) {
            return self.note_error(K::NAME, too_many(K::NAME));
        }
        self.note_good(K::NAME);
        let all = K::all(&mut self.known);
        let differs = all.get(&key) != Some(&value);
        all.insert(key, value);
        differs
    }

    /// Whether anything differs.
    pub(super) fn remove<K: Kind>(&mut self, key: &K::Key) -> bool {
        self.note_good(K::NAME);
        K::all(&mut self.known).remove(key).is_some()
    }

    /// What has become of a status. Whether anything differs: one that was written has what is wanted.
    pub(super) fn note_status(&mut self, service: ObjectName, outcome: StatusOutcome) -> bool {
        let before = self.statuses.get(&service);
        let was_written = matches!(before, Some(StatusOutcome::Written(_)));
        if before == Some(&outcome) || (was_written && outcome == StatusOutcome::Has) {
            return false;
        }
        self.statuses.insert(service, outcome);
        true
    }

    /// What has become of the status of each Service that is to have VIPs there, as far as it was seen.
    pub(super) const fn statuses(&self) -> &BTreeMap<ObjectName, StatusOutcome> {
        &self.statuses
    }

    /// What was asked for has been answered. Nothing of what is known differs.
    pub(super) fn note_good(&mut self, what: &'static str) -> bool {
        self.errors.remove(what);
        self.errors.remove(API);
        false
    }

    /// It was not. Nothing of what is known differs.
    pub(super) fn note_error(&mut self, what: &'static str, words: String) -> bool {
        let last = Instant::now();
        let since = self.errors.get(what).map_or(last, |trouble| trouble.since);
        self.errors.insert(what, Trouble { words, since, last });
        false
    }
}

/// Why what an API has is not taken.
pub(super) fn too_many(kind: &str) -> String {
    format!("it has more than {MAX_OBJECTS} {kind}: what was known of them stays")
}

/// What has no kind: the API as a whole.
pub(super) const API: &str = "API";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::kubernetes::known::KnownNode;

    fn node(takes: bool) -> KnownNode {
        KnownNode {
            addresses: Vec::new(),
            takes,
        }
    }

    fn nodes(view: &ClusterView) -> Vec<&str> {
        let known = view.known().unwrap();
        known.nodes.keys().map(String::as_str).collect()
    }

    fn list(names: &[(&str, bool)]) -> BTreeMap<String, Option<KnownNode>> {
        let nodes = names.iter();
        nodes
            .map(|(name, is_read)| ((*name).to_owned(), is_read.then(|| node(true))))
            .collect()
    }

    #[test]
    fn a_cluster_is_known_when_all_kinds_are_listed() {
        let mut view = ClusterView::default();
        assert!(view.replace::<Nodes>(list(&[("n1", true)])));
        assert!(view.replace::<Services>(BTreeMap::new()));
        assert!(view.known().is_none());
        assert!(view.replace::<EndpointSlices>(BTreeMap::new()));
        assert_eq!(nodes(&view), ["n1"]);
        // Hosted clusters are known on their own: a hub may have none, or not show them.
        assert!(view.replace::<HostedClusterObjects>(BTreeMap::new()));
        assert!(view.known_hosted().is_none());
        assert!(view.lacks::<Routes>());
        assert!(view.known_hosted().is_some() && !view.lacks::<Routes>());
        let kept = ClusterView::kept(KnownObjects::default());
        assert!(kept.known().is_some() && kept.known_hosted().is_some());
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut view = ClusterView::kept(KnownObjects::default());
        assert!(view.replace::<Nodes>(list(&[("n1", true), ("n2", true)])));
        assert!(!view.replace::<Nodes>(list(&[("n1", true), ("n2", true)])));
        assert!(!view.put::<Nodes>("n1".to_owned(), node(true)));
        assert!(view.put::<Nodes>("n1".to_owned(), node(false)));
        assert!(view.remove::<Nodes>(&"n2".to_owned()));
        assert!(!view.remove::<Nodes>(&"n2".to_owned()));
        assert_eq!(nodes(&view), ["n1"]);
    }

    /// Of n1 the object cannot be read: what was known stays. Nothing was known of n3.
    #[test]
    fn an_object_that_cannot_be_read_is_as_it_was() {
        let mut view = ClusterView::kept(KnownObjects::default());
        view.replace::<Nodes>(list(&[("n1", true), ("n2", true)]));
        assert!(view.replace::<Nodes>(list(&[("n1", false), ("n3", false)])));
        assert_eq!(nodes(&view), ["n1"]);
    }

    #[test]
    fn an_error_lasts_until_an_answer_and_changes_nothing_known() {
        let mut view = ClusterView::kept(KnownObjects::default());
        assert!(!view.note_error(Nodes::NAME, "refused".to_owned()));
        let since = view.trouble().unwrap().since;
        view.note_error(Nodes::NAME, "forbidden".to_owned());
        let trouble = view.trouble().unwrap();
        assert_eq!(
            (trouble.words.as_str(), trouble.since),
            ("forbidden", since)
        );
        view.note_error(API, "reset".to_owned());
        let trouble = view.trouble().unwrap();
        assert_eq!((trouble.words.as_str(), trouble.since), ("reset", since));
        view.note_good(Services::NAME);
        assert!(view.trouble().is_some());
        view.put::<Nodes>("n1".to_owned(), node(true));
        assert!(view.trouble().is_none());
    }
}
