//! What `scripts/packages` makes of the command line: the shells load the completions and complete words with them, and
//! the manual pages are in order. Needs bash, fish, zsh and mandoc.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::Path;
use std::process::{Command, Output};

/// As `scripts/packages.d/manuals.rs` makes them.
fn manuals() -> tempfile::TempDir {
    use clap_complete::Shell;
    let place = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(ironroot::cli::command(), &place).unwrap();
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut command = ironroot::cli::command();
        clap_complete::generate_to(shell, &mut command, "ironroot", place.path()).unwrap();
    }
    place
}

/// Runs `script` with the directory of the completions as its first argument.
fn shell(program: &[&str], script: &str, place: &Path) -> Output {
    let built = Path::new(env!("CARGO_BIN_EXE_ironroot")).parent().unwrap();
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    Command::new("timeout")
        .arg("60")
        .args(program)
        .args(["-c", script])
        .args((program[0] == "bash" || program[0] == "zsh").then_some("shell"))
        .arg(place)
        .env("HOME", place)
        .env("TERM", "dumb")
        // fish completes only words of programs that are there.
        .env("PATH", path)
        .output()
        .unwrap()
}

#[track_caller]
fn says(out: &Output, wanted: &str) {
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        text.lines().any(|line| line.trim_end() == wanted),
        "no {wanted:?} in:\n{text}\n{said}"
    );
    assert_eq!(said, "");
}

#[test]
fn bash_completes_a_command_and_an_option() {
    let place = manuals();
    let script = r#". "$1/ironroot.bash"
        complete -p ironroot >/dev/null
        for words in "ins" "install --over"; do
            COMP_WORDS=(ironroot $words) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _ironroot ironroot "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
            echo "${COMPREPLY[*]}"
        done"#;
    let out = shell(&["bash", "--norc"], script, place.path());
    says(&out, "install");
    says(&out, "--overwrite");
}

#[test]
fn fish_completes_a_command_and_an_option() {
    let place = manuals();
    let script = r#"set -p fish_complete_path $argv[1]
        complete -C "ironroot ins" | string replace -r '\t.*' ''
        complete -C "ironroot install --over" | string replace -r '\t.*' ''"#;
    let out = shell(&["fish"], script, place.path());
    says(&out, "install");
    says(&out, "--overwrite");
}

/// zsh completes only where somebody types: a shell at a terminal gets the keys, and prints the line that came of them.
#[test]
fn zsh_completes_a_command_and_an_option() {
    let place = manuals();
    let script = r#"zmodload zsh/zpty
        zpty typing "zsh -f -i"
        zpty -w typing "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; print -r -- \$((40 + 2)) ready"
        zpty -r typing seen "*42 ready*"
        for words in "ins" "install --over"; do
            # Tab; then to the beginning of the line, where it becomes the words of another command.
            zpty -w -n typing "ironroot $words"$'\t'$'\C-a'"print -r -- \$((40 + 3)) "$'\n'
            zpty -r typing seen "*43 ironroot*"$'\n'
            print -r -- "${${seen##*43 ironroot }//[[:cntrl:]]/}"
        done
        zpty -d typing"#;
    let out = shell(&["zsh", "-f"], script, place.path());
    says(&out, "install");
    says(&out, "install --overwrite");
}

#[test]
fn the_manual_pages_render_without_a_warning() {
    let place = manuals();
    let mut count = 0;
    for entry in std::fs::read_dir(&place).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "1") {
            continue;
        }
        count += 1;
        let out = Command::new("mandoc")
            .args(["-T", "lint", "-W", "warning"])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        // clap_mangen puts the command in the date's place, which is printed as it is.
        let warnings: Vec<&str> = said
            .lines()
            .filter(|line| !line.contains("cannot parse date"))
            .collect();
        assert_eq!(warnings, [""; 0], "{}", path.display());
    }
    assert!(count > 5, "{count}");
}
