//! Golden plans: each folder of tests/cases is a machine (`facts.json`), a wish (`config.json`) and what must
//! come out (`plan.txt` or `refusal.txt`). A new case needs no Rust: make a folder, run with `UPDATE=1`, and
//! read what was written before it is committed.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ironroot::config::{parse, source};
use ironroot::error::{Failure, describe};
use ironroot::host::Facts;
use ironroot::plan;

/// What comes out, and the name of the file that it belongs to.
fn outcome(case: &Path) -> (&'static str, String) {
    let text = fs::read(case.join("config.json")).unwrap();
    let facts: Facts = serde_json::from_slice(&fs::read(case.join("facts.json")).unwrap())
        .unwrap_or_else(|e| panic!("{}/facts.json: {e}", case.display()));
    let planned = parse::parse(&text)
        .map_err(|problems| source::refuse("config.json", &problems))
        .and_then(|config| source::interpret(&config, "config.json", &text))
        .and_then(|request| plan::plan(&request, &facts).map_err(Failure::from));
    match planned {
        Ok(plan) => {
            let mut text = format!("{}\n", plan.summary);
            for (i, line) in plan.lines().iter().enumerate() {
                writeln!(text, "  {}. {line}", i + 1).unwrap();
            }
            for note in &plan.notes {
                writeln!(text, "note: {note}").unwrap();
            }
            ("plan.txt", text)
        }
        Err(f) => (
            "refusal.txt",
            format!("exit {}\n{}\n", f.class().exit_code(), describe(&f)),
        ),
    }
}

#[test]
fn every_case_comes_out_as_written() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = String::new();
    let mut seen = 0;
    let mut folders: Vec<_> = fs::read_dir(&cases)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    folders.sort();
    for case in folders {
        let (name, text) = outcome(&case);
        let other = if name == "plan.txt" {
            "refusal.txt"
        } else {
            "plan.txt"
        };
        seen += 1;
        if update {
            let _ = fs::remove_file(case.join(other));
            fs::write(case.join(name), &text).unwrap();
            continue;
        }
        let wanted = fs::read_to_string(case.join(name)).unwrap_or_default();
        if wanted != text || case.join(other).exists() {
            write!(
                wrong,
                "\n{}/{name}:\nwanted:\n{wanted}\ngot:\n{text}",
                case.display()
            )
            .unwrap();
        }
    }
    assert!(seen >= 20, "only {seen} cases were found");
    assert!(wrong.is_empty(), "{wrong}");
}

/// The planner is a function: the same question gives the same answer, whatever was asked before.
#[test]
fn the_same_question_gives_the_same_answer() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    for case in fs::read_dir(&cases).unwrap().map(|e| e.unwrap().path()) {
        assert_eq!(outcome(&case), outcome(&case), "{}", case.display());
    }
}
