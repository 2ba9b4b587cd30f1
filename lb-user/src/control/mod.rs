//! A change: load -> validate -> desired -> plan -> apply. The first two are in `config`.
//!
//! [`change`] makes one beside what runs, but for what is `fixed_at_start`; [`describe`] and [`evictions`] list what one does, and [`ended_count`] counts
//! the flows that end.
//! [`map_contents`] is what a configuration puts into the maps, for what they take of memory.
//! [`backend_weights`] is what checks and the operator lay over the file, from [`checks`] and `overrides`; `service_verdict`
//! is whether backends or the service behind them are down.
//!
//! And what goes on between changes: [`control_loop`] and [`reload`] take in what comes, `nic_watch` follows
//! the interfaces, `next_hop_watch` the next hops, [`passive_watch`] how backends answer clients, `mend` what else can be taken away, [`drains`] has until when drained flows go on,
//! [`discovered`] takes in what clusters of Kubernetes have: `hosted` clusters, and by `discovery` the backends of pools.
//! Of a pair of boxes, `promotion` follows the marker and `fence` closes a box that does not; `decisions` has what the active one has decided
//! hold at both, and `carried` is which of them is the better one.
//! [`persisted_state`] outlives the process, whose begin and end are events of `beginning`; `metrics_report` is what metrics and the page have of it. [`reclaim`] frees ids of what is configured no more.

pub mod applied;
pub mod apply;
pub(crate) mod attach;
pub mod backend_weights;
pub(crate) mod beginning;
pub mod built_tables;
mod carried;
pub mod cell_peers;
pub mod change;
pub mod checks;
pub mod confirm;
pub mod control_loop;
pub mod data_plane;
mod decisions;
pub mod describe;
pub mod desired;
pub mod discovered;
mod discovery;
mod doors;
pub mod drains;
pub(crate) mod dry_run;
pub mod ended_count;
pub mod ending;
pub mod evictions;
pub(crate) mod fence;
pub(crate) mod fixed_at_start;
mod hosted;
pub mod maglev_tables;
pub mod map_contents;
pub mod mend;
mod metrics_report;
pub(crate) mod network_setup;
mod new_process;
mod next_hop_watch;
mod nic_watch;
pub mod operator;
mod overrides;
mod passive;
pub mod passive_watch;
pub mod persisted_state;
pub mod plan;
pub(crate) mod promotion;
pub mod reclaim;
pub mod reload;
pub mod rule_sets;
pub mod running;
mod server_names;
mod service_verdict;
mod verdicts;
mod vip_offers;
