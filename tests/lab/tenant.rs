//! What one tenant of the lab gets: its own control plane and its own workers, and no other tenant's.

use std::collections::BTreeSet;

use lb_tests::{
    servers::peers::{DNS_NAME, Peers},
    topology::{API, APPS_HTTP, APPS_HTTPS, DNS, Host, TENANT_SNAT, Tenant},
    traffic::programs,
};

use crate::{
    proof::REQUESTS,
    table::{Count, Seen, join},
};

/// What one tenant gets.
pub(crate) struct OneTenant<'l> {
    pub(crate) tenant: &'l Tenant,
    pub(crate) peers: &'l Peers<'l>,
}

impl OneTenant<'_> {
    pub(crate) fn api(&self) -> Seen {
        let mut answers = Count::default();
        for client in self.hosts() {
            for _ in 0..REQUESTS {
                answers.add(programs::curl(client, self.peers.certificate(), API)?.node);
            }
        }
        self.judge(&answers)
    }

    pub(crate) fn dns(&self) -> Seen {
        let mut answers = Count::default();
        for client in self.hosts() {
            for _ in 0..REQUESTS {
                let names = programs::dig(client, DNS, DNS_NAME, "TXT")?;
                names.into_iter().for_each(|name| answers.add(name));
            }
        }
        self.judge(&answers)
    }

    pub(crate) fn apps(&self) -> Seen {
        let mut answers = Count::default();
        for host in self.hosts() {
            for _ in 0..REQUESTS {
                let certificate = self.peers.certificate();
                answers.add(programs::curl(host, certificate, APPS_HTTPS)?.node);
                answers.add(programs::curl_plain(host, APPS_HTTP)?.node);
            }
        }
        self.judge(&answers)
    }

    pub(crate) fn sources_at_workers(&self) -> Seen {
        let mut sources = BTreeSet::new();
        for worker in &self.tenant.workers {
            sources.extend(self.peers.on(worker)?.http_sources()?);
        }
        Ok((join(&sources), sources == BTreeSet::from([TENANT_SNAT])))
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.tenant.clients.iter().chain(&self.tenant.workers)
    }

    /// Several answered, and no host of another tenant.
    fn judge(&self, answers: &Count) -> Seen {
        let own = format!("{}/", self.tenant.name);
        let is_own = answers.words().all(|name| name.starts_with(&own));
        let seen = answers.to_string().replace(&own, "");
        Ok((seen, is_own && answers.kinds() > 1))
    }
}
