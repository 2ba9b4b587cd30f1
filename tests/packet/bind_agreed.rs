//! Backends that agree to less than XDP has promised their client, and clients that leave before their backend has answered.

use lb_common::{syn_cookie::offer, wire::Slice};
use lb_tests::{
    frames::{
        packet::{check, flags::*, tcp},
        segment::Segment,
    },
    product::program::{Action, MGMT_NIC, Port},
    traffic::hello::named,
};

use super::{
    bind::{BACKEND, CLOCK, CONFIG, hello, opened, receive, syn_ack},
    bind_again::free_ids,
    cookies::{Answer, ISN, OPTIONS, start_with},
    given::KAS_MAC,
};

/// Of an offer: MSS, and whether there are timestamps and a scale.
type Offered = (u16, bool, bool);

fn offered(frame: &[u8]) -> Offered {
    let mut frame = frame.to_vec();
    let options = offer::read(&Slice::new(&mut frame), 9000).expect("options");
    let scale = options.offer.scale;
    (options.mss, options.time.is_some(), scale.is_some())
}

/// The options of a backend's SYN-ACK.
fn options((mss, has_times, has_scale): Offered) -> Vec<u8> {
    let [high, low] = mss.to_be_bytes();
    let mut options = vec![2, 4, high, low];
    if has_times {
        options.extend([&[1, 1, 8, 10][..], &CLOCK.to_be_bytes(), &[1, 2, 3, 5]].concat());
    }
    if has_scale {
        options.extend([1, 3, 3, 9]);
    }
    options
}

/// Later clients are promised what the backend has agreed to, and their connections are opened by XDP.
#[privileged_test]
fn what_a_backend_lacks_is_not_promised_again() {
    for (agreed, later) in [
        ((1460, true, false), (1460, true, false)),
        ((1460, false, true), (1460, false, true)),
        ((1360, true, true), (1360, true, true)),
        ((1300, false, false), (1300, false, false)),
        // So small that the process copies rather than have all clients send such.
        ((1200, true, true), (1460, true, true)),
        // What is not so to a client that was promised more anyway.
        ((8960, true, true), (1460, true, true)),
    ] {
        let mut lb = start_with(CONFIG);
        let answer = Answer::to(&mut lb, &OPTIONS);
        assert_eq!(offered(&answer.frame), (1460, true, true));
        let is_less = (agreed.0.min(1460), agreed.1, agreed.2) != (1460, true, true);
        let (_, port) = opened(&mut lb, &hello(&answer, "a.lab"));
        let answered = syn_ack(&port).tcp_options(&options(agreed));
        let met = receive(&mut lb, Port::Mgmt, &answered.bytes());
        let is_bound = met.counted.contains(&"bound");
        assert_eq!(is_bound, !is_less, "{agreed:?}: {:?}", met.counted);
        assert_eq!(lb.hellos().len(), usize::from(is_less), "{agreed:?}");

        if is_bound {
            continue;
        }
        let answer = Answer::to(&mut lb, &OPTIONS);
        assert_eq!(offered(&answer.frame), later, "{agreed:?}");
        if later.0 != agreed.0 {
            continue;
        }
        let (syn, port) = opened(&mut lb, &hello(&answer, "a.lab"));
        assert_eq!(offered(&syn), (1460, later.1, later.2), "{agreed:?}");
        let answered = syn_ack(&port).tcp_options(&options(agreed));
        let met = receive(&mut lb, Port::Mgmt, &answered.bytes());
        assert_eq!(met.counted, ["transmitted", "bound"], "{agreed:?}");
    }
}

/// A reset behind the hello ends the flow, and takes back the SYN; one at another number does not.
#[privileged_test]
fn a_client_may_leave_before_its_backend_has_answered() {
    let mut lb = start_with(CONFIG);
    let ids = free_ids(&lb);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = opened(&mut lb, &hello(&answer, "a.lab"));
    let length = u32::try_from(named(b"a.lab").len()).expect("a short hello");
    for flags in [RST_ONLY, RST_ACK] {
        for other in [0, length - 1, length + 1, 1 << 20] {
            receive(&mut lb, Port::Tenant, &answer.segment(other, flags).bytes());
            assert_eq!(free_ids(&lb), ids - 1, "{other}");
        }
    }
    let reset = answer.segment(length, RST_ONLY);
    let left = receive(&mut lb, Port::Tenant, &reset.bytes());
    assert_eq!(
        (left.action, &left.counted[..]),
        (Action::Redirect, &["forwarded"][..])
    );
    let wanted = tcp(&port, BACKEND, RST_ONLY)
        .between(MGMT_NIC, KAS_MAC)
        .numbers(ISN.wrapping_add(1), 0)
        .window(0);
    assert_eq!(Segment::read(&left.frame), Segment::read(&wanted.bytes()));
    assert_eq!(left.frame[..14], wanted.bytes()[..14], "stations");
    check(&left.frame).expect("right checksums");
    assert_eq!(free_ids(&lb), ids);
    assert!(lb.hellos().is_empty(), "no hello without a client");
    // A second one is none's.
    let again = receive(&mut lb, Port::Tenant, &reset.bytes());
    assert_ne!(again.counted, ["forwarded"]);
    assert_eq!(free_ids(&lb), ids);
    // Of a flow that its backend has answered it is one like any other.
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = opened(&mut lb, &hello(&answer, "a.lab"));
    receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    let reset = answer.segment(length, RST_ACK);
    let reset = receive(&mut lb, Port::Tenant, &reset.bytes());
    let reset = Segment::read(&reset.frame).expect("a reset");
    assert_eq!(reset.sequence, ISN.wrapping_add(1 + length));
}

/// A backend is offered segments that both networks carry and the client takes, a client those that its own network carries.
#[privileged_test]
fn both_syns_have_the_mss_of_networks() {
    for (networks, sent, to_client, to_backend) in [
        ([1300, 1380], 1460, 1300, 1300),
        // Numbers of cookies keep one of a few sizes that is not above the client's.
        ([1300, 1380], 1280, 1300, 1220),
        ([1460, 1380], 1460, 1460, 1380),
    ] {
        let [tenant, mgmt] = networks;
        let text = CONFIG.replace(
            "interface: eth0,",
            &format!("interface: eth0, mss: {tenant},"),
        );
        let text = text.replace(
            "interface: eth1,",
            &format!("interface: eth1, mss: {mgmt},"),
        );
        let mut lb = start_with(&text);
        let answer = Answer::to(&mut lb, &options((sent, true, true)));
        let (syn, _) = opened(&mut lb, &hello(&answer, "a.lab"));
        let offers = [&answer.frame, &syn].map(|frame| offered(frame).0);
        assert_eq!(offers, [to_client, to_backend], "{networks:?} {sent}");
    }
}
