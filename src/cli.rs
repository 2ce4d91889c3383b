//! Dispatch.

use std::process::ExitCode;

/// The program.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
