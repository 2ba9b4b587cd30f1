//! Which objects of the peer are which of ours. Pure.
//!
//! Each box has numbers of its own for networks, services, backends and SNAT addresses; the boxes of a group know them by their names
//! in the registry, which have all that a flow relies on: a backend's its address and network, a SNAT address's its ports.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::model::registry::{Ids, Kind};

/// The kinds of objects that flows refer to.
pub const KINDS: [Kind; 4] = [Kind::Network, Kind::Service, Kind::Backend, Kind::Snat];

/// The number of an object on the box that says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectNumber {
    /// The place of its kind in [`KINDS`].
    pub kind: u8,
    /// Its id in the registry of that box.
    pub id: u32,
    /// Its name there.
    pub name: String,
}

/// What this box tells its peers: all objects that flows may refer to.
pub fn objects(ids: &Ids) -> impl Iterator<Item = ObjectNumber> {
    (0..).zip(KINDS).flat_map(|(kind, of)| {
        ids.of(of).map(move |(name, id)| ObjectNumber {
            kind,
            id,
            name: name.to_owned(),
        })
    })
}

/// The ids of this box, by those of the peer.
#[derive(Debug, Default)]
pub struct Dictionary {
    known: [HashMap<u32, u32>; KINDS.len()],
    /// Names of the peer that this box does not have, and how many flows were refused for each.
    unknown: BTreeMap<(u8, u32), Unknown>,
}

/// An object that this box does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its name at the peer.
    pub name: String,
    /// Flows that refer to it, and have no replica here.
    pub flows: u64,
}

impl Dictionary {
    /// Takes an object of the peer.
    pub fn add(&mut self, named: ObjectNumber, ids: &Ids) {
        let place = usize::from(named.kind);
        let (Some(kind), Some(known)) = (KINDS.get(place), self.known.get_mut(place)) else {
            return;
        };
        match ids.get(*kind, &named.name) {
            Some(id) => {
                known.insert(named.id, id);
                self.unknown.remove(&(named.kind, named.id));
            }
            None => {
                known.remove(&named.id);
                let unknown = Unknown {
                    name: named.name,
                    flows: 0,
                };
                self.unknown.insert((named.kind, named.id), unknown);
            }
        }
    }

    /// The id here of what has this id at the peer. Where there is none, a flow is counted as refused.
    pub fn id(&mut self, kind: Kind, id: u32) -> Option<u32> {
        let place = KINDS.iter().position(|of| *of == kind)?;
        let found = self.known.get(place)?.get(&id).copied();
        if found.is_none()
            && let Ok(kind) = u8::try_from(place)
            && let Some(unknown) = self.unknown.get_mut(&(kind, id))
        {
            unknown.flows += 1;
        }
        found
    }

    /// The ids here of what the peer has as well.
    pub fn known(&self, kind: Kind) -> HashSet<u32> {
        let place = KINDS.iter().position(|of| *of == kind);
        let known = place.and_then(|place| self.known.get(place));
        known
            .into_iter()
            .flat_map(HashMap::values)
            .copied()
            .collect()
    }

    /// What this box has and the peer does not, by kind and name.
    pub fn only_here<'i>(&self, ids: &'i Ids) -> Vec<(Kind, &'i str)> {
        let mut here = Vec::new();
        for kind in KINDS {
            let known = self.known(kind);
            here.extend(
                ids.of(kind)
                    .filter(|(_, id)| !known.contains(id))
                    .map(|(name, _)| (kind, name)),
            );
        }
        here
    }

    /// Whether a flow was refused for an object that this box has by now.
    pub fn has_refused(&self, ids: &Ids) -> bool {
        let mut refused = self.unknown().filter(|(_, unknown)| unknown.flows > 0);
        refused.any(|(kind, unknown)| ids.get(kind, &unknown.name).is_some())
    }

    /// What this box does not have.
    pub fn unknown(&self) -> impl Iterator<Item = (Kind, &Unknown)> {
        let kind = |kind: u8| KINDS.get(usize::from(kind)).copied();
        self.unknown
            .iter()
            .filter_map(move |((of, _), unknown)| Some((kind(*of)?, unknown)))
    }
}

#[cfg(test)]
pub(in crate::ha) mod tests {
    use super::*;

    /// As of a box with these objects.
    pub(in crate::ha) fn ids(names: &[(Kind, &str)]) -> Ids {
        let mut ids = Ids::default();
        for (kind, name) in names {
            ids.assign(*kind, name, 100).unwrap();
        }
        ids
    }

    #[test]
    fn objects_are_the_same_by_their_names() {
        let theirs = ids(&[
            (Kind::Network, "tenant-b"),
            (Kind::Network, "mgmt"),
            (Kind::Service, "api"),
            (Kind::Pool, "kas"),
        ]);
        let mut ours = ids(&[(Kind::Network, "mgmt"), (Kind::Service, "other")]);
        let mut dictionary = Dictionary::default();
        let said: Vec<ObjectNumber> = objects(&theirs).collect();
        assert_eq!(said.len(), 3, "no pools");
        for named in &said {
            dictionary.add(named.clone(), &ours);
        }
        let of = |kind, name| theirs.get(kind, name).unwrap();
        assert_eq!(
            dictionary.id(Kind::Network, of(Kind::Network, "mgmt")),
            ours.get(Kind::Network, "mgmt")
        );
        assert_eq!(dictionary.id(Kind::Service, of(Kind::Service, "api")), None);
        assert_eq!(dictionary.id(Kind::Service, 99), None);
        assert!(!dictionary.has_refused(&ours));
        let unknown: Vec<_> = dictionary.unknown().collect();
        assert_eq!(unknown.len(), 2);
        assert!(unknown.contains(&(
            Kind::Service,
            &Unknown {
                name: "api".to_owned(),
                flows: 1
            }
        )));

        // A reload later.
        ours.assign(Kind::Service, "api", 100).unwrap();
        assert!(dictionary.has_refused(&ours));
        for named in said {
            dictionary.add(named, &ours);
        }
        assert_eq!(
            dictionary.id(Kind::Service, of(Kind::Service, "api")),
            ours.get(Kind::Service, "api")
        );
        assert_eq!(dictionary.unknown().count(), 1);
    }

    #[test]
    fn what_the_peer_does_not_have_is_named() {
        let ours = ids(&[(Kind::Network, "mgmt"), (Kind::Service, "api")]);
        let theirs = ids(&[(Kind::Network, "tenant"), (Kind::Network, "mgmt")]);
        let mut dictionary = Dictionary::default();
        for named in objects(&theirs) {
            dictionary.add(named, &ours);
        }
        assert_eq!(dictionary.only_here(&ours), [(Kind::Service, "api")]);
        assert_eq!(dictionary.known(Kind::Network).len(), 1);
    }
}
