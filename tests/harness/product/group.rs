//! What two boxes have in common: an authority, a secret for SYN cookies, and one configuration.

use std::{net::IpAddr, path::PathBuf};

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::{
    product::config::{Config, Keys},
    servers::identity::Identity,
    topology::{BoxName, MARKER, SNAT6, TwoBoxes},
};

/// Name of the authority that has signed the certificates of both boxes.
const AUTHORITY: &str = "boxes";

/// The files of both boxes; they go with the folder of the run.
#[derive(Debug)]
pub struct Group {
    authority: Identity,
    boxes: [Identity; 2],
    cookie_key: PathBuf,
}

impl Group {
    /// Makes the keys and certificates: each box has one for its name, which is good for a client and a server.
    ///
    /// # Errors
    ///
    /// When openssl fails.
    pub fn create(pair: &TwoBoxes) -> Result<Self> {
        let authority = Identity::create(pair, AUTHORITY, &[])?;
        let sign = |name: BoxName| authority.sign_for_both_ends(pair, name.name());
        let [first, second] = BoxName::ALL.map(sign);
        Ok(Self {
            boxes: [first?, second?],
            authority,
            cookie_key: pair.write("syn-cookie.key", &"5a".repeat(32))?,
        })
    }

    /// What has signed the certificates of the boxes.
    pub const fn authority(&self) -> &Identity {
        &self.authority
    }

    /// The key and the certificate of a box.
    pub const fn identity(&self, name: BoxName) -> &Identity {
        let [first, second] = &self.boxes;
        match name {
            BoxName::Lb1 => first,
            BoxName::Lb2 => second,
        }
    }

    /// `both` as the file of one of them. It has all that both share, and differs from that of the other box in `ha.box`
    /// alone; but for the paths of certificate and key, because both boxes have one file system here. Where it has IPv6 in `mgmt`,
    /// each box has addresses of both families.
    #[must_use]
    pub fn config(&self, both: Config, name: BoxName) -> Config {
        let identity = self.identity(name);
        let sync = |one: BoxName| {
            let sync = json!({ "sync": one.sync().to_string() });
            (one.name().to_owned(), sync)
        };
        let boxes: Map<String, Value> = BoxName::ALL.map(sync).into_iter().collect();
        let of = |one: BoxName, address: IpAddr| json!({ "address": address, "box": one.name() });
        let mut snat = BoxName::ALL.map(|one| of(one, one.snat().into())).to_vec();
        let checks_from = BoxName::ALL.map(|one| of(one, one.checks_from().into()));
        let mut checks_from = checks_from.to_vec();
        if both.contains(&SNAT6.to_string()) {
            snat.extend(BoxName::ALL.map(|one| of(one, one.snat6().into())));
            checks_from.extend(BoxName::ALL.map(|one| of(one, one.checks_from6().into())));
        }
        let own = |mgmt: Keys| mgmt.set("snat", snat).set("checks_from", checks_from);
        both.network("mgmt", own)
            .set("syn_cookie_key", &self.cookie_key)
            .set("ha.box", name.name())
            .set("ha.boxes", boxes)
            .set("ha.marker", MARKER)
            .set("ha.ca", self.authority.certificate())
            .set("ha.certificate", identity.certificate())
            .set("ha.key", identity.key())
    }
}
