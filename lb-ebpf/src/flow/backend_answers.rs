//! How backends answer SYNs: what passive checks go by.

use lb_common::maps::backend_answers::{BackendAnswers, client_bit};

use crate::{
    flow::{
        atomic,
        entry::{Entry, now},
    },
    maps::BACKEND_ANSWERS,
};

macro_rules! count {
    ($answers:expr, $field:ident) => {{
        // SAFETY: a field of a live value of an array map, aligned to four bytes.
        let field = unsafe { &raw mut (*$answers).$field };
        // SAFETY: the same.
        let _before = unsafe { atomic::add(field, 1) };
    }};
}

/// The client of the flow repeats its SYN, and the backend has not answered.
#[inline(always)]
pub(crate) fn unanswered(entry: &Entry) {
    if let Some(answers) = answers(entry) {
        count!(answers, unanswered);
        note_client(answers, entry);
    }
}

/// The backend has refused the SYN of the flow.
#[inline(always)]
pub(crate) fn refused(entry: &Entry) {
    if let Some(answers) = answers(entry) {
        count!(answers, refused);
        note_client(answers, entry);
    }
}

/// The flow goes from the backend to another one.
#[inline(always)]
pub(crate) fn redispatched(entry: &Entry) {
    if let Some(answers) = answers(entry) {
        count!(answers, redispatched);
    }
}

/// The backend has answered the SYN of a flow.
#[inline(always)]
pub(crate) fn answered(backend_id: u32) {
    if let Some(answers) = BACKEND_ANSWERS.get_ptr_mut(backend_id) {
        // SAFETY: a field of a live value of an array map; see `BackendAnswers` for races.
        let last = unsafe { &raw mut (*answers).last_answer };
        // SAFETY: the same.
        unsafe { last.write_volatile(now()) };
    }
}

#[inline(always)]
fn answers(entry: &Entry) -> Option<*mut BackendAnswers> {
    BACKEND_ANSWERS.get_ptr_mut(entry.backend_id())
}

#[inline(always)]
fn note_client(answers: *mut BackendAnswers, entry: &Entry) {
    let bit = client_bit(entry.client().raw());
    // SAFETY: a field of a live value of an array map, aligned to eight bytes; see `BackendAnswers` for races.
    let clients = unsafe { &raw mut (*answers).clients };
    // SAFETY: the same.
    let known = unsafe { clients.read_volatile() };
    // SAFETY: the same.
    unsafe { clients.write_volatile(known | bit) };
}
