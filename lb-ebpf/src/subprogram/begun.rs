//! What a hello has begun before.

/// The flow that the same hello has opened before, with its id, of 30 bits at most.
#[derive(Clone, Copy)]
pub(crate) enum Begun {
    /// There is none.
    Nothing,
    /// Its backend still has time to answer.
    Waiting(u32),
    /// Its backend has had it.
    Unanswered(u32),
    /// Another CPU changes it.
    Raced,
}

impl Begun {
    const KIND_SHIFT: u32 = 30;
    const WAITING: u32 = 1;
    const UNANSWERED: u32 = 2;
    const RACED: u32 = 3;

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Waiting(id) => Self::WAITING << Self::KIND_SHIFT | id,
            Self::Unanswered(id) => Self::UNANSWERED << Self::KIND_SHIFT | id,
            Self::Raced => Self::RACED << Self::KIND_SHIFT,
        }
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        let id = number & !(u32::MAX << Self::KIND_SHIFT);
        match number >> Self::KIND_SHIFT {
            0 => Self::Nothing,
            Self::WAITING => Self::Waiting(id),
            Self::UNANSWERED => Self::Unanswered(id),
            _ => Self::Raced,
        }
    }
}
