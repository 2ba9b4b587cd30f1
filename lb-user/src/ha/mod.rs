//! Two boxes, one service: flows of a box stand ready on its peer.
//!
//! A flow's name is its SNAT port: on every box of a group that means the same flow. Each box dials its peer over the sync network and
//! has it send what flows it has, again and again: the table is the truth, and what a pass over it finds changed is sent.
//!
//! [`record`] is a flow as the boxes tell each other, with its [`numbers`] if those are translated, [`dictionary`] has which objects of
//! the peer are which of ours, [`clock`] what its times are here, [`sent`] what the peer knows of each flow, [`message`] what is said and
//! [`frame`] how. [`originals`] reads the flows of this box, and [`standby`] places those of the peer; [`decisions`] are
//! what was decided at a box. [`serving`] and [`following`] are the two sessions with a peer, by [`tls`], in the one [`thread`];
//! [`progress`] is how they stand.

pub mod clock;
pub mod decisions;
pub mod dictionary;
pub mod following;
pub mod frame;
pub mod message;
pub mod numbers;
pub mod originals;
pub mod progress;
pub mod record;
pub mod sent;
pub mod serving;
pub mod standby;
pub mod thread;
pub mod tls;
pub mod view;
