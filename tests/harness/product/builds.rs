//! Builds of the object that are not shipped: what a choice in its layout costs is measured beside the other one.

use lb_user::dataplane::object::Build;

/// With a second cache line for each flow, which has what replies write: with 128 bytes for a flow instead of 64, request
/// and reply on two CPUs do not write the same line.
pub const LINE_PER_DIRECTION: Build = Build {
    object: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-ebpf")),
    by_flow: &["REPLY_LINES"],
};
