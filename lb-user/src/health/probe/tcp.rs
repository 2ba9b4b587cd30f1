//! The connection alone.

use tokio::net::TcpStream;

use super::{Exchange, Open, Probe, Probed, Probing};
use crate::health::Outcome;

/// A backend that has accepted is good.
pub(super) struct Connect;

impl Probe for Connect {
    fn probe<'p>(&'p self, stream: TcpStream, _exchange: &'p Exchange) -> Probing<'p> {
        Box::pin(async {
            Ok(Probed {
                outcome: Outcome::Good("connected".to_owned()),
                open: Open::Tcp(stream),
            })
        })
    }
}
