//! Dispatch only: the library is the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ironroot::cli::main()
}
