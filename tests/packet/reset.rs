//! Tests share loaded objects: whatever one leaves in the maps, the next finds what a new object has.

use std::collections::BTreeMap;

use aya::maps::MapInfo;
use lb_tests::{oracle::map_content::Content, product::program::DataPlane};
use lb_user::dataplane::object::{MAPS, PROGRAMS};

use super::{cookies, given::*, six};

/// With a flow log, so that there are events, and a shared VIP, so that there are hellos.
fn logged() -> String {
    let shared = format!("services:\n  {}", cookies::SERVICE);
    let config = CONFIG.replace("services:", &shared);
    format!("{config}log: {{ flows: /flows.json }}\n")
}

/// What every map holds, by name.
fn contents(lb: &DataPlane) -> BTreeMap<&'static str, Content> {
    let maps = lb.raw_maps().iter();
    maps.map(|(name, map)| (*name, map.take().expect(name)))
        .collect()
}

/// The names of the maps that do not hold the same in both.
fn differences(
    one: &BTreeMap<&'static str, Content>,
    other: &BTreeMap<&'static str, Content>,
) -> Vec<&'static str> {
    let mut names = MAPS.to_vec();
    names.retain(|name| one[name] != other[name]);
    names
}

/// Traces in every map: the programs' own, which are in the flow events and the hellos as well, and then everything else.
fn leave_traces(lb: &mut DataPlane) {
    establish(lb, CLIENT_A, 1024);
    cookies::leave_hello(lb);
    for (name, map) in lb.raw_maps() {
        map.scribble().expect(name);
    }
}

#[privileged_test]
fn whatever_a_test_leaves_the_next_one_finds_a_new_data_plane() {
    let logged = logged();
    let new = contents(&DataPlane::alone(&logged));
    let mut used = DataPlane::alone(&logged);
    leave_traces(&mut used);
    assert_eq!(
        differences(&contents(&used), &new),
        MAPS,
        "no map is spared"
    );

    // With the same configuration, with another one, and with one that it has had before.
    for text in [&*logged, six::given::CONFIG, &logged] {
        used = used.again(&logged);
        leave_traces(&mut used);
        used = used.again(text);
        let new = contents(&DataPlane::alone(text));
        let differences = differences(&contents(&used), &new);
        assert_eq!(
            differences,
            ["HASH_KEY", "LINE_KEY"],
            "each has keys of its own"
        );
    }
}

#[privileged_test]
fn the_programs_keep_nothing_outside_the_maps_that_are_cleared() {
    let lb = DataPlane::new(CONFIG);
    let mut others = Vec::new();
    for program in PROGRAMS {
        let info = lb.object().info(program).expect("the program's facts");
        let used = info.map_ids().expect("the ids").unwrap_or_default();
        for id in used {
            if lb.raw_maps().values().all(|map| map.id != id) {
                let map = MapInfo::from_id(id).expect("the map's facts");
                others.push(map.name_as_str().unwrap_or_default().to_owned());
            }
        }
    }
    others.sort_unstable();
    others.dedup();
    // Constants, and the log, which is off.
    assert_eq!(others, [".rodata", "AYA_LOGS"]);
}

#[privileged_test]
fn two_data_planes_at_a_time_have_nothing_in_common() {
    let mut one = DataPlane::new(CONFIG);
    let other = DataPlane::new(CONFIG);
    establish(&mut one, CLIENT_A, 1024);
    assert_eq!(one.maps.flow_lines.ids().count(), 1);
    assert_eq!(other.maps.flow_lines.ids().count(), 0);
    assert_ne!(one.maps_folder(), other.maps_folder());
}
