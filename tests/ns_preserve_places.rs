//! Places on a source that are not what their names say: protected by chattr(1), filled in part, known by two names, or
//! directories that are called as an overlay's layers are. Needs root and strace.
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

use preserving::{Bench, entry, ext4, inside, killed};
use serde_json::{Value, json};
use session::Seen;

fn play(bench: &Bench, claim: &str, preserve: Value, look: &str) -> Seen {
    let mut config = bench.config(preserve);
    config["metadata"] = json!({ "claim": claim });
    bench.play_config(&config, look)
}

#[track_caller]
fn fine(seen: Seen) -> Seen {
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    seen
}

const LIST: &str = "echo \"list=$(ls -A $root/srv | tr '\\n' ' ')\"";

/// Another claim's root protects its files: they go all the same, deep and at the top, and so does a whole file system.
#[test]
fn what_chattr_protects_is_erased_too() {
    let bench = Bench::new("mkdir srv");
    for subdir in ["t", "a/t", ""] {
        let device = ext4(24, &[]);
        let mut more = json!({ "claimBound": true, "otherClaim": "Erase" });
        if !subdir.is_empty() {
            more["subdir"] = json!(subdir);
        }
        let entries = json!([entry("/srv", &device, more)]);
        let write =
            "cd $root/srv; mkdir -p d/e l; echo x >d/e/f; echo x >g; echo x >l/h; ln -s g s";
        fine(play(&bench, "a", entries.clone(), write));
        let place = format!("$m/{subdir}");
        inside(
            &device,
            &format!(
                "cd {place}; chattr +i d/e/f d/e g; chattr +a l l/h d .; [ -z '{subdir}' ] || chattr +a ..; cd /"
            ),
        );
        let seen = fine(play(&bench, "b", entries, LIST));
        let own = if subdir.is_empty() {
            ".ironroot lost+found "
        } else {
            ""
        };
        assert_eq!(seen.fact("list"), own, "{subdir}");
    }
}

/// Names alone make no layers: who has directories that are called so sees them, and an overlay does not take them.
#[test]
fn the_owners_directories_are_no_layers_of_an_overlay() {
    let bench = Bench::new("mkdir srv; echo image >srv/image");
    let device = ext4(24, &[]);
    let with = |subdir: &str, method: &str| {
        json!([entry(
            "/srv",
            &device,
            json!({ "subdir": subdir, "method": method })
        )])
    };
    // One that looks in every way like an overlay's.
    bench.good(
        with("n", "bind"),
        "cd $root/srv; mkdir upper work; chmod 700 work; echo mine >upper/f",
    );
    let seen = bench.good(with("n", "bind"), LIST);
    assert_eq!(seen.fact("list"), "upper work ");
    let parts = ["n of", "holds content", "set `method` to bind"];
    bench.play(with("n", "overlay"), "").failed_with(16, &parts);
    // More than that was never a layer's.
    inside(&device, "mkdir -p $m/o/upper $m/o/work; echo x >$m/o/more");
    let parts = ["o of", "holds content"];
    bench.play(with("o", "overlay"), "").failed_with(16, &parts);
    // What somebody put there for an overlay, before anything was shown.
    inside(&device, "mkdir -p $m/p/upper; echo x >$m/p/upper/f");
    for _ in 0..2 {
        let seen = bench.good(with("p", "overlay"), LIST);
        assert_eq!(seen.fact("list"), "f image ");
    }
    bench
        .play(with("p", "bind"), "")
        .failed_with(16, &["p of", "the layers of an overlay"]);
}

/// A cut while the copy is moved into the root of a file system: whoever comes next, and for whatever, has all of it.
#[test]
fn half_of_what_is_filled_is_seen_by_nobody() {
    let bench = Bench::new(
        "mkdir srv; for i in $(seq 60); do echo $i >srv/$i; done; mkdir srv/z; echo z >srv/z/z",
    );
    let count = r#"echo "n=$(find $root/srv -name .ironroot -prune -o -type f -print | wc -l)""#;
    for (what, next, wanted) in [
        ("no seed", json!({}), "61"),
        ("a part", json!({ "subdir": "z" }), "1"),
        (
            "another claim's",
            json!({ "claimBound": true, "otherClaim": "Erase" }),
            "0",
        ),
    ] {
        let device = ext4(24, &[]);
        let filling = json!([entry("/srv", &device, json!({ "seed": "FromImageOnce" }))]);
        assert!(killed(&bench, filling, "renameat", 20), "{what}");
        let there = inside(
            &device,
            "cat $m/.ironroot/records/*.json; ls $m/.ironroot/seed/* | wc -l",
        );
        assert!(there.contains("\"placing\""), "{what}: {there}");
        let mut read = entry("/srv", &device, next.clone());
        if next.get("claimBound").is_none() {
            read["options"] = json!(["ro"]);
            bench.play(json!([read]), "").failed_with(
                16,
                &["was cut off and cannot go on", "leave the option ro away"],
            );
        }
        let seen = bench.good(json!([entry("/srv", &device, next)]), count);
        assert_eq!(seen.fact("n"), wanted, "{what}");
        let records = inside(
            &device,
            "cat $m/.ironroot/records/*.json; ls -A $m/.ironroot/seed",
        );
        assert!(!records.contains("placing"), "{what}: {records}");
    }
}

/// Two names of one thing, as on file systems that do not tell upper from lower case (here: a file with two names).
#[test]
fn one_place_by_two_names_is_refused() {
    let bench = Bench::new("echo image >etc/one; echo image >etc/two; mkdir srv");
    let device = ext4(24, &[]);
    let file = |target: &str, subdir: &str, more: Value| {
        let mut file = entry(target, &device, json!({ "kind": "file", "subdir": subdir }));
        file.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        file
    };
    let mine = json!({ "claimBound": true });
    fine(play(
        &bench,
        "a",
        json!([file("/etc/one", "d/State", mine)]),
        "echo secret >$root/etc/one",
    ));
    inside(&device, "ln $m/d/State $m/d/state");
    // Neither another claim nor the same one, and nothing is erased for it.
    for more in [
        json!({}),
        json!({ "claimBound": true, "otherClaim": "Erase" }),
    ] {
        play(&bench, "b", json!([file("/etc/one", "d/state", more)]), "").failed_with(
            16,
            &[
                "d/state on",
                "is the same place as d/State",
                "name it as before, d/State",
            ],
        );
    }
    let both = json!([
        file("/etc/one", "d/State", json!({})),
        file("/etc/two", "d/state", json!({}))
    ]);
    play(&bench, "a", both, "").failed_with(16, &["/etc/two cannot be preserved", "d/State"]);
    assert_eq!(inside(&device, "cat $m/d/State"), "secret\n");
    // ironroot's own directory has no other name either.
    for name in [".IronRoot", "Lost+Found/x"] {
        let own = json!([entry("/srv", &device, json!({ "subdir": name }))]);
        bench.play(own, "").failed_with(10, &["this name is taken"]);
    }
}

/// What the root has no place for is known before anything is erased for another path.
#[test]
fn nothing_is_erased_where_a_path_has_no_place_in_the_root() {
    let bench = Bench::new(
        "mkdir -p srv etc/is-a-directory; ln -s nowhere/else link; ln -s /usr system; mkdir -p usr",
    );
    for (target, kind, part) in [
        ("/etc/is-a-directory", "file", "is no file"),
        ("/link", "dir", "leads to /nowhere/else"),
        ("/link/deep", "dir", "leads to /nowhere/else/deep"),
        ("/system", "dir", "leads to /usr"),
    ] {
        let device = ext4(24, &[]);
        let erased = entry(
            "/srv",
            &device,
            json!({ "subdir": "t", "claimBound": true, "otherClaim": "Erase" }),
        );
        fine(play(&bench, "a", json!([erased]), "echo mine >$root/srv/f"));
        let other = entry(target, &device, json!({ "subdir": "u", "kind": kind }));
        play(&bench, "b", json!([erased, other]), "").failed_with(16, &[target, part]);
        assert_eq!(inside(&device, "cat $m/t/f"), "mine\n", "{target}");
    }
    // What is preserved above brings its own place.
    let device = ext4(24, &[]);
    let nested = json!([
        entry("/srv", &device, json!({ "subdir": "t" })),
        entry("/srv/a/b", &device, json!({ "subdir": "u" })),
    ]);
    bench.good(nested, "");
}

/// Where the sources are mounted, modes above a path protect nothing: nobody else gets in.
#[test]
fn nobody_else_enters_where_the_sources_are() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(24, &[]);
    let entries = json!([entry("/srv", &device, json!({ "subdir": "t" }))]);
    let look = r#"echo "mode=$(stat -c %a /run/ironroot/state)""#;
    for before in ["", "mkdir -p /run/ironroot/state"] {
        let seen = bench
            .lab
            .play_where(before, &bench.config(entries.clone()), look);
        preserving::settle();
        assert_eq!(fine(seen).fact("mode"), "700", "{before}");
    }
}

/// Whoever could write to a preserved path cannot have another one mounted where they like.
#[test]
fn a_link_that_a_user_made_is_no_way_to_a_target() {
    let bench = Bench::new(
        "mkdir -p home etc/cron.d data; echo image >etc/cron.d/image; ln -s home people",
    );
    let device = ext4(24, &[]);
    for target in ["/home/alice/work/data", "/people/alice/work/data"] {
        let entries = json!([
            entry("/home", &device, json!({ "subdir": "home" })),
            entry(target, &device, json!({ "subdir": "alice" })),
        ]);
        // The image's own links are followed, also to what is preserved above.
        fine(play(
            &bench,
            "a",
            entries.clone(),
            &format!("echo mine >$root{target}/f"),
        ));
        for link in ["/etc/cron.d", "../../../etc/cron.d", "/data", "aside"] {
            let made = format!(
                "cd $m/home/alice; mkdir -p aside; mv work kept; mkdir work; ln -s {link} work/data; cd /"
            );
            inside(&device, &made);
            play(&bench, "a", entries.clone(), "")
                .failed_with(16, &["work/data", "a link that the image does not have"]);
            inside(&device, "cd $m/home/alice; rm -r work; mv kept work; cd /");
        }
        // A directory on the way is no better.
        inside(
            &device,
            "cd $m/home/alice; mv work kept; ln -s /etc work; cd /",
        );
        play(&bench, "a", entries.clone(), "")
            .failed_with(16, &["/work", "a link that the image does not have"]);
        inside(&device, "cd $m/home/alice; rm work; mv kept work; cd /");
        let seen = fine(play(
            &bench,
            "a",
            entries,
            &format!("echo \"f=$(cat $root{target}/f)\""),
        ));
        assert_eq!(seen.fact("f"), "mine");
    }
}

/// The owner of a file system's root puts records of its own there: nothing is erased for them.
#[test]
fn records_that_a_user_made_are_not_believed() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(24, &[]);
    let entries = json!([entry("/srv", &device, json!({ "owner": "1000:1000" }))]);
    let write = "mkdir -m 700 $root/srv/of-root; echo secret >$root/srv/of-root/f";
    fine(play(&bench, "a", entries.clone(), write));
    inside(&device, "cp -a $m/.ironroot $m/kept");
    let record = r#"{"format":1,"path":"","claim":null,"stage":"erasing","seeded":false}"#;
    for (forge, part) in [
        ("chown -R 1000:1000 .ironroot", ".ironroot on"),
        ("chown 1000 .ironroot/records", ".ironroot/records on"),
        ("chown 1000 .ironroot/records/x.json", "x.json on"),
        (
            "chmod 666 .ironroot/records/x.json",
            "can be written by others (mode 0666)",
        ),
        (
            "chmod 1777 .ironroot",
            "can be written by others (mode 1777)",
        ),
    ] {
        let forged = format!(
            "cd $m; rm -r .ironroot; mkdir -p -m 755 .ironroot/records; echo '{record}' >.ironroot/records/x.json; {forge}; cd /"
        );
        inside(&device, &forged);
        play(&bench, "a", entries.clone(), "").failed_with(16, &[part, "may not be ironroot's"]);
        assert_eq!(inside(&device, "cat $m/of-root/f"), "secret\n", "{forge}");
    }
    inside(&device, "cd $m; rm -r .ironroot; mv kept .ironroot; cd /");
    fine(play(&bench, "a", entries, ""));
}
