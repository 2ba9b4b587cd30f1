//! What SYN-ACKs by cookies offer: what all of the backends agree to, as the connections of their checks show.

use lb_common::maps::vip_offer::{ANY_OFFERED_MSS, LEAST_OFFERED_MSS, VipOffer};

use super::{checks::Checks, running::Running};
use crate::{
    config::{Config, Service, SynCookies, Target},
    model::{names::backend_name, registry::Kind},
};

impl Running {
    /// Offers clients what has been found lately, if that is news.
    pub(super) fn offer_found(&mut self) {
        if !self.checks.take_agreement() {
            return;
        }
        let config = &self.applied.config;
        for service in &config.services {
            let id = self.applied.ids.get(Kind::Service, &service.name);
            let id = id.and_then(|id| u16::try_from(id).ok());
            let (Some(id), Some(found)) = (id, found(service, config, &self.checks)) else {
                continue;
            };
            let offers = self.shared_vips.acceptors.offers();
            match found {
                Found::All(offer) => offers.set(id, offer),
                Found::Some(offer) => offers.lower(id, offer, least_mss(service)),
            }
        }
    }
}

/// What is known of the backends of a service.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// What all of them agree to.
    All(VipOffer),
    /// The same of those that have been checked; XDP may have learned more from the others.
    Some(VipOffer),
}

/// The least segment size that its clients are held to.
const fn least_mss(service: &Service) -> u16 {
    match service.target {
        Target::Pool(_) => ANY_OFFERED_MSS,
        Target::Sni(_) | Target::Http(_) => LEAST_OFFERED_MSS,
    }
}

/// What is known of a service whose SYNs are answered by cookies.
fn found(service: &Service, config: &Config, checks: &Checks) -> Option<Found> {
    let cookies = match &service.target {
        Target::Sni(sni) => sni.syn_cookies,
        Target::Pool(_) if !config.is_of_cell(service) => service.syn_cookies,
        Target::Pool(_) | Target::Http(_) => SynCookies::Never,
    };
    if cookies == SynCookies::Never {
        return None;
    }
    let least = least_mss(service);
    let pools = service.target.pools().filter_map(|name| config.pool(name));
    let backends = pools.flat_map(|pool| {
        let network = config.network(&pool.network);
        let most = network.and_then(|network| network.mss);
        let names = pool.backends.iter().map(|one| backend_name(pool, one));
        names.map(move |name| {
            let agreed = checks.agreed(&name)?;
            // XDP lowers it on the way, where that of a check is not.
            let mss = agreed.mss.min(most.unwrap_or(u16::MAX));
            Some(VipOffer { mss, ..agreed })
        })
    });
    let (mut offer, mut are_all) = (VipOffer::default(), true);
    for agreed in backends {
        match agreed {
            Some(agreed) => offer = offer.and_from(agreed, least),
            None => are_all = false,
        }
    }
    Some(if are_all {
        Found::All(offer)
    } else {
        Found::Some(offer)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lb_common::maps::vip_offer::{LACKS_SCALE, LACKS_TIMES};

    use super::*;
    use crate::{
        config,
        health::{CheckOutcome, Report, Standing},
        model::registry::Ids,
    };

    const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  a: { network: mgmt, health: { tcp: {} }, backends: [\"10.0.0.1:1\", \"10.0.0.2:1\"] }
  b: { network: mgmt, health: { tcp: {} }, backends: [\"10.0.0.3:1\"] }
  c: { network: mgmt, backends: [\"10.0.0.4:1\"] }
services:
  all:
    { network: tenant-a, listen: [\"192.168.203.110:443/tcp\"],
      sni: { routes: [{ names: [a.lab], pool: a }], no_match: { pool: b } } }
  some:
    { network: tenant-a, listen: [\"192.168.203.110:444/tcp\"],
      sni: { routes: [{ names: [a.lab], pool: b }, { names: [c.lab], pool: c }] } }
  accepted:
    { network: tenant-a, listen: [\"192.168.203.110:445/tcp\"],
      sni: { syn_cookies: never, routes: [{ names: [a.lab], pool: a }] } }
  plain:  { network: tenant-a, listen: [\"192.168.203.110:446/tcp\"], pool: a }
  never:  { network: tenant-a, listen: [\"192.168.203.110:447/tcp\"], pool: b, syn_cookies: never }
";

    fn report(backend: u32, agreed: Option<VipOffer>) -> Report {
        Report {
            backend,
            address: format!("10.0.0.{backend}:1").parse().unwrap(),
            is_suspected: false,
            outcome: CheckOutcome::Good(String::new()),
            is_answered: true,
            took: Duration::ZERO,
            agreed,
            changed: false,
            standing: Standing::default(),
        }
    }

    #[test]
    fn clients_are_offered_what_all_backends_have_agreed_to() {
        let config = config::parse("f", CONFIG).unwrap();
        let mut ids = Ids::new(None);
        for pool in &config.pools {
            for backend in &pool.backends {
                let name = backend_name(pool, backend);
                ids.assign(Kind::Backend, &name, 99).unwrap();
            }
        }
        let mut checks = Checks::default();
        checks.set(&config, &ids, |_| false);
        assert!(checks.take_agreement() && !checks.take_agreement());
        let offer = |mss, lacks| Some(VipOffer { mss, lacks });
        for (backend, agreed, is_news) in [
            (1, offer(1460, 0), true),
            (1, offer(1460, 0), false),
            // The connection was not made: it says nothing of options.
            (1, None, false),
            (2, offer(1360, LACKS_TIMES), true),
            (3, offer(1400, LACKS_SCALE), true),
        ] {
            checks.note(report(backend, agreed));
            assert_eq!(checks.take_agreement(), is_news, "{backend} {agreed:?}");
        }
        let in_checks = |checks: &Checks, name: &str| {
            let service = config.services.iter().find(|one| one.name == name);
            found(service.unwrap(), &config, checks)
        };
        let of = |name: &str| in_checks(&checks, name);
        let all = offer(1360, LACKS_TIMES | LACKS_SCALE).map(Found::All);
        assert_eq!(of("all"), all);
        assert_eq!(of("some"), offer(1400, LACKS_SCALE).map(Found::Some));
        assert_eq!(of("accepted"), None);
        assert_eq!(of("plain"), offer(1360, LACKS_TIMES).map(Found::All));
        assert_eq!(of("never"), None);
        checks.note(report(1, offer(900, 0)));
        let of = |name: &str| in_checks(&checks, name);
        assert_eq!(of("plain"), offer(900, LACKS_TIMES).map(Found::All));
        assert_eq!(of("all"), all);
        let text = CONFIG.replace("role: mgmt,", "role: mgmt, mss: 1300,");
        let config = config::parse("f", &text).unwrap();
        let found = found(&config.services[0], &config, &checks);
        assert_eq!(
            found,
            offer(1300, LACKS_TIMES | LACKS_SCALE).map(Found::All)
        );
    }
}
