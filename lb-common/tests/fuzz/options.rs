//! IP options out of any bytes.

use lb_common::{
    verdict::DropReason,
    wire::{
        Slice,
        options::{MAX_BYTES, check, conceal},
    },
};

use crate::{
    each_input,
    frames::options::{concealed, judge},
};

/// Where the options of an untagged frame begin.
const FIRST: usize = 34;

#[test]
fn ip_options() {
    each_input(|how, input| {
        let bytes = usize::from(how) % (MAX_BYTES + 1);
        // Kinds and lengths that mean something are small, but for the routes.
        let few = input.iter().map(|&byte| match how {
            ..128 => byte,
            _ => [0, 1, 1, 1, 2, 3, 4, 7, 8, 9, 11, 131, 137][usize::from(byte) % 13],
        });
        let mut frame: Vec<u8> = few.collect();
        let before = frame.clone();
        let judged = check(&Slice::new(&mut frame), bytes);
        assert_eq!(frame, before);
        match frame.get(FIRST..FIRST + bytes) {
            Some(list) => {
                assert_eq!(judged, judge(list));
                let done = conceal(&Slice::new(&mut frame), bytes);
                assert_eq!(frame[FIRST + bytes..], before[FIRST + bytes..]);
                if judged.is_ok() {
                    assert_eq!(done, Some(()));
                    let list = concealed(&before[FIRST..FIRST + bytes]);
                    assert_eq!(frame[FIRST..FIRST + bytes], list);
                }
                bytes > 2
            }
            None => {
                let list = frame.get(FIRST..).unwrap_or_default();
                let is_route = |judged| judged == Err(DropReason::SourceRoute);
                assert_eq!(is_route(judged), is_route(judge(list)));
                false
            }
        }
    });
}
