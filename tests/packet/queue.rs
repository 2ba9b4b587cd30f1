//! Queues of free ids, as userspace fills them and turns them around.

use lb_common::{
    batch::MAX_IDS,
    maps::snat::{FLOWS_PER_ADDRESS, base},
};
use lb_tests::product::program::{DataPlane, IDS};
use lb_user::dataplane::snat_ports::lots;

use super::given::*;

/// A data plane whose only queue holds these ids.
fn holding(ids: &[u32]) -> DataPlane {
    let lb = DataPlane::new(CONFIG);
    lb.drain_free_ids();
    lb.object().fill(0, ids).expect("room in the queue");
    lb
}

#[privileged_test]
fn a_queue_holds_what_it_was_filled_with_in_order() {
    let all = base(0)..base(1);
    let lots = lots(FLOWS_PER_ADDRESS).expect("random numbers");
    let ids: Vec<u32> = lots.iter().map(|lot| base(0) + u32::from(*lot)).collect();
    let mut queued = holding(&ids).drain_free_ids();
    assert_eq!(queued, ids);
    queued.sort_unstable();
    assert_eq!(queued, all.collect::<Vec<_>>());
}

#[privileged_test]
fn a_queue_is_not_filled_beyond_its_room_nor_is_one_that_is_not_there() {
    let lb = DataPlane::new(CONFIG);
    let object = lb.object();
    object.fill(0, &[]).expect("nothing needs no room");
    object.fill(0, &[base(0)]).expect_err("it is full");
    assert_eq!(lb.drain_free_ids().len(), IDS);
    object.fill(1, &[base(1)]).expect_err("there is none");
    object.turn(1).expect_err("there is none");
}

/// Of any length: batches end within a turn and with it.
#[privileged_test]
fn a_turn_meets_every_id_and_ends_behind_the_one_it_began_with() {
    for length in [0, 1, 2, MAX_IDS - 1, MAX_IDS, MAX_IDS + 1, 3 * MAX_IDS, IDS] {
        let ids: Vec<u32> = (base(0)..).take(length).collect();
        let lb = holding(&ids);
        let met = lb.object().turn(0).expect("a turn");
        let found: Vec<u32> = (base(0)..base(1)).filter(|id| met.contains(*id)).collect();
        assert_eq!(found, ids);
        let mut turned = ids;
        turned.rotate_left(length.min(1));
        assert_eq!(lb.drain_free_ids(), turned, "{length} ids");
    }
}
