//! The sockets of a control plane: the operator's, and that of the next process.

use anyhow::Result;
use tokio::sync::mpsc;

use super::takeover::TakeoverListener;
use crate::{
    admin::server::{Order, Server},
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
}

impl Sockets {
    /// Opens them. Needs to be inside of the runtime.
    pub(super) fn open(pins: &Pins) -> Result<Self> {
        Ok(Self {
            orders: listen(pins)?,
            takeover: TakeoverListener::open(pins)?,
        })
    }

    /// Makes those anew that something has removed.
    pub(super) fn mend(&mut self, control: &mut Control) {
        let pins = control.running.pins().clone();
        if !pins.socket().exists() {
            let opened = listen(&pins).map(|opened| self.orders = opened);
            control.note_socket(&pins.socket().display().to_string(), opened);
        }
        if !self.takeover.is_there() {
            let opened = TakeoverListener::open(&pins).map(|opened| self.takeover = opened);
            control.note_socket(&pins.heirs().display().to_string(), opened);
        }
    }
}

/// Opens the admin socket.
fn listen(pins: &Pins) -> Result<mpsc::Receiver<Order>> {
    let server = Server::open(&pins.socket())?;
    let (sender, orders) = mpsc::channel(ORDERS);
    tokio::spawn(async move {
        if let Err(error) = server.serve(sender).await {
            tracing::error!("the admin socket is closed: {error:#}");
        }
    });
    Ok(orders)
}
