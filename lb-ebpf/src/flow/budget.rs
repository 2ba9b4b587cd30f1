//! How many flows a network's clients, a service and a backend have in full use, and a network's clients of a bank,
//! and whether they may have more. Half-open ones do not count: their ring bounds them, and a flood of them
//! spends no budget.

use lb_common::{
    conntrack::FlowState,
    maps::{backend::Backend, network::Network, quota, service::Service, snat, usage},
    verdict::DropReason,
};

use crate::{
    flow::{atomic, entry::Entry},
    lookup,
    maps::{BACKEND_FLOWS, BANKS, NETWORKS, QUOTAS, USAGE},
};

/// Whether the clients of `network` may open one more flow to `service`. Several CPUs that check at once may
/// each admit a flow: the budget is exceeded by as many flows at most.
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

/// Whether the clients of `network` may have one more port of a bank, in the same way.
#[inline(always)]
pub(crate) fn check_quota(network: u16, bank: u32) -> Result<(), DropReason> {
    let quota = QUOTAS.get(quota::index(network, bank)).copied();
    match quota.is_some_and(|quota| quota.is_spent()) {
        true => Err(DropReason::BudgetSpent),
        false => Ok(()),
    }
}

/// The bank that the port of the flow with this id is of.
#[inline(always)]
fn bank_of(id: u32) -> u32 {
    BANKS.get(snat::slot(id)).copied().unwrap_or_default()
}

/// Whether a half-open flow may come into full use: as many as have passed [`check`] may be half-open
/// at once.
#[inline(always)]
pub(crate) fn check_again(entry: &Entry) -> Result<(), DropReason> {
    if lb_budget_is_spent(entry.id) == 0 && lb_quota_is_spent(entry.id) == 0 {
        Ok(())
    } else {
        Err(DropReason::BudgetSpent)
    }
}

/// 1 if the flow with this id must not come into full use, else 0. A network or service that is gone refuses no
/// flow. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_budget_is_spent(id: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    let key = entry.key(entry.word());
    let Some(network) = NETWORKS.get(u32::from(key.network)) else {
        return 0;
    };
    let Some(service) = lookup::service(&key) else {
        return 0;
    };
    u32::from(check(key.network, network, service).is_err())
}

/// The same for the quota of the flow. A function apart from [`lb_budget_is_spent`], because the frames of a chain of
/// calls add up.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_quota_is_spent(id: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    let (network, _) = entry.owners();
    u32::from(check_quota(network, bank_of(id)).is_err())
}

/// Whether a backend may have one more flow. Several CPUs that look at once may each find room for the last one, and
/// flows that are half-open do not count: the limit is exceeded by as many as begin at once.
#[inline(always)]
pub(crate) fn has_room(id: u32, backend: &Backend) -> bool {
    let most = u32::from(backend.max_flows);
    most == 0 || usage::live(BACKEND_FLOWS.get(id).copied().unwrap_or(0)) < most
}

/// Counts a flow whose word this CPU has changed from `old` to `new`.
#[inline(always)]
pub(crate) fn follow(entry: &Entry, old: FlowState, new: FlowState) {
    if old.in_use() == new.in_use() {
        return;
    }
    lb_count(entry.id, if new.in_use() { 1 } else { u32::MAX });
}

/// Adds `amount` to what the network, the service, the backend and the quota of the flow with this id have in full
/// use. A subprogram. Returns nothing of interest.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_count(id: u32, amount: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    let (network, service) = entry.owners();
    add(USAGE.get_ptr_mut(usage::network(network)), amount);
    add(USAGE.get_ptr_mut(usage::service(service)), amount);
    add(BACKEND_FLOWS.get_ptr_mut(entry.backend_id()), amount);
    if let Some(quota) = QUOTAS.get_ptr_mut(quota::index(network, bank_of(id))) {
        // SAFETY: the value of an array map.
        let live = unsafe { &raw mut (*quota).live };
        // SAFETY: four bytes behind the beginning of a value that is aligned to eight.
        let _before = unsafe { atomic::add(live, amount) };
    }
    0
}

#[inline(always)]
fn add(value: Option<*mut u32>, amount: u32) {
    if let Some(value) = value {
        // SAFETY: the value of an array map, aligned to eight bytes.
        let _before = unsafe { atomic::add(value, amount) };
    }
}
