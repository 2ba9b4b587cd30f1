//! What a SYN behind extension headers gets.

use lb_tests::frames::six::Extension;

use super::{super::answer::assert_reset, given::*};

const EMPTY: &str = Family::V6.empty;

/// A reset of what had extension headers has none; where that is not possible there is no answer.
#[privileged_test]
fn a_syn_behind_options_is_reset_or_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, EMPTY, SYN_ONLY)
        .numbers(1000, 0)
        .extension(Extension::Destination(vec![]));
    let outcome = lb.receive(Port::Tenant, &syn.bytes());
    match outcome.action {
        Action::Drop => assert_eq!(outcome.counted.2, "no_backend"),
        _ => {
            let wanted = tcp(EMPTY, CLIENT_A, RST_ACK).numbers(0, 1001);
            assert_reset(
                &Family::V6,
                &outcome.frame,
                wanted.between(TENANT_NIC, CLIENT),
            );
        }
    }
}
