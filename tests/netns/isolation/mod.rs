//! One tenant attacks at a fixed rate, and another one is measured: every new connection of that one is
//! answered in time, and none of its established flows is lost.
//!
//! A test is named by its attack. Rates are constants that the ring of the attacker's NIC keeps up with, so
//! that nothing of the victim is lost in front of `lb`; what was achieved, and how much of it arrived, is
//! printed. How long the victim's connections took is printed beside the same without the attack, and never
//! asserted: other tests run on the same CPUs.

mod attack;
mod blind;
mod datagrams;
mod flood;
mod kind;
mod neighbours;
mod quota;
mod scene;
mod shared;
mod spoofed;
mod syn_flood;
mod tcp;
mod times;
mod victim;

use anyhow::{Result, ensure};

use self::{attack::Attack, scene::Scene, victim::Victim};

/// Measures `victim` without `attack` and beside it.
///
/// # Errors
///
/// When a connection of the victim was not answered in time, or a flow of it was lost.
fn endures(scene: &Scene<'_>, victim: &mut Victim<'_>, attack: &Attack<'_>) -> Result<()> {
    let without = victim.measure(victim::BEFORE)?;
    let broken: Vec<_> = without.iter().filter(|times| !times.is_whole()).collect();
    ensure!(broken.is_empty(), "without an attack: {broken:?}");
    let arrived = scene.arrived()?;
    let ((with, lost_beside), done) = attack.beside(scene.attacker(), || {
        std::thread::sleep(attack.lead);
        victim.measure_with_flows(victim::beside())
    })?;
    let arrived = scene.arrived()? - arrived;
    let mut lost = lost_beside;
    lost.extend(victim.lost());

    println!(
        "{}: {} per second, {:.0} achieved, {} steps in {:.1?}, {arrived} frames at the NIC",
        attack.name,
        attack.pace.per_second,
        done.per_second(),
        done.steps,
        done.elapsed,
    );
    for (without, with) in without.iter().zip(&with) {
        println!("{}: without {without}; with {with}", with.kind);
    }
    println!("{} flows, lost: {lost:?}", victim.flows());
    let broken: Vec<String> = with
        .iter()
        .filter(|times| !times.is_whole())
        .map(|times| format!("{}: {times}, {}", times.kind, times.why()))
        .collect();
    ensure!(
        broken.is_empty() && lost.is_empty(),
        "{} harms {}: {broken:#?}, {} flows lost: {lost:#?}",
        attack.name,
        victim.name(),
        lost.len(),
    );
    Ok(())
}
