//! Quotas: with nothing configured, no tenant takes the SNAT ports of another, whatever it opens.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::{ids, query::Quota},
    poll,
    product::{config::Config, lb::Lb},
    servers::peers::Peers,
    topology::{ECHO, LAB_CONFIG, Tenant, Trunk},
    traffic::{client, secret::SecretFlow},
};

/// SNAT ports of the hub, for both tenants.
const PORTS: usize = 640;
/// What each of them has: half of these, of which half-open and UDP flows have a quarter each.
const MAX_FLOWS: usize = PORTS / 4;
/// New connections of the tenant that is to notice nothing.
const NEW: usize = 5;
/// Until a wrong count is right again.
const RECOUNT: Duration = Duration::from_secs(20);

/// The lab with few SNAT ports, and these keys for the first tenant.
fn config(keys: &str) -> Config {
    let last = 20_000 + u16::try_from(PORTS).expect("few ports") - 1;
    Config::read(LAB_CONFIG)
        .network("mgmt", |mgmt| mgmt.snat_ports(20_000, last))
        .network("tenant-a", |tenant| tenant.with(keys))
}

fn open(tenant: &Tenant) -> Result<SecretFlow> {
    SecretFlow::open(&tenant.client().netns, None, ECHO)
}

/// Opens connections until one is refused, by a reset.
fn open_all(tenant: &Tenant) -> Result<Vec<SecretFlow>> {
    let mut flows = Vec::new();
    loop {
        match open(tenant) {
            Ok(flow) => flows.push(flow),
            Err(error) => {
                ensure!(
                    client::was_refused(&error),
                    "{} opened: {error:#}",
                    flows.len()
                );
                return Ok(flows);
            }
        }
    }
}

/// What `lb status` says that a tenant has of the hub's SNAT ports.
fn quota(lb: &Lb<'_>, tenant: &Tenant) -> Result<Quota> {
    let status = lb.status()?;
    let network = status
        .networks
        .into_iter()
        .find(|network| network.name == tenant.name);
    let mut quotas = network.context("no such network")?.quotas.into_iter();
    quotas
        .find(|quota| quota.backends == "mgmt")
        .context("no such quota")
}

fn has(lb: &Lb<'_>, tenant: &Tenant) -> Result<(u64, Option<u64>)> {
    let quota = quota(lb, tenant)?;
    Ok((quota.flows, quota.most))
}

#[privileged_test]
fn a_tenant_that_opens_all_it_can_leaves_another_its_part() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let peers = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    let lb = Lb::start(&trunk, &config(""))?;
    let mut before = open(b)?;

    let mut taken = open_all(a)?;

    for number in 1..=NEW {
        open(b)
            .with_context(|| format!("connection {number} of tenant b"))?
            .round()?;
    }
    assert_eq!(taken.len(), MAX_FLOWS);
    before.round()?;
    taken.iter_mut().try_for_each(SecretFlow::round)?;
    assert_eq!(lb.refused("budget_spent")?, 1);
    assert_eq!(lb.refused("snat_exhausted")?, 0);
    let most = Some(u64::try_from(MAX_FLOWS)?);
    assert_eq!(has(&lb, a)?, (u64::try_from(MAX_FLOWS)?, most));
    assert_eq!(has(&lb, b)?.1, most);
    for peers in peers {
        assert_eq!(peers.mixed_up(), Vec::<String>::new());
    }
    Ok(())
}

/// As over an upgrade from a version that knew no quotas: what is above them lives on, also through a kill, and
/// is counted.
#[privileged_test]
fn flows_above_a_new_quota_live_on() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let _peers = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    let mut lb = Lb::start(&trunk, &config("max_flows: 600"))?;
    let above = MAX_FLOWS + 40;
    let flows = (0..above).map(|_| open(a));
    let mut flows = flows.collect::<Result<Vec<_>>>()?;
    assert_eq!(has(&lb, a)?, (u64::try_from(above)?, None));

    lb.reload(&config(""))?;
    let most = Some(u64::try_from(MAX_FLOWS)?);
    assert_eq!(has(&lb, a)?, (u64::try_from(above)?, most));
    flows.iter_mut().try_for_each(SecretFlow::round)?;
    ensure!(open_all(a)?.is_empty(), "above its quota");
    for _ in 0..NEW {
        open(b)?.round()?;
    }

    // As if the flows had been opened by a data plane that counts none.
    lb.kill()?;
    ids::miscount(trunk.run(), "tenant-a", "echo-a", -i32::try_from(above)?)?;
    lb.restart(&config(""))?;
    poll::until("a right count", RECOUNT, || {
        Ok((has(&lb, a)? == (u64::try_from(above)?, most)).then_some(()))
    })?;
    flows.iter_mut().try_for_each(SecretFlow::round)?;
    ensure!(open_all(a)?.is_empty(), "above its quota");
    flows.truncate(MAX_FLOWS - 1);
    let opened = poll::until("a place", RECOUNT, || {
        let opened = open_all(a)?;
        Ok((!opened.is_empty()).then_some(opened))
    })?;
    assert_eq!(opened.len(), 1);
    flows.iter_mut().try_for_each(SecretFlow::round)
}
