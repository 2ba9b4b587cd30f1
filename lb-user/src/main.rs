//! `lb`: parse the arguments, dispatch.

use std::process::ExitCode;

fn main() -> ExitCode {
    lb_user::cli::main()
}
