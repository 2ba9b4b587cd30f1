//! One in a connection's task ends that connection, one anywhere else ends the process.
//!
//! A process without one of its control threads looks alive and does half of its work. Its supervisor
//! starts a whole one instead, and no flow of the data plane notices.

use std::{
    cell::Cell,
    future::poll_fn,
    panic, process,
    task::{Context, Poll},
};

use tokio::task::{self, JoinHandle};

thread_local! {
    /// Whether this thread polls a connection's task.
    static IN_CONNECTION: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic aborts this process, but for those in tasks of [`spawn_connection`] and [`of_connection`].
pub fn abort_outside_connections() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        if !IN_CONNECTION.get() {
            process::abort();
        }
        tracing::error!(
            "a defect in lb has ended one connection, see the panic above; please report it"
        );
    }));
}

/// Starts the task of one connection on the current `LocalSet`. A panic ends this task alone: what its
/// future owns (descriptor, lease, leg, place among those that wait) is dropped, which gives it back.
pub fn spawn_connection(connection: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    task::spawn_local(of_connection(connection))
}

/// A connection's task, wherever it is started: see [`spawn_connection`].
pub async fn of_connection(connection: impl Future<Output = ()>) {
    let mut connection = std::pin::pin!(connection);
    poll_fn(|context| poll_inside(|context| connection.as_mut().poll(context), context)).await;
}

/// Polls with the mark of a connection, which goes also when that unwinds.
fn poll_inside(
    poll: impl FnOnce(&mut Context<'_>) -> Poll<()>,
    context: &mut Context<'_>,
) -> Poll<()> {
    struct Unmark;
    impl Drop for Unmark {
        fn drop(&mut self) {
            IN_CONNECTION.set(false);
        }
    }

    IN_CONNECTION.set(true);
    let _unmark = Unmark;
    poll(context)
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt as _,
        process::{Command, Output},
        rc::Rc,
        thread,
    };

    use tokio::{runtime::Builder, task::LocalSet};

    use super::*;

    /// Names the act that a test plays in a process of its own: the hook is the process's.
    const ACT: &str = "LB_TEST_PANIC";

    fn run_local(work: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, work);
    }

    /// Runs this test again with `act`, which ends that process.
    fn play(test: &str, act: &str) -> Output {
        let itself = env::current_exe().unwrap();
        let name = format!("system::panics::tests::{test}");
        let mut command = Command::new(itself);
        command.args(["--exact", &name, "--nocapture"]);
        command.env(ACT, act).output().unwrap()
    }

    /// Nothing else is in a thread that a panic would end silently.
    fn spawn_control() {
        let _ended = thread::spawn(|| panic!("in a thread")).join();
    }

    async fn lose_a_connection() {
        let lent = Rc::new(());
        let lease = Rc::clone(&lent);
        let lost = spawn_connection(async move {
            task::yield_now().await;
            let _held = lease;
            panic!("in a connection");
        });
        assert!(lost.await.unwrap_err().is_panic());
        assert_eq!(Rc::strong_count(&lent), 1, "what it had is back");
        spawn_connection(async {}).await.unwrap();
    }

    #[test]
    fn a_panic_in_a_connection_ends_that_connection_alone() {
        if env::var(ACT).is_ok() {
            abort_outside_connections();
            run_local(lose_a_connection());
            println!("the others go on");
            return;
        }
        let output = play("a_panic_in_a_connection_ends_that_connection_alone", "1");
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{stdout}{stderr}");
        assert!(stdout.contains("the others go on"), "{stdout}");
        assert!(stderr.contains("in a connection"), "{stderr}");
    }

    #[test]
    fn a_panic_anywhere_else_ends_the_process() {
        const NAME: &str = "a_panic_anywhere_else_ends_the_process";

        if let Ok(act) = env::var(ACT) {
            abort_outside_connections();
            match act.as_str() {
                "thread" => spawn_control(),
                // The mark of a connection does not outlive its own panic.
                "after" => run_local(async {
                    lose_a_connection().await;
                    let _ended = task::spawn_local(async { panic!("in a task") }).await;
                }),
                _ => panic!("in the main thread"),
            }
            println!("still there");
            return;
        }
        for act in ["thread", "after", "main"] {
            let output = play(NAME, act);
            assert_eq!(output.status.signal(), Some(6), "{act}: {output:?}");
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(!stdout.contains("still there"), "{act}");
        }
    }
}
