//! This process: what it may do ([`privileges`]), how many descriptors it may have (`fd_limit`), what a panic
//! ends ([`panics`]), what memory it keeps (`heap`), what it prints ([`output`]) and logs (`log`), and what it shows on a terminal while something takes long
//! (`progress`); text of others is printed as `escape` has it. What the kernel reports of a connection: `tcp_info`.

pub(crate) mod escape;
pub(crate) mod fd_limit;
pub mod files;
pub(crate) mod heap;
pub(crate) mod log;
pub mod output;
pub mod panics;
pub mod privileges;
pub(crate) mod progress;
pub mod systemd;
pub(crate) mod tcp_info;
