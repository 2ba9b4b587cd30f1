//! What is known of clusters, on the disk: a start without their APIs has backends, also after a reboot.

use std::{collections::BTreeMap, fs, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{
    KnownClusters,
    hypershift::FoundHosted,
    known::{FoundNode, KnownObjects},
};
use crate::{
    config::{KubernetesCluster, ServicePort},
    system::files::change_beside,
};

/// The file, in the state folder.
const FILE: &str = "kubernetes.json";

/// By cluster what was known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptClusters(BTreeMap<String, KnownObjects>);

impl FromIterator<(String, KnownObjects)> for KeptClusters {
    fn from_iter<I: IntoIterator<Item = (String, KnownObjects)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

impl KnownClusters for KeptClusters {
    fn nodes(&self, wanted: &ServicePort) -> Option<Vec<FoundNode>> {
        Some(self.0.get(&wanted.cluster)?.nodes(wanted))
    }

    fn hosted(&self, hub: &KubernetesCluster) -> Option<Vec<FoundHosted>> {
        Some(self.0.get(&hub.name)?.hosted(&hub.hosted_clusters))
    }
}

impl KeptClusters {
    /// What is in a state folder; nothing where that cannot be read, which is logged: the APIs say it again.
    pub(crate) fn load(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::default(),
            text => text,
        };
        let read = text
            .context("read it")
            .and_then(|text| serde_json::from_slice(&text).context("read it as JSON"));
        read.unwrap_or_else(|error| {
            tracing::error!(
                "{}: {error:#}; discovered backends are those that were applied last, until the APIs answer",
                path.display()
            );
            Self::default()
        })
    }

    /// Writes it into a state folder, whole or not at all.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the one before stays.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let text = serde_json::to_vec(self).context("write what is known of clusters as JSON")?;
        match change_beside(&path, &text)? {
            Some(beside) => beside.put(&path),
            None => Ok(()),
        }
    }

    /// What is known of one, which then is known elsewhere.
    pub(super) fn take(&mut self, cluster: &str) -> Option<KnownObjects> {
        self.0.remove(cluster)
    }
}

#[cfg(test)]
impl KeptClusters {
    /// A cluster that has these objects.
    pub(crate) fn of_objects(cluster: &str, objects: &[serde_json::Value]) -> Self {
        use super::kinds::{EndpointSlices, HostedClusterObjects, Kind, Nodes, Routes, Services};

        fn put<K: Kind>(known: &mut KnownObjects, object: kube::core::DynamicObject) {
            let (key, value) = (K::key(&object), K::read(object).unwrap());
            K::all(known).insert(key, value);
        }

        let mut known = KnownObjects::default();
        for value in objects {
            let object = serde_json::from_value(value.clone()).unwrap();
            match value["kind"].as_str().unwrap() {
                "Service" => put::<Services>(&mut known, object),
                "Node" => put::<Nodes>(&mut known, object),
                "EndpointSlice" => put::<EndpointSlices>(&mut known, object),
                "HostedCluster" => put::<HostedClusterObjects>(&mut known, object),
                "Route" => put::<Routes>(&mut known, object),
                other => panic!("{other}"),
            }
        }
        Self([(cluster.to_owned(), known)].into())
    }
}
