//! usage: how many live flows a network's clients and a service have, and whether they may have
//! more.

use lb_common::{
    maps::{network::Network, service::Service, usage},
    verdict::DropReason,
};

use crate::{atomic, maps::USAGE};

/// Whether the clients of `network` may open one more flow to `service`. Several CPUs that ask at
/// once may each be told yes: the budget is exceeded by as many flows at most.
#[inline(always)]
pub(crate) fn check(id: u16, network: &Network, service: &Service) -> Result<(), DropReason> {
    if is_spent(usage::network(id), network.budget)
        || is_spent(usage::service(service.id), service.budget)
    {
        return Err(DropReason::BudgetSpent);
    }
    Ok(())
}

#[inline(always)]
fn is_spent(index: u32, budget: u32) -> bool {
    // Read with one load while others add: old or new, both are right. A count that a crash of
    // userspace has made wrong may be below zero, which is not a spent budget.
    let spent = |live: u32| live >= budget && (live as i32) >= 0;
    budget != 0 && USAGE.get(index).is_some_and(|&live| spent(live))
}

/// One flow more.
#[inline(always)]
pub(crate) fn enter(network: u16, service: u16) {
    add(usage::network(network), 1);
    add(usage::service(service), 1);
}

/// One flow less.
#[inline(always)]
pub(crate) fn leave(network: u16, service: u16) {
    add(usage::network(network), u32::MAX);
    add(usage::service(service), u32::MAX);
}

#[inline(always)]
fn add(index: u32, amount: u32) {
    if let Some(value) = USAGE.get_ptr_mut(index) {
        // SAFETY: the value of an array map, aligned to eight bytes.
        let _before = unsafe { atomic::add(value, amount) };
    }
}
