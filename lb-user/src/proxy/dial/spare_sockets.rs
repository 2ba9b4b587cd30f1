//! Sockets that a thread in the cell of the backends has made ahead. A socket stays in the namespace that it was
//! made in, so threads of other cells bind and connect them.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{net::TcpSocket, sync::Notify};

/// Those of one network, for all threads.
#[derive(Clone, Debug)]
pub(crate) struct SpareSockets(Arc<Stock>);

#[derive(Debug)]
struct Stock {
    /// How many are made ahead.
    most: usize,
    made: Mutex<Made>,
    /// Whenever there are few.
    wanted: Notify,
    /// Whenever more were made, or could not be.
    came: Notify,
}

#[derive(Debug, Default)]
struct Made {
    sockets: Vec<TcpSocket>,
    /// Why there were no more the last time.
    failure: Option<io::ErrorKind>,
}

impl SpareSockets {
    /// None so far, and so many at a time. The first one is made when it is wanted: a network that is not dialled
    /// has none.
    pub(crate) fn up_to(most: usize) -> Self {
        Self(Arc::new(Stock {
            most: most.max(1),
            made: Mutex::default(),
            wanted: Notify::new(),
            came: Notify::new(),
        }))
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of them, which is neither bound nor connected.
    ///
    /// # Errors
    ///
    /// The kernel's, where it makes no more.
    pub(super) async fn take(&self) -> io::Result<TcpSocket> {
        loop {
            // From here on none is missed.
            let came = self.0.came.notified();
            let (socket, left) = {
                let mut made = self.made();
                (made.sockets.pop(), made.sockets.len())
            };
            if left <= self.0.most / 4 {
                self.0.wanted.notify_one();
            }
            if let Some(socket) = socket {
                return Ok(socket);
            }
            came.await;
            let made = self.made();
            if let Some(failure) = made.failure.filter(|_| made.sockets.is_empty()) {
                return Err(failure.into());
            }
        }
    }

    /// Makes them where the calling thread is, for ever.
    pub(crate) async fn provide(self) {
        loop {
            self.0.wanted.notified().await;
            let lacks = self.0.most.saturating_sub(self.made().sockets.len());
            let mut failure = None;
            let more = (0..lacks).map_while(|_| {
                let socket = TcpSocket::new_v4();
                socket.map_err(|error| failure = Some(error.kind())).ok()
            });
            let more: Vec<TcpSocket> = more.collect();
            let mut made = self.made();
            made.sockets.extend(more);
            made.failure = failure;
            drop(made);
            self.0.came.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn they_are_made_ahead_and_others_follow() {
        let spare = SpareSockets::up_to(4);
        let maker = tokio::spawn(spare.clone().provide());
        tokio::task::yield_now().await;
        assert!(spare.made().sockets.is_empty(), "none is wanted yet");
        let mut taken = Vec::new();
        for _ in 0..100 {
            taken.push(spare.take().await.unwrap());
            assert!(spare.made().sockets.len() <= 4);
        }
        tokio::task::yield_now().await;
        assert!(!spare.made().sockets.is_empty());
        maker.abort();
    }

    #[tokio::test]
    async fn of_one_at_a_time_each_is_followed_by_the_next() {
        let spare = SpareSockets::up_to(0);
        tokio::spawn(spare.clone().provide());
        for _ in 0..3 {
            drop(spare.take().await.unwrap());
        }
    }

    /// Each that waits gets it, and the next one asks again.
    #[tokio::test]
    async fn where_none_can_be_made_the_error_is_known() {
        let spare = SpareSockets::up_to(4);
        let fails = async {
            spare.0.wanted.notified().await;
            spare.made().failure = Some(io::ErrorKind::OutOfMemory);
            spare.0.came.notify_waiters();
        };
        let (one, other, ()) = tokio::join!(spare.take(), spare.take(), fails);
        for result in [one, other] {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        }
        let none = timeout(Duration::from_millis(20), spare.take()).await;
        assert!(none.is_err(), "it waits for its turn");
        tokio::spawn(spare.clone().provide());
        assert!(spare.take().await.is_ok());
    }
}
