//! `--confirm`: the operator presses Enter in time, or a first start is undone.

use std::{io, thread, time::Duration};

use anyhow::{Context as _, Result};
use tokio::sync::oneshot;

use crate::{config::time_text, network::cell_thread, system::output};

/// Prompts on the terminal; the answer arrives from a thread that reads one line.
pub(super) fn ask(patience: Duration) -> Result<oneshot::Receiver<bool>> {
    output::print_error(format_args!(
        "Press Enter within {} to keep this; otherwise everything is taken down again.",
        time_text(Duration::from_secs(patience.as_secs()))
    ));
    let (answer, asked) = oneshot::channel();
    let work = move |()| {
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        if matches!(read, Ok(bytes) if bytes > 0) {
            // The receiver may be gone: the time is over.
            let _late: Result<(), bool> = answer.send(true);
        } else {
            // Without a terminal the operator cannot confirm: the deadline decides.
            thread::sleep(patience);
        }
    };
    cell_thread::start("confirm".to_owned(), None, || Ok(()), work)
        .context("start the thread that waits for Enter")?;
    Ok(asked)
}

/// Waits for the answer, if there was a prompt.
pub(super) async fn wait(confirmed: &mut Option<oneshot::Receiver<bool>>) -> bool {
    match confirmed {
        Some(answer) => answer.await.unwrap_or(false),
        None => false,
    }
}
