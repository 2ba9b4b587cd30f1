//! Headers of the PROXY protocol: only a connection can begin with one.

use super::pool::wants_header;
use crate::config::{
    list::{List, Named},
    listen::Protocol,
    names::Names,
    place::At,
    problem::Findings,
    schema::{LiteralPool, RawService},
};

/// No datagram has a beginning that its backend would look at.
pub(super) fn check_listeners(
    services: &List<Named<RawService>>,
    pool_names: &Names<'_>,
    pools: &List<Named<LiteralPool>>,
    findings: &mut Findings,
) {
    for named in &services.elements {
        // Those that look at names have no listener for UDP at all.
        let Some(pool) = &named.value.pool else {
            continue;
        };
        let index = pool_names.position(&pool.value);
        let told = index.and_then(|index| pools.elements.get(index));
        let Some(told) = told.and_then(|named| wants_header(&named.value)) else {
            continue;
        };
        for At {
            place,
            value: listen,
        } in &named.value.listen.elements
        {
            if listen.protocol != Protocol::Udp {
                continue;
            }
            let words = format!(
                "{listen} is UDP, which has no connection to begin with a header, but pool {} has \
                 proxy_protocol in {}; expected tcp, or another pool",
                pool.value,
                findings.line(&told.place, place)
            );
            findings.add(place, words);
        }
    }
}
