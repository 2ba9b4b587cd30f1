//! The port of `admin.http`, as the configuration has it: opened, closed and opened anew beside everything else, which goes on
//! whatever becomes of it.

use std::{collections::BTreeSet, mem, sync::Arc};

use anyhow::{Error, Result};
use tokio::sync::mpsc;

use crate::{
    api::Severity,
    config::{BearerToken, Config, Network, Role},
    control::control_loop::Control,
    metrics::report::LoopRequest,
    model::names::AppliedNames,
    observe::Observer,
    web::{ListenState, WebServer, WebSettings},
};

/// Requests for a report that wait; the one thread sends one at a time.
const REQUESTS: usize = 1;

/// See the module.
pub(super) struct WebPort {
    /// What the thread requests.
    pub(super) requests: mpsc::Receiver<LoopRequest>,
    sender: mpsc::Sender<LoopRequest>,
    server: Option<(WebSettings, WebServer)>,
    /// Of the configuration that it was opened by.
    generation: Option<u64>,
    /// The names of what is applied, until they change.
    names: Option<Arc<AppliedNames>>,
    state: ListenState,
}

impl WebPort {
    /// Closed.
    pub(super) fn new() -> Self {
        let (sender, requests) = mpsc::channel(REQUESTS);
        Self {
            requests,
            sender,
            server: None,
            generation: None,
            names: None,
            state: ListenState::default(),
        }
    }

    /// Ids have other names now.
    pub(super) fn forget_names(&mut self) {
        self.names = None;
    }

    /// Closes it, until [`Self::follow`] opens it again.
    pub(super) fn close(&mut self) {
        self.server = None;
        self.generation = None;
    }

    /// Answers a request of the thread, which may have waited for too long.
    pub(super) fn answer(&mut self, control: &mut Control, request: LoopRequest) {
        let names = self
            .names
            .get_or_insert_with(|| Arc::new(control.applied_names()));
        let names = Arc::clone(names);
        match request {
            LoopRequest::Report { events, reply } if !reply.is_closed() => {
                let _gone = reply.send(control.metrics_report(names, events));
            }
            LoopRequest::Observer(reply) => drop(reply.send(observer(control, names))),
            LoopRequest::Report { .. } => {}
        }
    }

    /// Opens it as the configuration has it now, and reports what became of it.
    pub(super) fn follow(&mut self, control: &mut Control) {
        let generation = control.generation();
        if self.generation.replace(generation) != Some(generation) {
            self.names = None;
            if let Err(error) = self.open(control) {
                self.server = None;
                let words = format!("{error:#}");
                tracing::error!("metrics: {words}; the next reload tries again");
                control.event("metrics", Severity::Warning, "admin.http", &words);
            }
        }
        let Some((settings, server)) = &self.server else {
            return;
        };
        let state = server.state();
        let before = mem::replace(&mut self.state, state.clone());
        if before == state {
            return;
        }
        let (severity, words) = match state {
            ListenState::Opening => return,
            ListenState::Listening => {
                let listen = settings.http.listen;
                let words = format!("the page is at http://{listen}/, metrics at /metrics");
                tracing::info!("{words}");
                (Severity::Notice, words)
            }
            ListenState::Failed(why) => {
                tracing::error!("metrics: {why}; trying again");
                (Severity::Warning, why)
            }
        };
        control.event("metrics", severity, "admin.http", &words);
    }

    /// Leaves it as it is where nothing of it has changed, the token in its file included.
    fn open(&mut self, control: &Control) -> Result<()> {
        let running = &control.running;
        let Some(settings) = settings(running.config())? else {
            self.server = None;
            return Ok(());
        };
        if self
            .server
            .as_ref()
            .is_some_and(|(known, _)| *known == settings)
        {
            return Ok(());
        }
        // First: the new one may have its port.
        self.server = None;
        self.state = ListenState::default();
        let readings = running.data_plane.live.readings(&running.pins().maps())?;
        let server = WebServer::start(settings.clone(), readings, self.sender.clone())?;
        self.server = Some((settings, server));
        Ok(())
    }
}

/// What sees all maps as this process does.
fn observer(control: &Control, names: Arc<AppliedNames>) -> Result<Observer> {
    let running = &control.running;
    let pins = running.pins();
    let maps = running.data_plane.live.to_observe(&pins.maps())?;
    Observer::new(pins.clone(), maps, names, false)
}

fn settings(config: &Config) -> Result<Option<WebSettings>> {
    let Some(http) = config.admin.http.clone() else {
        return Ok(None);
    };
    let token = http.token_file.as_ref().map(|path| {
        let token = BearerToken::read(path);
        token.map_err(|why| Error::msg(format!("the token file {} {why}", path.display())))
    });
    Ok(Some(WebSettings {
        http,
        token: token.transpose()?,
        client_interfaces: client_interfaces(&config.networks),
    }))
}

/// The interfaces whose own addresses, without a VLAN, are in a network of clients.
fn client_interfaces(networks: &[Network]) -> BTreeSet<String> {
    let untagged = networks.iter().filter(|network| network.vlan.is_none());
    let of_clients = untagged.filter(|network| network.role != Role::Mgmt);
    of_clients
        .map(|network| network.interface.clone())
        .collect()
}
