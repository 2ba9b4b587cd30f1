//! Services of layer 4 beside a flood of SYNs.

use anyhow::Result;
use lb_tests::topology::path::Path;

use crate::{
    Plan,
    path::conntrack::Room,
    report::Suite,
    suites::{connections::stands, flood::Flooded},
    tcp::{
        answer::PLAIN,
        way::{self, Way},
    },
};

const WAYS: [Way; 4] = [Way::LbCookies, Way::Lb, Way::Haproxy, Way::NftSynproxy];
/// Bytes of an answer.
const ANSWER: u64 = 270;

const METHOD: &str = "As flood, but with the connections of the suite of that name: nothing looks at what clients say, and answers have 270 \
     bytes. With SYN cookies lb answers the flood itself (syn_cookies: always); without them (never) it opens a flow for each SYN, and \
     the backends answer these, on the CPU of both ends. HAProxy has the kernel's SYN cookies, as by default. nftables synproxy answers SYNs to \
     the VIP by cookies, untracked, in the input hook; the SYN that it makes for the backend passes the output hook, where the connection gets DNAT by a hash, \
     and masquerade. It offers no TCP timestamps, window scaling or SACK, which spares it bytes: with timestamps its first ACK to a backend \
     echoes a wrong one, which backends with Linux 6.18 refuse, and a hundredth of connections took 1.7 s. A connection takes from before \
     its SYN until its end, which comes with the answer.";

/// # Errors
///
/// When a connection fails.
pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let (there, missing) = way::present(&WAYS);
    let _room = Room::make();
    let paths: Vec<Path> = there.iter().map(|_| Path::build()).collect::<Result<_>>()?;
    let mut stands = stands(&there, &paths, PLAIN)?;
    let flooded = Flooded::measure(&mut stands, plan, ANSWER)?;
    Ok(Suite {
        name: "flood4",
        method: METHOD.to_owned(),
        goals: vec![
            flooded.goal(
                "lb with SYN cookies / HAProxy",
                [2.0, 3.0],
                [Way::LbCookies, Way::Haproxy],
            ),
            flooded.goal(
                "lb with SYN cookies / nftables synproxy",
                [1.0, 1.5],
                [Way::LbCookies, Way::NftSynproxy],
            ),
        ],
        charts: flooded.charts(),
        checked: flooded.checked(),
        contestants: there.iter().map(|way| way.shown()).collect::<Result<_>>()?,
        missing,
    })
}
