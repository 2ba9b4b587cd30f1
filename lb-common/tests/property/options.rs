//! IP options: what is judged and what is hidden follows the definition.

use lb_common::{
    verdict::DropReason,
    wire::{
        Slice,
        checksum::full,
        options::{check, conceal},
    },
};

use crate::{
    every,
    frames::{
        options::{concealed, judge},
        put,
    },
    spread::Spread,
};

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

/// What goes to a client: nothing of the way that the packet took, and the checksum of a header made so.
#[test]
fn a_concealed_list_has_the_checksum_of_one_made_so() {
    let mut hidden = 0;
    every(31, |spread| {
        let list = list(spread);
        if judge(&list).is_err() {
            return;
        }
        let behind = spread.below(8);
        let (head, tail) = (spread.data(34), spread.data(behind));
        let sealed = |list: &[u8]| {
            let mut bytes = [&head, list, &tail].concat();
            put(&mut bytes, 24, 0);
            let sum = full(&bytes[14..34 + list.len()], 0).get();
            put(&mut bytes, 24, sum);
            bytes
        };
        let mut bytes = sealed(&list);
        let before = bytes.clone();
        assert_eq!(conceal(&Slice::new(&mut bytes), list.len()), Some(()));
        assert_eq!(bytes, sealed(&concealed(&list)), "{list:?}");
        hidden += u32::from(bytes != before);
    });
    assert!(hidden > 5000, "{hidden} lists had anything to hide");
}
