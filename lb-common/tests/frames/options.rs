//! Lists of options, read as they are defined.

use lb_common::verdict::DropReason;

/// The judgement of IP options by their definition (RFC 791 section 3.1).
pub fn judge(list: &[u8]) -> Result<(), DropReason> {
    match list {
        [] | [0, ..] => Ok(()),
        [1, rest @ ..] => judge(rest),
        [131 | 137, ..] => Err(DropReason::SourceRoute),
        [_, length, ..] if *length >= 2 => list
            .get(usize::from(*length)..)
            .map_or(Err(DropReason::Malformed), judge),
        _ => Err(DropReason::Malformed),
    }
}

/// What is left of IP options that may go on: a route or a time stamp becomes padding.
pub fn concealed(list: &[u8]) -> Vec<u8> {
    let (option, rest) = match list {
        [] | [0, ..] => return list.to_vec(),
        [1, ..] => list.split_at(1),
        [_, length, ..] => list.split_at(usize::from(*length)),
        [_] => unreachable!("an option without length: {list:?}"),
    };
    let left = match option[0] {
        7 | 68 => vec![1; option.len()],
        _ => option.to_vec(),
    };
    [left, concealed(rest)].concat()
}

/// Where the maximum segment size is in a list of TCP options, if that is whole (RFC 9293 section 3.2).
pub fn segment_size(list: &[u8]) -> Option<usize> {
    let behind = |bytes: usize| Some(bytes + segment_size(list.get(bytes..)?)?);
    match list {
        [2, 4, _, _, ..] => Some(2),
        [] | [0 | 2, ..] => None,
        [1, ..] => behind(1),
        [_, length, ..] if *length >= 2 => behind(usize::from(*length)),
        _ => None,
    }
}
