//! IP options: what is judged is what the definition says.

use lb_common::{
    verdict::DropReason,
    wire::{Slice, options::check},
};

use crate::{every, frames::options::judge, spread::Spread};

/// A list as senders make it, with a mistake here and there.
fn list(spread: &mut Spread) -> Vec<u8> {
    let bytes = spread.below(11) * 4;
    let mut list = Vec::new();
    while list.len() < bytes {
        let [any] = spread.bytes();
        let kind = [1, 1, 7, 68, 130, 133, 136, 148, any, 0, 131, 137][spread.below(12)];
        // The rarer ones only now and then: each ends the list.
        if matches!(kind, 0 | 131 | 137) && !spread.one_in(3) {
            continue;
        }
        list.push(kind);
        if kind > 1 {
            let room = bytes - list.len();
            let length = if spread.one_in(16) {
                usize::from(any % 50)
            } else {
                2 + spread.below(9).min(room.saturating_sub(1))
            };
            list.push(u8::try_from(length).unwrap());
            list.extend(spread.data(length.saturating_sub(2)));
        }
    }
    list.truncate(bytes);
    list
}

#[test]
fn a_list_of_options_is_judged_as_it_is_defined() {
    let mut found = [0; 3];
    every(30, |spread| {
        let list = list(spread);
        let wanted = judge(&list);
        let behind = spread.below(8);
        let mut bytes = [spread.data(34), list.clone(), spread.data(behind)].concat();
        let before = bytes.clone();
        let judged = check(&Slice::new(&mut bytes), list.len());
        assert_eq!(judged, wanted, "{list:?}");
        assert_eq!(bytes, before);
        found[match wanted {
            Ok(()) => 0,
            Err(DropReason::SourceRoute) => 1,
            Err(_) => 2,
        }] += 1;
    });
    assert!(found.iter().all(|&times| times > 5000), "{found:?}");
}
