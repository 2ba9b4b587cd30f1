//! The Maglev tables of pools, which take long to build: each is built again for other members only. Pure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use lb_common::maglev::TableMember;

use super::backend_weights::{BackendShare, Layers};
use crate::{
    config::{self, Algorithm, Config},
    model::{
        maglev::MaglevTable,
        names::backend_name,
        registry::{Ids, Kind},
    },
};

/// The table of each pool that was built last, by the pool's name.
#[derive(Debug, Default)]
pub struct BuiltTables(BTreeMap<String, (TableParts, MaglevTable)>);

/// All that a table is made of.
#[derive(Debug, PartialEq, Eq)]
struct TableParts {
    balance: Algorithm,
    seed: String,
    /// Those that usually get flows.
    members: Vec<TableMember>,
    /// The weights of all backends, in the order of the file.
    weights: Vec<u16>,
}

impl BuiltTables {
    /// The table of a pool of `config` whose backends have ids: which backends get new flows, and how many.
    ///
    /// It is made for all of them that usually get flows, so that one that is out for a while moves no flows of the others:
    /// for backups only as long as they serve.
    ///
    /// # Errors
    ///
    /// If a backend has none.
    pub fn table(
        &mut self,
        pool: &config::Pool,
        config: &Config,
        layers: &Layers,
        ids: &Ids,
    ) -> Result<MaglevTable> {
        let parts = TableParts {
            balance: pool.balance,
            seed: config.seed.clone().unwrap_or_default(),
            members: members(pool, layers, ids)?,
            weights: pool.backends.iter().map(|backend| backend.weight).collect(),
        };
        if let Some((known, table)) = self.0.get(&pool.name)
            && *known == parts
        {
            return Ok(MaglevTable::clone(table));
        }
        let table: MaglevTable = parts.build().into();
        let built = (parts, MaglevTable::clone(&table));
        self.0.insert(pool.name.clone(), built);
        Ok(table)
    }

    /// Forgets the tables of pools that a configuration does not have.
    pub fn forget_all_but(&mut self, config: &Config) {
        let names: BTreeSet<&str> = config.pools.iter().map(|pool| &*pool.name).collect();
        self.0.retain(|name, _| names.contains(&**name));
    }
}

impl TableParts {
    fn build(&self) -> Vec<u32> {
        let weights = self.weights.iter().copied();
        self.balance.table(&self.members, weights, &self.seed)
    }
}

fn members(pool: &config::Pool, layers: &Layers, ids: &Ids) -> Result<Vec<TableMember>> {
    let shares = layers.shares(pool).backends;
    let has_backups = shares.iter().any(|it| it.backend.backup && it.share > 0);
    let members = shares
        .into_iter()
        .filter(|it| has_backups || !it.backend.backup);
    let member = |of: BackendShare<'_>| {
        let name = backend_name(pool, of.backend);
        let id = ids.get(Kind::Backend, &name);
        let id = id.with_context(|| format!("backend {name} has no id"))?;
        Ok(TableMember {
            id,
            share: of.share,
            whole: of.whole,
            name,
        })
    };
    members.map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::desired::tests::{CONFIG, build},
        *,
    };

    #[test]
    fn a_table_is_built_anew_of_other_parts_alone() {
        let mut ids = Ids::default();
        build(CONFIG, &mut ids);
        let mut built = BuiltTables::default();
        let mut table = |text: &str| {
            let config = config::parse("test.yaml", text).unwrap();
            let layers = Layers::default();
            built
                .table(&config.pools[0], &config, &layers, &ids)
                .unwrap()
        };
        let first = table(CONFIG);
        let is_first = |other: &MaglevTable| MaglevTable::ptr_eq(&first, other);
        assert!(is_first(&table(CONFIG)));
        let heavier = CONFIG.replace("weight: 3", "weight: 4");
        let others = [
            heavier,
            format!("{CONFIG}seed: s\n"),
            CONFIG.replace(
                "network: mgmt, backends",
                "network: mgmt, balance: round-robin, backends",
            ),
        ];
        for other in others {
            assert_ne!(table(&other), first, "{other}");
            let again = table(CONFIG);
            assert!(!is_first(&again), "the latest one alone is known");
            assert_eq!(again, first);
        }
    }

    #[test]
    fn tables_of_pools_that_are_gone_are_forgotten() {
        let mut ids = Ids::default();
        build(CONFIG, &mut ids);
        let config = config::parse("test.yaml", CONFIG).unwrap();
        let mut built = BuiltTables::default();
        let pool = &config.pools[0];
        built
            .table(pool, &config, &Layers::default(), &ids)
            .unwrap();
        built.forget_all_but(&config);
        assert_eq!(built.0.len(), 1);
        let other = config::parse("test.yaml", &CONFIG.replace("kas-a", "kas-b")).unwrap();
        built.forget_all_but(&other);
        assert_eq!(built.0.len(), 0);
    }
}
