//! What the ends of a flow have sent that is in doubt and not acknowledged yet.

use crate::pod::pod_struct;

pod_struct! {
    /// At the index of a flow's id. 8 bytes. Numbers in host order, as the backend knows them; 0 is none.
    ///
    /// The number that the other end acknowledges when it believes what was sent: while the flow is doubted
    /// the one behind a FIN that came with data before it in flight, else the one behind the SYN of a client
    /// that opens its port again. It is written before the word that it belongs to. What an earlier flow of
    /// the id has left is 2^-32 likely to match.
    pub struct Pending {
        /// Of the client.
        pub client: u32,
        /// Of the backend.
        pub backend: u32,
    }
}

impl Pending {
    /// Nothing.
    pub const NONE: Self = Self {
        client: 0,
        backend: 0,
    };
}
