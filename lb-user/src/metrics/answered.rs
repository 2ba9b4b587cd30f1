//! How requests to `admin.http` were answered.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

/// The answers that there are, by their status.
const STATUSES: [StatusCode; 7] = [
    StatusCode::OK,
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::MISDIRECTED_REQUEST,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// How many answers there were, by their status.
#[derive(Debug, Default)]
pub(crate) struct Answered([AtomicU64; STATUSES.len()]);

impl Answered {
    /// Counts one.
    pub(crate) fn count(&self, status: StatusCode) {
        if let Some(at) = STATUSES.iter().position(|known| *known == status) {
            self.0[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each status and its answers.
    pub(super) fn read(&self) -> impl Iterator<Item = (StatusCode, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        STATUSES.into_iter().zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_their_status() {
        let answered = Answered::default();
        answered.count(StatusCode::OK);
        answered.count(StatusCode::OK);
        answered.count(StatusCode::IM_A_TEAPOT);
        let all: u64 = answered.read().map(|(_, count)| count).sum();
        assert_eq!(
            (answered.read().next(), all),
            (Some((StatusCode::OK, 2)), 2)
        );
    }
}
