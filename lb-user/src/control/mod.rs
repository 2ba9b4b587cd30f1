//! A change: load -> validate -> desired -> plan -> apply. The first two are in `config`.
//!
//! [`rehearse`] finds out whether a start is possible. [`start`] makes the first change in its `places`, [`change`] those beside what runs; [`describe`] and [`ends`] say what one
//! does. [`layers`] is what checks and the operator say above the file, from [`checks`] and [`orders`].
//!
//! And what goes on between changes: [`serve`] and [`reload`] take in what comes, `nics` follows the
//! interfaces, `mend` what else can be taken away, [`drains`] says until when drained flows go on, [`state`] outlives the process. [`expiry`] ends flows, [`retire`] and [`sweep`] free
//! ids of what is configured no more, [`recover`] finds free flow ids that a killed process has lost.
//! [`handover`] gives all of it to the next process, and [`give_way`] says what this one does meanwhile; [`migrate`] leaves the pinned maps of another version.

pub mod apply;
mod attach;
pub mod change;
pub mod checks;
pub mod describe;
pub mod desired;
pub mod drains;
pub mod ends;
mod files;
pub mod give_way;
pub mod handover;
pub mod heard;
pub mod layers;
pub mod mend;
pub mod migrate;
mod nics;
pub mod orders;
mod places;
pub mod plan;
pub mod recover;
pub mod rehearse;
pub mod reload;
pub mod retire;
pub mod rules;
pub mod running;
pub mod serve;
pub mod start;
pub mod state;
pub mod sweep;
pub mod tables;
pub mod unconfirmed;
