//! What became of the clients of each service.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::refused_names::RefusedNames;
use crate::api::ServiceStats;

/// Names that are counted apart, in all; the other names that clients request are counted as one.
const MAX_NAMES: usize = 100;
/// What stands for the names above that.
const OTHERS: &str = "(others)";

/// Counters of all services, by their names; shared by all threads.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    services: Arc<Mutex<BTreeMap<String, ServiceStats>>>,
    /// The names that were refused.
    pub names: RefusedNames,
}

impl Counts {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, ServiceStats>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the counters of a service.
    pub fn of(&self, service: &str, change: impl FnOnce(&mut ServiceStats)) {
        let mut all = self.all();
        match all.get_mut(service) {
            Some(counted) => change(counted),
            None => change(all.entry(service.to_owned()).or_default()),
        }
    }

    /// Those of all services.
    pub fn read(&self) -> BTreeMap<String, ServiceStats> {
        self.all().clone()
    }
}

impl ServiceStats {
    /// Counts a client that is refused for a reason that is called `label`.
    pub fn refuse(&mut self, label: &str) {
        add(&mut self.refused, label);
    }

    /// Counts a request that is refused for a reason that is called `label`.
    pub fn refuse_request(&mut self, label: &str) {
        add(&mut self.requests.refused, label);
    }

    /// Counts a connection that is copied for a reason that is called `label`.
    pub fn copy(&mut self, label: &str) {
        add(&mut self.copied, label);
    }

    /// Counts a client whose requested name goes nowhere for it. Clients that send names of their own cannot
    /// take all memory with them.
    pub fn unrouted(&mut self, name: &str) {
        let names = &mut self.unrouted_names;
        let is_known = names.len() < MAX_NAMES || names.contains_key(name);
        add(names, if is_known { name } else { OTHERS });
    }
}

fn add(counters: &mut BTreeMap<String, u64>, key: &str) {
    match counters.get_mut(key) {
        Some(counter) => *counter += 1,
        None => drop(counters.insert(key.to_owned(), 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_names_are_told_apart_as_there_is_room_for() {
        let counts = Counts::default();
        for round in 0..2 {
            for name in 0..MAX_NAMES + 7 {
                counts.of("s", |counted| counted.unrouted(&format!("n{name}")));
            }
            let names = &counts.read()["s"].unrouted_names;
            assert_eq!(names.len(), MAX_NAMES + 1);
            assert_eq!(names[OTHERS], 7 * (round + 1));
            assert_eq!(names["n99"], round + 1);
        }
    }

    #[test]
    fn refusals_are_counted_by_their_reasons() {
        let counts = Counts::default();
        for label in ["timeout", "not_tls", "timeout"] {
            counts.of("s", |counted| counted.refuse(label));
        }
        assert!(counts.read()["s"].requests.is_empty());
        counts.of("s", |counted| counted.refuse_request("no_match"));
        let requests = counts.read()["s"].requests.refused.clone();
        assert_eq!(requests, [("no_match".to_owned(), 1)].into());
        let refused = counts.read()["s"].refused.clone();
        let expected = [("not_tls".to_owned(), 1), ("timeout".to_owned(), 2)];
        assert_eq!(refused, expected.into());
    }
}
