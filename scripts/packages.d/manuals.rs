//! Writes manual pages and shell completions into the directory that is given, from the program's own command
//! line: `cargo run --example manuals -- DIRECTORY`.

use std::io;
use std::path::PathBuf;

use clap_complete::Shell;

fn main() -> io::Result<()> {
    let place = std::env::args_os().nth(1).map(PathBuf::from);
    let place = place.ok_or_else(|| io::Error::other("which directory?"))?;
    std::fs::create_dir_all(&place)?;
    clap_mangen::generate_to(ironroot::cli::command(), &place)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut ironroot::cli::command(), "ironroot", &place)?;
    }
    Ok(())
}
