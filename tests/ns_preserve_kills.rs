//! Sessions that are killed before one call of the kernel, while a place is filled or erased: what each leaves is
//! looked at, so that it is known where it was killed, and then a session has all or nothing. Needs root and strace.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
#[path = "support/loop_device.rs"]
mod loop_device;
#[path = "support/preserving.rs"]
mod preserving;
#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;
#[allow(dead_code)]
#[path = "support/session.rs"]
mod session;

use std::path::Path;

use ironroot::run::preserve::record;
use loop_device::LoopDevice;
use preserving::{Bench, entry, ext4, inside, killed};
use serde_json::{Value, json};

/// How many files the image brings.
const FILES: usize = 61;

const IMAGE: &str = "mkdir srv; for i in $(seq 60); do echo $i >srv/$i; chown $i:7 srv/$i; done
    head -c 3000000 /dev/urandom >srv/big; head -c 700000 /dev/urandom >single; chown 3:4 single";

/// What is on the source: files of the copy that waits, files at the place, and the stage of its record.
#[derive(Debug, PartialEq, Eq)]
struct State {
    copied: Option<usize>,
    placed: Option<usize>,
    record: Option<String>,
}

fn state(device: &LoopDevice, place: &str) -> State {
    let id = record::id(Path::new(place));
    let script = format!(
        r#"count() {{ if [ -d "$1" ]; then (cd "$1"; find . -name .ironroot -prune -o -type f -print | wc -l); elif [ -e "$1" ]; then echo 1; else echo none; fi; }}
        count $m/.ironroot/seed/{id}; count $m/{place}; cat $m/.ironroot/records/{id}.json 2>/dev/null || true"#
    );
    let text = inside(device, &script);
    let mut lines = text.splitn(3, '\n');
    let mut count = || lines.next().unwrap().trim().parse().ok();
    let (copied, placed) = (count(), count());
    let record = lines.next().unwrap_or_default();
    let record = serde_json::from_str::<Value>(record).ok();
    State {
        copied,
        placed,
        record: record.map(|r| r["stage"].as_str().unwrap().to_owned()),
    }
}

fn is_moving(state: &State) -> bool {
    state.record.as_deref() == Some("placing")
}

/// All of it in one number.
const LOOK: &str = r#"sum() { if [ -d "$1" ]; then (cd "$1"; find . -name .ironroot -prune -o -type f -printf '%p %U:%G %m\n' -exec sha256sum {} \; | sort); else stat -c '%u:%g %a' "$1"; sha256sum <"$1"; fi; }"#;

/// Whether the session was killed where it should have been.
type Judge = fn(&State) -> bool;

#[test]
fn a_kill_at_each_step_of_filling_leaves_all_or_nothing() {
    let bench = Bench::new(IMAGE);
    // The call, and what has to be there when the session was killed before it. The calls before these are for the root and for ironroot's own directories.
    let directory: &[(&str, usize, Judge)] = &[
        // The directory of the copy is not there yet.
        ("mkdirat", 5, |s| s.copied.is_none() && s.placed.is_none()),
        ("fchown", 2, |s| s.copied == Some(1) && s.placed.is_none()),
        ("fchown", 31, |s| s.copied == Some(30) && s.placed.is_none()),
        ("fchown", FILES + 1, |s| {
            s.copied == Some(FILES) && s.placed.is_none()
        }),
        // Complete, and not known to be on the medium; then that as well, without its name.
        ("syncfs", 1, |s| {
            s.copied == Some(FILES) && s.placed.is_none()
        }),
        ("renameat", 1, |s| {
            s.copied == Some(FILES) && s.placed.is_none() && s.record.is_none()
        }),
        // It has its name, and no record says so.
        ("syncfs", 2, |s| {
            s.copied.is_none() && s.placed == Some(FILES) && s.record.is_none()
        }),
        ("renameat", 2, |s| {
            s.placed == Some(FILES) && s.record.is_none()
        }),
    ];
    // The root of a file system: what is in it has no other name for the time being, and goes one by one.
    let whole: &[(&str, usize, Judge)] = &[
        ("fchown", 31, |s| {
            s.copied == Some(30) && s.placed == Some(0) && s.record.is_none()
        }),
        ("renameat", 1, |s| {
            s.copied == Some(FILES) && s.placed == Some(0) && s.record.is_none()
        }),
        ("renameat", 2, |s| {
            s.copied == Some(FILES) && s.placed == Some(0) && is_moving(s)
        }),
        ("renameat", 32, |s| {
            s.copied == Some(FILES - 30) && s.placed == Some(30) && is_moving(s)
        }),
        // All are moved; the directory that they came from, and what the record says, are left.
        ("unlinkat", 2, |s| {
            s.copied == Some(0) && s.placed == Some(FILES) && is_moving(s)
        }),
        ("renameat", FILES + 2, |s| {
            s.copied.is_none() && s.placed == Some(FILES) && is_moving(s)
        }),
    ];
    let single: &[(&str, usize, Judge)] = &[
        ("fchown", 2, |s| s.copied == Some(1) && s.placed.is_none()),
        ("renameat", 1, |s| s.copied == Some(1) && s.placed.is_none()),
        ("renameat", 2, |s| {
            s.copied.is_none() && s.placed == Some(1) && s.record.is_none()
        }),
    ];
    for (target, place, kind, kills) in [
        ("/srv", "a", "dir", directory),
        ("/srv", "", "dir", whole),
        ("/single", "f", "file", single),
    ] {
        let entries = |device: &LoopDevice| {
            let mut more = json!({ "seed": "FromImageOnce", "kind": kind });
            if !place.is_empty() {
                more["subdir"] = json!(place);
            }
            json!([entry(target, device, more)])
        };
        let look = format!(r#"{LOOK}; echo "sum=$(sum "$root{target}" | sha256sum)""#);
        let device = ext4(24, &[]);
        let good = bench.good(entries(&device), &look);
        for (call, n, judge) in kills {
            let what = format!("{target} {place:?}: {call} {n}");
            let device = ext4(24, &[]);
            assert!(
                killed(&bench, entries(&device), call, *n),
                "{what}: never came there"
            );
            let left = state(&device, place);
            assert!(judge(&left), "{what}: {left:?}");
            let seen = bench.good(entries(&device), &look);
            assert_eq!(seen.fact("sum"), good.fact("sum"), "{what}");
            let files = if kind == "file" { 1 } else { FILES };
            let ready = State {
                copied: None,
                placed: Some(files),
                record: Some("ready".to_owned()),
            };
            assert_eq!(state(&device, place), ready, "{what}");
            // Once, whatever happened: what the machine removes now does not come back.
            if kind == "dir" && (*call, *n) == ("renameat", 2) {
                bench.good(entries(&device), r#"rm "$root/srv/7""#);
                let seen = bench.good(
                    entries(&device),
                    r#"echo "seven=$(ls "$root/srv/7" 2>/dev/null)""#,
                );
                assert_eq!(seen.fact("seven"), "", "{what}");
            }
        }
    }
}

#[test]
fn a_kill_at_each_step_of_erasing_shows_nothing_of_another_claim() {
    let bench = Bench::new("mkdir srv");
    let play = |claim: &str, entries: Value, look: &str| {
        let mut config = bench.config(entries);
        config["metadata"]["claim"] = json!(claim);
        bench.play_config(&config, look)
    };
    let list = r#"echo "list=$(cd "$root/srv"; find . -name .ironroot -prune -o -type f -print | tr '\n' ' ')"; echo "mode=$(stat -c %a "$root/srv")""#;
    let owns = r#"cd "$root/srv"; for i in $(seq 20); do mkdir d$i; echo mine >d$i/f; done; echo mine >f; chmod 0711 ."#;
    // The call; how many files are left then; the stage of the record.
    for (place, call, n, files, stage) in [
        // Nothing is written down yet: nothing is lost.
        ("t", "renameat", 1, Some(21), "ready"),
        ("t", "unlinkat", 2, Some(21), "erasing"),
        ("t", "unlinkat", 21, None, "erasing"),
        // All of it is gone, and the record does not say so yet.
        ("t", "renameat", 2, Some(0), "erasing"),
        ("", "renameat", 1, Some(21), "ready"),
        ("", "unlinkat", 2, Some(21), "erasing"),
        ("", "unlinkat", 21, None, "erasing"),
        // The root has the mode of its last owner still.
        ("", "fchown", 2, Some(0), "erasing"),
        ("", "renameat", 2, Some(0), "erasing"),
    ] {
        let what = format!("{place:?}: {call} {n}");
        let device = ext4(16, &[]);
        let with = |other: &str| {
            let mut more = json!({ "claimBound": true, "otherClaim": other });
            if !place.is_empty() {
                more["subdir"] = json!(place);
            }
            json!([entry("/srv", &device, more)])
        };
        assert_eq!(play("a", with("Refuse"), owns).ended.code, Some(0));
        // The claim of a bench is another one.
        assert!(
            killed(&bench, with("Erase"), call, n),
            "{what}: never came there"
        );
        let left = state(&device, place);
        assert_eq!(left.record.as_deref(), Some(stage), "{what}");
        match files {
            Some(0) => assert!(matches!(left.placed, None | Some(0)), "{what}: {left:?}"),
            Some(files) => assert_eq!(left.placed, Some(files), "{what}"),
            None => assert!(matches!(left.placed, Some(1..21)), "{what}: {left:?}"),
        }
        if stage == "ready" {
            play("c", with("Refuse"), "").failed_with(16, &["belongs to claim a"]);
            let seen = play("a", with("Refuse"), "cat $root/srv/f $root/srv/d20/f");
            assert_eq!(
                seen.text.matches("mine\n").count(),
                2,
                "{what}: {}",
                seen.text
            );
            continue;
        }
        // Whoever comes next, and may erase nothing: not even the old owner finds half of it.
        let next = if n % 2 == 0 { "a" } else { "c" };
        let seen = play(next, with("Refuse"), list);
        assert_eq!(seen.ended.code, Some(0), "{what}: {}", seen.ended.stderr);
        assert_eq!(
            (seen.fact("list"), seen.fact("mode")),
            ("", "755"),
            "{what}"
        );
        play("d", with("Refuse"), "").failed_with(16, &[&format!("belongs to claim {next}")]);
    }
}
