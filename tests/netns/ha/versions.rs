//! A peer that speaks other versions of the synchronisation: each box serves alone, and says which one to upgrade. openssl is the peer,
//! with the certificate of the other box.

use std::fs;

use anyhow::{Context as _, Result};
use lb_tests::{
    poll,
    process::Process,
    topology::{BoxName, Topology, TwoBoxes},
};

use super::{Boxes, SYNCED, TAKEN_OVER};

/// The length of what follows, and the greeting of `lb2` with version 9.0.0 of `lb`, which speaks the versions 7 to 9.
const GREETING: &[u8] = b"\0\0\0\x0c\x09\x07\x03lb2\x059.0.0";
const FOUND: &str =
    "box lb2 has lb 9.0.0 and speaks the versions 7 to 9 of the synchronisation, this one has lb";

/// openssl in the place of the second box: what it says first is the greeting.
fn peer(pair: &TwoBoxes, boxes: &Boxes<'_>, words: &str) -> Result<Process> {
    let site = pair.site(BoxName::Lb2);
    let greeting = site.dir().join("greeting");
    fs::write(&greeting, GREETING).context("write the greeting")?;
    let identity = boxes.group.identity(BoxName::Lb2);
    let line = format!(
        "exec openssl {words} -quiet -cert {} -key {} -CAfile {} < {}",
        identity.certificate().display(),
        identity.key().display(),
        boxes.group.authority().certificate().display(),
        greeting.display()
    );
    Process::start(&site.lb.path(), site.dir(), "openssl", "sh", &["-c", &line])
}

/// Waits until the first box names the versions where it stands in a session of this direction.
fn wait_for_versions(boxes: &Boxes<'_>, direction: &str) -> Result<()> {
    let mut error = String::new();
    let named = poll::until("the versions of both boxes", SYNCED, || {
        let (status, is_complete) = boxes.ha_status(BoxName::Lb1)?;
        error = status[direction]["session"]["error"].to_string();
        let ends = error.ends_with("and speaks 1 to 1: upgrade the older one\"");
        Ok((error.contains(FOUND) && ends && !is_complete).then_some(()))
    });
    named.with_context(|| error)
}

/// It dials, and is dialled; the box with the marker goes on, and has its peer again when that is of its own version.
#[privileged_test]
fn a_peer_of_another_version_is_named() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    boxes.second.kill()?;
    // Else the end of its session may be what is said last.
    poll::until("the end of the session", SYNCED, || {
        let (status, _) = boxes.ha_status(BoxName::Lb1)?;
        Ok(status["sending"]["session"]["since_seconds"]
            .is_null()
            .then_some(()))
    })?;
    let [first, second] = BoxName::ALL.map(BoxName::sync);
    let dials = peer(
        &pair,
        &boxes,
        &format!("s_client -connect {first} -verify_return_error"),
    )?;
    wait_for_versions(&boxes, "sending")?;
    drop(dials);
    let words = format!("s_server -accept {second} -Verify 1 -verify_return_error");
    let is_dialled = peer(&pair, &boxes, &words)?;
    wait_for_versions(&boxes, "receiving")?;
    boxes.wait_until_served_by(BoxName::Lb1, TAKEN_OVER)?;
    drop(is_dialled);

    let config = boxes.group.config(super::config(&pair), BoxName::Lb2);
    boxes.second.restart(&config)?;
    boxes.wait_for_replicas(BoxName::Lb2, 0)?;
    poll::until("the peer of its own version", SYNCED, || {
        let (_, is_complete) = boxes.ha_status(BoxName::Lb1)?;
        Ok(is_complete.then_some(()))
    })
}
