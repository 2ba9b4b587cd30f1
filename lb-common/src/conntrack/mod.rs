//! What a packet does to its flow's word.
//!
//! The word is the only truth about a flow entry: state (3 bits), flags (7), generation (22). Every change is
//! a compare-and-swap of the whole word, so the winner of a transition has done it alone. The id of a FREE,
//! CLOSED or ENDED entry waits in its queue of free ids.
//!
//! ```text
//!          pop          publish       SYN-ACK            ACK
//!   FREE ──────► CLAIMED ─────► NEW ─────────► REPLIED ───────► ESTABLISHED
//!                   ▲            │ RST            │ RST, both FINs   │
//!                   └── CLOSED ◄─┴────────────────┴──────────────────┘
//!                  pop
//! ```
//!
//! Userspace claims entries too, for connections of shared VIPs to their backends: such an entry is
//! LOCAL, a socket's, until its connection is handed over and it is ESTABLISHED, with a splice.
//!
//! A flow that no backend has answered may go from NEW to CLAIMED and back with the next generation: the client's SYN
//! came again, and goes to another backend ([`Attempt`]).
//!
//! CLOSED still translates until the id is claimed again, so last ACKs arrive; a new SYN of the
//! same client takes a new id, and a late one of the flow itself is dropped. A flow that userspace ends becomes ENDED instead, from any live state:
//! it does not translate. UDP goes from NEW to ESTABLISHED with the first reply.

mod attempt;
mod flow_state;
mod numbers;
mod transition;

pub use attempt::{ANSWER_TIMEOUT, Attempt, MAX_REDISPATCHES};
pub use flow_state::{FlowState, State};
pub use numbers::{Numbers, asks_pending, is_of_client, pending};
pub use transition::{
    Direction, LATE_SYN_TIMEOUT, Segment, Transition, believes_syn, is_late_syn, refuses, stays,
    tcp, udp,
};
