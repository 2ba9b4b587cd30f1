//! The connection alone.

use tokio::net::TcpStream;

use super::{Exchange, OpenConnection, Probe, ProbeAnswer, Probing};
use crate::health::CheckOutcome;

/// A backend that has accepted is good.
pub(super) struct Connect;

impl Probe for Connect {
    fn probe<'p>(&'p self, stream: TcpStream, _exchange: &'p Exchange) -> Probing<'p> {
        Box::pin(async {
            Ok(ProbeAnswer {
                outcome: CheckOutcome::Good("connected".to_owned()),
                open: OpenConnection::Tcp(stream),
            })
        })
    }
}
