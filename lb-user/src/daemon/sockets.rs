//! The sockets of a control plane: the operator's, and that of the next process.

use anyhow::Result;
use tokio::sync::mpsc;

use super::takeover::TakeoverListener;
use crate::{
    admin::{
        read_group::ReadGroup,
        server::{Order, Server},
    },
    config::Config,
    control::control_loop::Control,
    dataplane::pins::Pins,
};

/// Orders that wait for their turn.
const ORDERS: usize = 16;

/// Both, open.
pub(super) struct Sockets {
    /// What operators order.
    pub(super) orders: mpsc::Receiver<Order>,
    /// Where the next process connects.
    pub(super) takeover: TakeoverListener,
    group: ReadGroup,
    /// Its name, as it was configured when the admin socket was opened to it.
    opened_to: Option<String>,
    /// Why it could not be opened to it, as it was logged.
    closed: Option<String>,
}

impl Sockets {
    /// Opens them. Needs to be inside of the runtime.
    pub(super) fn open(pins: &Pins, config: &Config) -> Result<Self> {
        let group = ReadGroup::default();
        let mut sockets = Self {
            orders: listen(pins, group.clone())?,
            takeover: TakeoverListener::open(pins)?,
            group,
            opened_to: None,
            closed: None,
        };
        sockets.open_to_group(pins, config);
        Ok(sockets)
    }

    /// Lets the group in that may look, if that is another one than before. One that is not there may come.
    fn open_to_group(&mut self, pins: &Pins, config: &Config) {
        if self.opened_to == config.admin.group {
            return;
        }
        let group = config.admin.group.as_deref();
        let failure = match self.group.set(group, &pins.socket()) {
            Ok(()) => {
                self.opened_to = config.admin.group.clone();
                None
            }
            Err(error) => Some(format!(
                "open the admin socket to the group {} (admin.group): {error}; its members are refused until it can be",
                group.unwrap_or_default()
            )),
        };
        if let Some(words) = failure.as_ref().filter(|_| failure != self.closed) {
            tracing::error!("{words}");
        }
        self.closed = failure;
    }

    /// Makes those anew that something has removed.
    pub(super) fn mend(&mut self, control: &mut Control) {
        let pins = control.running.pins().clone();
        if !pins.socket().exists() {
            let opened = listen(&pins, self.group.clone()).map(|opened| self.orders = opened);
            self.opened_to = None;
            control.note_socket(&pins.socket().display().to_string(), opened);
        }
        if !self.takeover.is_there() {
            let opened = TakeoverListener::open(&pins).map(|opened| self.takeover = opened);
            control.note_socket(&pins.heirs().display().to_string(), opened);
        }
        self.open_to_group(&pins, control.running.config());
    }
}

/// Opens the admin socket.
fn listen(pins: &Pins, group: ReadGroup) -> Result<mpsc::Receiver<Order>> {
    let server = Server::open(&pins.socket(), group)?;
    let (sender, orders) = mpsc::channel(ORDERS);
    tokio::spawn(async move {
        if let Err(error) = server.serve(sender).await {
            tracing::error!("the admin socket is closed: {error:#}");
        }
    });
    Ok(orders)
}
