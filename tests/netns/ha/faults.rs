//! A box that loses its power while something else is wrong: what had come to the other one lives on.

use std::{
    fs::{self, File},
    io::Write as _,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    topology::{BoxName, Topology, TwoBoxes},
    traffic::talks::Talks,
};

use super::{
    Boxes, PROBE, config,
    connections::{COUNT, Connections},
};
use crate::{lifecycle::clock::Wall, operate::churn::Disk};

/// A day, for the clock of a box.
const SKEWS: [&str; 2] = ["+1d", "-1d"];
/// Of a hundred frames on the sync LAN.
const LOST: u32 = 5;
/// Connections that the other box does not hear of, and how long they wait for an answer.
const LATER: usize = 10;
const SILENT: Duration = Duration::from_secs(1);

/// Flows come to the other box through loss.
#[privileged_test]
fn connections_outlive_their_box_with_loss_between_the_boxes() -> Result<()> {
    let pair = Topology::pair()?;
    let boxes = Boxes::start(&pair)?;
    pair.sync.lose_some(LOST)?;
    outlive(&pair, boxes)
}

/// What the other box has heard lives on; what was opened when it heard nothing more does not.
#[privileged_test]
fn what_came_before_a_loss_of_one_direction_lives_on() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let connections = Connections::open(&pair)?;
    boxes.wait_for_replicas(BoxName::Lb2, COUNT)?;
    pair.sync.cut_from(BoxName::Lb1)?;
    let mut later = Talks::open(pair.client(), PROBE, LATER, "later")?;
    boxes.fail_over()?;
    let broken = later.exchange(SILENT).broken;
    ensure!(broken.len() == LATER, "{broken:?}");
    connections.ensure_alive()?;
    connections.close()
}

/// Times of flows are those of clocks that nothing sets: the date of the other box is set while it has the flows of this one.
#[privileged_test]
fn connections_outlive_their_box_with_another_date() -> Result<()> {
    for skew in SKEWS {
        let pair = Topology::pair()?;
        let wall = Wall::new(pair.site(BoxName::Lb2).dir())?;
        let words = wall.words()?;
        pair.give_marker(BoxName::Lb1)?;
        let boxes =
            Boxes::start_through(&pair, &config(&pair), &words.each_ref().map(String::as_str))?;
        // Certificates are good for a time: the session is there before.
        boxes.wait_for_replicas(BoxName::Lb2, 0)?;
        wall.set(skew)?;
        outlive(&pair, boxes).context(skew)?;
    }
    Ok(())
}

/// A box whose state folder has no room for a byte has the flows of the other one, and goes on with them.
#[privileged_test]
fn connections_outlive_their_box_with_a_full_disk() -> Result<()> {
    let pair = Topology::pair()?;
    let folder = format!("/var/lib/lb/{}", pair.site(BoxName::Lb2).run());
    fs::create_dir_all(&folder).with_context(|| folder.clone())?;
    let _disk = Disk::mount(&folder)?;
    let boxes = Boxes::start(&pair)?;
    fill(&format!("{folder}/room"))?;
    outlive(&pair, boxes)
}

/// Writes until nothing more fits.
fn fill(path: &str) -> Result<()> {
    let mut file = File::create(path).with_context(|| path.to_owned())?;
    while file.write_all(&[0; 512]).is_ok() {}
    ensure!(fs::metadata(path)?.len() > 0, "nothing is written");
    Ok(())
}

/// Opens connections, and has them live on at the second box.
fn outlive(pair: &TwoBoxes, mut boxes: Boxes<'_>) -> Result<()> {
    let connections = Connections::open(pair)?;
    boxes.wait_for_replicas(BoxName::Lb2, COUNT)?;
    boxes.fail_over()?;
    connections.ensure_alive()?;
    connections.close()
}
