//! How often a network is answered, and the MTU that a frame is answered with.

use lb_common::{rate::REFUSALS, reject::v4::Answers};

use crate::{flow::entry::now, maps::ANSWERS};

/// What this CPU keeps for its answers in the network `id`.
#[inline(always)]
fn answers(id: u16) -> Option<&'static mut Answers> {
    let answers = ANSWERS.get_ptr_mut(u32::from(id))?;
    // SAFETY: the pointer is this CPU's slot, which nothing else writes while the program runs, and
    // no caller holds another reference to it.
    Some(unsafe { &mut *answers })
}

/// Takes one of the refusals that this CPU may give in the network `id`.
#[inline(always)]
pub(crate) fn token(id: u16) -> bool {
    answers(id).is_some_and(|answers| answers.refusals.take(now(), REFUSALS))
}

/// Takes one of the replies to an echo request that this CPU may give in the network `id`.
#[inline(always)]
pub(crate) fn take_echo(id: u16) -> bool {
    answers(id).is_some_and(|answers| answers.echoes.take(now(), REFUSALS))
}

/// The network that no frame comes from: what is kept there belongs to the frame in hand.
const IN_HAND: u16 = 0;

/// Keeps the MTU that the frame in hand is too big for: an ICMP error to its sender may need it.
#[inline(always)]
pub(crate) fn note_mtu(mtu: u16) {
    if let Some(answers) = answers(IN_HAND) {
        answers.mtu = u32::from(mtu);
    }
}

/// The MTU that was kept.
#[inline(always)]
pub(crate) fn mtu_in_hand() -> Option<u32> {
    Some(answers(IN_HAND)?.mtu)
}
