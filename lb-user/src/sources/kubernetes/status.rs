//! The status of a Service of type LoadBalancer: what it says, and whether it is written.
//!
//! It is written when it is empty, or when `lb` alone has written what is there; what something else has written stays.

use std::{collections::BTreeSet, net::IpAddr};

use kube::core::{
    DynamicObject,
    params::{Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// As which writer the API knows `lb` (`metadata.managedFields`).
const WRITER: &str = "lb";

/// A Service, as far as it says whether its status is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceStatus {
    /// Of the object (`resourceVersion`): a write of another one is refused by the API.
    version: String,
    is_load_balancer: bool,
    /// Which implementation it is for, if it says so.
    class: Option<String>,
    /// The addresses or host names of its load balancer.
    ingress: Vec<String>,
    /// What has written those.
    writers: BTreeSet<String>,
}

/// What is to become of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StatusVerdict {
    /// It has what is wanted.
    Stays,
    /// It is to be written.
    IsWritten,
    /// It is left as it is, for this reason.
    IsLeft(String),
}

/// Of `v1/Service`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    spec: WrittenSpec,
    status: WrittenStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenSpec {
    r#type: String,
    load_balancer_class: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenStatus {
    load_balancer: WrittenIngress,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenIngress {
    ingress: Vec<WrittenAddress>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenAddress {
    ip: String,
    hostname: String,
}

impl ServiceStatus {
    /// What a Service says here.
    ///
    /// # Errors
    ///
    /// When the object is none.
    pub(super) fn read(object: &DynamicObject) -> serde_json::Result<Self> {
        let Written { spec, status } = Written::deserialize(&object.data)?;
        let ingress = status.load_balancer.ingress.into_iter();
        let ingress = ingress.map(|one| match one.ip.is_empty() {
            true => one.hostname,
            false => one.ip,
        });
        let managed = object.metadata.managed_fields.iter().flatten();
        let writers = managed.filter(|one| {
            let fields = one.fields_v1.as_ref();
            fields.is_some_and(|fields| has_ingress(&fields.0))
        });
        Ok(Self {
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            is_load_balancer: spec.r#type == "LoadBalancer",
            class: spec.load_balancer_class,
            ingress: ingress.collect(),
            writers: writers
                .map(|one| one.manager.clone().unwrap_or_default())
                .collect(),
        })
    }

    /// Whether it is to be written for these VIPs; `has_written`: it was written in this process before.
    pub(super) fn judge(&self, vips: &[IpAddr], has_written: bool) -> StatusVerdict {
        let wanted: Vec<String> = vips.iter().map(ToString::to_string).collect();
        let is_own = self.writers.iter().all(|writer| writer == WRITER) && !self.writers.is_empty();
        let left = |words: String| StatusVerdict::IsLeft(words);
        if !self.is_load_balancer {
            return left("it is not of type LoadBalancer".to_owned());
        }
        if let Some(class) = &self.class {
            return left(format!("its loadBalancerClass is {class}, and lb is none"));
        }
        if self.ingress == wanted {
            return StatusVerdict::Stays;
        }
        if self.ingress.is_empty() {
            return StatusVerdict::IsWritten;
        }
        let ingress = self.ingress.join(", ");
        match (is_own, has_written) {
            (true, false) => StatusVerdict::IsWritten,
            (true, true) => left(format!("its status has {ingress}, written by another lb")),
            (false, _) => {
                let writers: Vec<&str> = self.writers.iter().map(String::as_str).collect();
                let writers = match writers.is_empty() {
                    true => "another writer".to_owned(),
                    false => writers.join(" and "),
                };
                left(format!("its status has {ingress}, written by {writers}"))
            }
        }
    }

    /// The write of these VIPs, which fails where the Service is not this one any more.
    pub(super) fn patch(&self, vips: &[IpAddr]) -> (PatchParams, Patch<Value>) {
        let ingress: Vec<Value> = vips.iter().map(|vip| json!({ "ip": vip })).collect();
        let params = PatchParams {
            field_manager: Some(WRITER.to_owned()),
            ..PatchParams::default()
        };
        let patch = json!({
            "metadata": { "resourceVersion": self.version },
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        (params, Patch::Merge(patch))
    }
}

/// Whether fields that a writer owns have the addresses of a load balancer
/// (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>).
fn has_ingress(fields: &Value) -> bool {
    let balancer = &fields["f:status"]["f:loadBalancer"];
    balancer.get("f:ingress").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIP: &str = "192.168.203.110";

    fn read(spec: &Value, status: &Value, managed: &Value) -> ServiceStatus {
        let object = json!({
            "metadata": { "name": "kas", "namespace": "a", "resourceVersion": "7", "managedFields": managed },
            "spec": spec,
            "status": { "loadBalancer": status },
        });
        ServiceStatus::read(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn by(writers: &[&str]) -> Value {
        let of = |writer: &&str| {
            json!({
                "manager": writer,
                "operation": "Update",
                "fieldsV1": { "f:status": { "f:loadBalancer": { "f:ingress": {} } } },
            })
        };
        // The client that has made it owns its specification alone.
        let spec = json!({ "manager": "kubectl", "fieldsV1": { "f:spec": { "f:type": {} } } });
        writers.iter().map(of).chain([spec]).collect()
    }

    fn judge(spec: &Value, status: &Value, managed: &Value) -> StatusVerdict {
        let vips = [VIP.parse().unwrap()];
        read(spec, status, managed).judge(&vips, false)
    }

    fn left(words: &str) -> StatusVerdict {
        StatusVerdict::IsLeft(words.to_owned())
    }

    #[test]
    fn an_empty_status_and_an_own_one_are_written() {
        let balancer = json!({ "type": "LoadBalancer" });
        let (none, other) = (json!({}), json!({ "ingress": [{ "ip": "10.0.0.9" }] }));
        assert_eq!(judge(&balancer, &none, &by(&[])), StatusVerdict::IsWritten);
        assert_eq!(
            judge(&balancer, &other, &by(&["lb"])),
            StatusVerdict::IsWritten
        );
        // With what later versions add to it, by any writer.
        let has = json!({ "ingress": [{ "ip": VIP, "ipMode": "VIP", "ports": [] }] });
        for writers in [&["lb"][..], &["cloud"], &[]] {
            assert_eq!(judge(&balancer, &has, &by(writers)), StatusVerdict::Stays);
        }
    }

    #[test]
    fn what_another_writer_has_written_is_left() {
        let balancer = json!({ "type": "LoadBalancer" });
        let other = json!({ "ingress": [{ "ip": VIP }, { "hostname": "a.example.com" }] });
        let has = format!("its status has {VIP}, a.example.com, written by");
        for (managed, words) in [
            (by(&["cloud"]), "cloud"),
            (by(&["lb", "cloud"]), "cloud and lb"),
            (by(&[]), "another writer"),
            (Value::Null, "another writer"),
        ] {
            let wanted = left(&format!("{has} {words}"));
            assert_eq!(judge(&balancer, &other, &managed), wanted);
        }
        // Two that have different files do not take turns.
        let vips = [VIP.parse().unwrap()];
        let again = read(&balancer, &other, &by(&["lb"])).judge(&vips, true);
        assert_eq!(again, left(&format!("{has} another lb")));
    }

    #[test]
    fn a_service_of_another_type_or_class_is_left() {
        let none = json!({});
        for kind in ["NodePort", "ClusterIP", ""] {
            let verdict = judge(&json!({ "type": kind }), &none, &by(&[]));
            assert_eq!(verdict, left("it is not of type LoadBalancer"));
        }
        let spec = json!({ "type": "LoadBalancer", "loadBalancerClass": "example.com/vip" });
        let words = "its loadBalancerClass is example.com/vip, and lb is none";
        assert_eq!(judge(&spec, &none, &by(&[])), left(words));
    }

    #[test]
    fn a_write_is_of_this_version_alone() {
        let status = read(&json!({ "type": "LoadBalancer" }), &json!({}), &Value::Null);
        let (params, patch) = status.patch(&[VIP.parse().unwrap(), "fd00::1".parse().unwrap()]);
        assert_eq!(params.field_manager.as_deref(), Some("lb"));
        let Patch::Merge(patch) = patch else {
            panic!("a merge");
        };
        let wanted = json!({
            "metadata": { "resourceVersion": "7" },
            "status": { "loadBalancer": { "ingress": [{ "ip": VIP }, { "ip": "fd00::1" }] } },
        });
        assert_eq!(patch, wanted);
    }
}
