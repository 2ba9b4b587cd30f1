//! An API that is reached at the nodes of another cluster, by the port that a Service has there.

use std::net::SocketAddr;

use tokio::sync::watch;

use super::view::ClusterView;
use crate::config::ServicePort;

/// The nodes at which an API is reached.
#[derive(Clone)]
pub(super) struct Through {
    port: ServicePort,
    /// Of the cluster of the nodes.
    view: watch::Receiver<ClusterView>,
}

impl Through {
    pub(super) const fn new(port: ServicePort, view: watch::Receiver<ClusterView>) -> Self {
        Self { port, view }
    }

    /// One of the nodes, another one with each turn.
    ///
    /// # Errors
    ///
    /// If there is none, in words.
    pub(super) fn node(&self, turn: usize) -> Result<SocketAddr, String> {
        let nodes = self.nodes();
        let node = turn
            .checked_rem(nodes.len())
            .and_then(|turn| nodes.get(turn));
        node.copied()
            .ok_or_else(|| format!("no node has {}", self.port))
    }

    fn nodes(&self) -> Vec<SocketAddr> {
        let view = self.view.borrow();
        let nodes = view.known().map(|known| known.nodes(&self.port));
        let nodes = nodes.into_iter().flatten();
        let addresses = nodes.filter_map(|node| Some((*node.addresses.first()?, node.port)));
        addresses.map(SocketAddr::from).collect()
    }

    /// Returns when the API is not reached at a node any more.
    pub(super) async fn gone(&mut self, node: SocketAddr) {
        while self.nodes().contains(&node) {
            // Without the other cluster this one is followed no more either.
            if self.view.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{ObjectName, PortOfService},
        sources::kubernetes::known::{KnownNode, KnownObjects, KnownPort, KnownService},
    };

    fn name() -> ObjectName {
        "a/kas".to_owned().try_into().unwrap()
    }

    fn known(node_port: u16, nodes: &[&str]) -> KnownObjects {
        let port = KnownPort {
            name: "client".to_owned(),
            number: 6443,
            node_port,
        };
        let service = KnownService {
            ports: vec![port],
            is_local: false,
        };
        let node = |address: &&str| {
            let node = KnownNode {
                addresses: vec![address.parse().unwrap()],
                takes: true,
            };
            ((*address).to_owned(), node)
        };
        KnownObjects {
            services: [(name(), service)].into(),
            nodes: nodes.iter().map(node).collect(),
            ..KnownObjects::default()
        }
    }

    fn through(known: KnownObjects) -> (watch::Sender<ClusterView>, Through) {
        let (view, seen) = watch::channel(ClusterView::kept(known));
        let port = ServicePort {
            cluster: "hub".to_owned(),
            service: name(),
            port: PortOfService::Number(6443),
        };
        (view, Through::new(port, seen))
    }

    #[test]
    fn each_turn_has_another_node() {
        let (_view, through) = through(known(30_918, &["10.0.0.1", "10.0.0.2"]));
        let node = |turn| through.node(turn).unwrap().to_string();
        assert_eq!(
            [node(0), node(1), node(2)],
            ["10.0.0.1:30918", "10.0.0.2:30918", "10.0.0.1:30918"]
        );
    }

    #[test]
    fn without_a_node_there_are_words() {
        let words = "no node has port 6443 of service a/kas of hub";
        let (_view, none) = through(known(30_918, &[]));
        assert_eq!(none.node(0), Err(words.to_owned()));
        let (_view, no_port) = through(known(0, &["10.0.0.1"]));
        assert_eq!(no_port.node(7), Err(words.to_owned()));
    }

    #[tokio::test]
    async fn a_node_is_gone_with_its_port_and_with_the_cluster() {
        let (view, mut through) = through(known(30_918, &["10.0.0.1"]));
        let node = through.node(0).unwrap();
        view.send_replace(ClusterView::kept(known(31_000, &["10.0.0.1"])));
        through.gone(node).await;
        let node = through.node(0).unwrap();
        drop(view);
        through.gone(node).await;
    }
}
