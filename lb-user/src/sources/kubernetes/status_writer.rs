//! Writes VIPs into the status of the Services that are to have them, whatever backends those have: before that a hosted
//! cluster does not begin.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use anyhow::Error;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject},
};
use tokio::{sync::watch, time};

use super::{
    follow::{MAX_RETRY_INTERVAL, NOT_FOUND, Sink, pauses, words},
    kinds::{Kind as _, Services},
    objects,
    status::{ServiceStatus, StatusVerdict},
    view::StatusOutcome,
};
use crate::config::{LoadBalancer, ObjectName};

/// The Service has changed since it was seen: the change is on its way.
const CONFLICT: u16 = 409;

/// The VIPs that each Service is to have.
pub(super) type Wanted = BTreeMap<ObjectName, Vec<IpAddr>>;

/// The Services that are to have VIPs, as they were seen last.
pub(super) type Seen = BTreeMap<ObjectName, ServiceStatus>;

/// By Service, in the order of the file.
pub(super) fn wanted(load_balancers: &[LoadBalancer]) -> Wanted {
    let mut wanted = Wanted::new();
    for LoadBalancer { service, vip } in load_balancers {
        wanted.entry(service.clone()).or_default().push(*vip);
    }
    wanted
}

/// Notes a Service that is to have VIPs.
pub(super) fn note(object: &DynamicObject, wanted: &Wanted, seen: &watch::Sender<Seen>) {
    let name = objects::name(object);
    // One that cannot be read is logged where backends are read of it.
    let status = ServiceStatus::read(object).ok();
    if let Some(status) = status.filter(|_| wanted.contains_key(&name)) {
        seen.send_if_modified(|seen| seen.insert(name, status.clone()) != Some(status));
    }
}

/// Writes what is to be written of the Services that are seen, for ever.
pub(super) async fn write(
    client: &Client,
    wanted: &Wanted,
    mut seen: watch::Receiver<Seen>,
    sink: &Sink,
) {
    let mut writer = StatusWriter {
        client,
        resource: Services::RESOURCE.resource(),
        wanted,
        may_write: false,
        judged: Seen::new(),
        written: BTreeSet::new(),
    };
    let mut may_write = sink.may_write.clone();
    let mut pauses = pauses();
    loop {
        writer.may_write = *may_write.borrow_and_update();
        let services = seen.borrow_and_update().clone();
        if !writer.write_all(&services, sink).await {
            time::sleep(pauses.next().unwrap_or(MAX_RETRY_INTERVAL)).await;
            continue;
        }
        pauses = self::pauses();
        let is_over = tokio::select! {
            changed = seen.changed() => changed.is_err(),
            changed = may_write.changed() => changed.is_err(),
        };
        // Both last as long as the cluster is followed.
        if is_over {
            return;
        }
    }
}

struct StatusWriter<'c> {
    client: &'c Client,
    resource: ApiResource,
    wanted: &'c Wanted,
    may_write: bool,
    /// What nothing is to be done about.
    judged: Seen,
    /// What was written.
    written: BTreeSet<ObjectName>,
}

impl StatusWriter<'_> {
    /// Whether none of the writes has failed.
    async fn write_all(&mut self, services: &Seen, sink: &Sink) -> bool {
        let mut is_done = true;
        for (name, status) in services {
            let Some(vips) = self.wanted.get(name) else {
                continue;
            };
            if self.judged.get(name) == Some(status) {
                continue;
            }
            let outcome = self.take(name, status, vips).await;
            match outcome {
                Some(StatusOutcome::Failed(_)) => is_done = false,
                Some(StatusOutcome::Planned(_)) => {}
                _ => {
                    self.judged.insert(name.clone(), status.clone());
                }
            }
            if let Some(outcome) = outcome {
                sink.change(|view| view.note_status(name.clone(), outcome));
            }
        }
        is_done
    }

    /// None of a Service that is not this one any more.
    async fn take(
        &mut self,
        name: &ObjectName,
        status: &ServiceStatus,
        vips: &[IpAddr],
    ) -> Option<StatusOutcome> {
        match status.judge(vips, self.written.contains(name)) {
            StatusVerdict::Stays => return Some(StatusOutcome::Has),
            StatusVerdict::IsLeft(why) => return Some(StatusOutcome::Left(why)),
            StatusVerdict::IsWritten if !self.may_write => {
                return Some(StatusOutcome::Planned(vips.to_vec()));
            }
            StatusVerdict::IsWritten => {}
        }
        let (client, namespace) = (self.client.clone(), &name.namespace);
        let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &self.resource);
        let (params, patch) = status.patch(vips);
        match api.patch_status(&name.name, &params, &patch).await {
            Ok(_) => {
                self.written.insert(name.clone());
                Some(StatusOutcome::Written(vips.to_vec()))
            }
            Err(kube::Error::Api(error)) if matches!(error.code, CONFLICT | NOT_FOUND) => None,
            Err(error) => Some(StatusOutcome::Failed(words(&Error::new(error)))),
        }
    }
}
