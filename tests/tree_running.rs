//! Trees that change while they are copied. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod tree_support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ironroot::error::chain;
use ironroot::image::tree::{LeftOut, RunningCopy, copy_running, measure_running};
use ironroot::sys::beneath::Root;
use tree_support::{assert_same, directory, isolated, shell, torture, walk, without_trusted};

fn copied(from: &Root, to: &Root, left_out: &LeftOut) -> RunningCopy {
    let progress = AtomicU64::new(0);
    let copied = copy_running(from, to, left_out, (&progress, None));
    copied.unwrap_or_else(|failure| panic!("{}", chain(&failure)))
}

#[test]
fn a_tree_that_rests_is_copied_as_it_is_but_for_the_session() {
    isolated("mode=0755", |place| {
        let (top, from) = directory(place, "from");
        let (copy, to) = directory(place, "to");
        torture::make(&top);
        shell(
            "mkdir -p proc sys/x run tmp dev var/tmp var/lib/systemd var/lib/urandom usr/tmp
            chmod 1777 tmp; setfattr -n user.x -v y tmp; mkfifo tmp/fifo; echo session >tmp/a; echo x >run/b
            mknod dev/null c 1 3; echo 1 >proc/version; echo kept >usr/tmp/c; echo kept >var/tmp/d
            echo seed >var/lib/systemd/random-seed; echo seed >var/lib/urandom/random-seed
            echo no >var/lib/systemd/random-seed.old; truncate -s 3M disk.img; echo x >>disk.img; ln disk.img var/again",
            &top,
        );
        let image = fs::metadata(top.join("disk.img")).unwrap();
        let left_out = LeftOut {
            files: vec![(image.dev(), image.ino())],
        };
        let done = copied(&from, &to, &left_out);
        assert_eq!(done.changes().note(), None);
        let wanted_size = measure_running(&from, 1 << 20, &left_out).unwrap();
        let mut wanted = without_trusted(walk(&top));
        for inside in ["proc", "sys", "run", "tmp", "dev"] {
            wanted.retain(|path, _| path == Path::new(inside) || !path.starts_with(inside));
        }
        for gone in [
            "var/lib/systemd/random-seed",
            "var/lib/urandom/random-seed",
            "disk.img",
            "var/again",
        ] {
            assert!(wanted.remove(Path::new(gone)).is_some(), "{gone}");
        }
        // Sockets are nothing without their programs, and directories count their entries.
        let links = |tree: &mut std::collections::BTreeMap<PathBuf, tree_support::Entry>| {
            tree.remove(Path::new(""));
            for inside in ["proc", "sys", "run", "tmp", "dev"] {
                assert!(tree.contains_key(Path::new(inside)), "{inside}");
            }
        };
        let mut found = walk(&copy);
        links(&mut wanted);
        links(&mut found);
        let both: BTreeSet<_> = found.keys().cloned().collect();
        let sockets: Vec<_> = wanted
            .keys()
            .filter(|p| !both.contains(*p))
            .cloned()
            .collect();
        for path in sockets {
            let kind = fs::symlink_metadata(top.join(&path)).unwrap().mode() & 0o170_000;
            assert_eq!(kind, 0o140_000, "{}", path.display());
            wanted.remove(&path);
        }
        assert_same("the copy", &wanted, &found);
        // What is counted before is what is there afterwards, and the two seeds, each in a page.
        let again = measure_running(&to, 1 << 20, &LeftOut::default()).unwrap();
        assert_eq!(wanted_size.bytes.0, again.bytes.0 + 2 * 4096);
    });
}

/// Writes, makes, takes away and swaps until it is told to stop.
fn disturb(top: &Path, stop: &AtomicBool) {
    let mut round = 0u64;
    while !stop.load(Ordering::Relaxed) {
        for n in 0..200 {
            let path = top.join(format!("busy/{n}"));
            let _ = match (round + n) % 5 {
                0 => fs::write(&path, vec![7; 300_000]),
                1 => fs::File::options()
                    .write(true)
                    .open(&path)
                    .and_then(|file| file.set_len(10)),
                2 => fs::remove_file(&path),
                3 => fs::create_dir_all(path.join("below"))
                    .and_then(|()| fs::write(path.join("below/x"), "x")),
                _ => fs::remove_dir_all(&path)
                    .or_else(|_| fs::remove_file(&path))
                    .and_then(|()| std::os::unix::fs::symlink("/nowhere", &path)),
            };
            if (round + n).is_multiple_of(7) {
                let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
                let _ = fs::write(&path, "x");
                let _ = fs::remove_file(top.join(format!("busy/{n}-again")));
                let _ = fs::hard_link(&path, top.join(format!("busy/{n}-again")));
            }
        }
        round += 1;
    }
}

#[test]
fn what_goes_and_changes_meanwhile_is_borne_and_said() {
    isolated("mode=0755", |place| {
        let (top, from) = directory(place, "from");
        fs::create_dir(top.join("busy")).unwrap();
        for n in 0..500 {
            fs::write(top.join(format!("calm-{n}")), format!("{n}\n")).unwrap();
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| disturb(&top, &stop));
            let (mut gone, mut changed) = (0, 0);
            let until = Instant::now() + Duration::from_secs(60);
            let mut round = 0;
            // Whether a copy meets both is chance: until it has.
            while gone == 0 || changed == 0 || round < 5 {
                assert!(Instant::now() < until, "gone {gone}, changed {changed}");
                let (copy, to) = directory(place, &format!("to-{round}"));
                // Neither fails, whatever goes.
                measure_running(&from, 1 << 20, &LeftOut::default()).unwrap();
                let done = copied(&from, &to, &LeftOut::default());
                gone += done.changes().gone;
                changed += done.changes().changed;
                let all = done.changes().gone + done.changes().changed;
                assert_eq!(done.changes().note().is_some(), all > 0);
                for n in 0..500 {
                    let name = format!("calm-{n}");
                    let text = fs::read_to_string(copy.join(name)).unwrap();
                    assert_eq!(text, format!("{n}\n"));
                }
                fs::remove_dir_all(&copy).unwrap();
                round += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
