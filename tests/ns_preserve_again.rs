//! Preserved paths over several sessions of which one was cut off, failed, or left something else than the next one
//! takes it for. Needs root and strace.
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

use preserving::{Bench, build, entry, ext4, inside, killed};
use serde_json::{Value, json};
use session::{Seen, tool};

/// Plays for a claim.
fn play(bench: &Bench, claim: &str, preserve: Value, look: &str) -> Seen {
    let mut config = bench.config(preserve);
    config["metadata"]["claim"] = json!(claim);
    bench.play_config(&config, look)
}

#[test]
fn what_the_image_mounts_above_a_path_stops_the_boot_or_is_warned_of() {
    let mut bench =
        Bench::new("echo 'tmpfs /var tmpfs defaults 0 0' >etc/fstab; ln -s /var/lib data");
    let device = ext4(24, &[]);
    for target in ["/var/lib/data", "/data/new"] {
        let required = entry(target, &device, json!({ "subdir": "k" }));
        let parts = ["/etc/fstab of the image mounts something at /var", target];
        bench.play(json!([required]), "").failed_with(16, &parts);
        let mut optional = required;
        optional["required"] = json!(false);
        let seen = bench.good(json!([optional]), "");
        let stderr = &seen.ended.stderr;
        assert!(stderr.contains("is hidden by that"), "{stderr}");
    }
    // systemd leaves alone what is mounted already.
    let kept = entry("/var/lib/data", &device, json!({ "subdir": "k" }));
    let parent = entry("/var", &device, json!({ "subdir": "v" }));
    bench.good(json!([kept, parent]), "");
    let mut config = bench.config(json!([kept]));
    config["memory"] = json!({ "scratch": ["/var"] });
    let seen = bench.play_config(&config, "");
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    // Only where somebody asks for it.
    bench.image = build(
        &bench.lab,
        "noauto",
        "echo '/dev/x /var ext4 noauto 0 0' >etc/fstab",
    );
    let seen = bench.good(json!([kept]), "");
    let stderr = &seen.ended.stderr;
    assert!(
        stderr.contains("which nothing starts by itself"),
        "{stderr}"
    );
}

#[test]
fn a_place_that_was_lost_does_not_come_back_empty() {
    let bench = Bench::new("echo image >var/lib/data/f; mkdir -p etc/app");
    for (target, more, look) in [
        ("/var/lib/data", json!({ "seed": "FromImageOnce" }), "/f"),
        // The image has nothing there.
        ("/srv/none", json!({ "seed": "FromImageOnce" }), "/f"),
        ("/srv/claimed", json!({ "claimBound": true }), "/f"),
        (
            "/etc/app",
            json!({ "claimBound": true, "method": "overlay" }),
            "/f",
        ),
        ("/srv/plain", json!({}), "/f"),
        (
            "/etc/single",
            json!({ "claimBound": true, "kind": "file" }),
            "",
        ),
        (
            "/etc/machine-id",
            json!({ "claimBound": true, "kind": "file" }),
            "",
        ),
    ] {
        let device = ext4(24, &[]);
        let mut required = entry(target, &device, more);
        required["subdir"] = json!("k");
        let write = format!("echo mine >$root{target}{look}");
        bench.good(json!([required]), &write);
        // As a check of the file system would.
        inside(&device, "mv $m/k $m/lost+found/'#12'");
        let parts = [
            "k was on",
            "is not there any more",
            "next: look for it in lost+found",
        ];
        bench.play(json!([required]), "").failed_with(16, &parts);
        if target == "/srv/claimed" {
            let mut optional = required.clone();
            optional["required"] = json!(false);
            let seen = bench.good(json!([optional]), "");
            let stderr = &seen.ended.stderr;
            assert!(stderr.contains("is not there any more"), "{stderr}");
            assert_eq!(inside(&device, "ls $m"), "lost+found\n");
            inside(&device, "mv $m/lost+found/'#12' $m/k");
            bench.good(json!([required]), "");
            inside(&device, "rm -r $m/k");
        }
        // Begun afresh, as the hint says.
        inside(&device, "rm $m/.ironroot/records/*.json");
        bench.good(json!([required]), "");
    }
}

/// What a session began to erase is nobody's, whatever part of it, or around it, a later one names.
#[test]
fn an_erasure_that_was_cut_off_goes_on_above_and_below() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(24, &[]);
    let of = |claim: &str, more: Value| {
        let mut config = bench.config(json!([entry("/srv", &device, more)]));
        config["metadata"]["claim"] = json!(claim);
        let seen = bench.play_config(&config, r#"echo "list=$(ls -A "$root/srv" | tr '\n' ' ')""#);
        assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        std::thread::sleep(std::time::Duration::from_millis(300));
        seen
    };
    let begun = |path: &str, claim: &str| {
        let id = ironroot::run::preserve::record::id(std::path::Path::new(path));
        let claim = if claim.is_empty() {
            "null".to_owned()
        } else {
            format!("\"{claim}\"")
        };
        let record = format!(
            r#"{{"format":1,"path":"{path}","claim":{claim},"stage":"erasing","seeded":false}}"#
        );
        inside(
            &device,
            &format!(
                "mkdir -p $m/.ironroot/records; echo '{record}' >$m/.ironroot/records/{id}.json"
            ),
        );
    };
    // The whole source was being erased for another: of one place in it, some is left.
    let own = json!({ "subdir": "kubelet/x", "claimBound": true });
    of("a/1", own.clone());
    inside(&device, "echo half >$m/kubelet/x/f; echo half >$m/other");
    begun("", "");
    assert_eq!(of("a/1", own.clone()).fact("list"), "");
    assert_eq!(inside(&device, "ls $m"), "kubelet\nlost+found\n");
    // A place in it: the rest stays.
    inside(
        &device,
        "echo half >$m/kubelet/x/f; echo whole >$m/kubelet/g",
    );
    begun("kubelet/x", "a/1");
    assert_eq!(of("b/2", json!({ "subdir": "kubelet" })).fact("list"), "g ");
    assert_eq!(inside(&device, "ls $m/.ironroot/records | wc -l"), "1\n");
}

#[test]
fn another_method_does_not_hide_what_is_there() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(24, &[]);
    let with = |subdir: &str, method: &str| {
        json!([entry(
            "/srv",
            &device,
            json!({ "subdir": subdir, "method": method })
        )])
    };
    let write = "echo mine >$root/srv/precious";
    bench.good(with("b", "bind"), write);
    bench
        .play(with("b", "overlay"), "")
        .failed_with(16, &["b of", "holds content", "set `method` to bind"]);
    bench.good(with("o", "overlay"), write);
    bench.play(with("o", "bind"), "").failed_with(
        16,
        &[
            "o of",
            "the layers of an overlay",
            "set `method` to overlay",
        ],
    );
    for (subdir, method) in [("b", "bind"), ("o", "overlay")] {
        let seen = bench.good(
            with(subdir, method),
            "echo \"list=$(ls -A $root/srv | tr '\\n' ' ')\"",
        );
        assert_eq!(seen.fact("list"), "precious ");
    }
    // Who has directories of these names is no overlay.
    inside(&device, "mkdir -p $m/n/upper $m/n/work");
    bench.good(with("n", "bind"), "");
    // An empty place is anybody's.
    inside(&device, "mkdir -p $m/e");
    bench.good(with("e", "overlay"), "");
}

#[test]
fn a_kill_leaves_no_place_with_another_owner_and_mode() {
    let bench = Bench::new("mkdir srv etc/app");
    let all = |device: &_| {
        let mine = |more: Value| {
            let mut more = more;
            more["mode"] = json!("0700");
            more["owner"] = json!("1000:1001");
            more
        };
        json!([
            entry("/srv", device, mine(json!({ "subdir": "a/b" }))),
            entry(
                "/etc/app",
                device,
                mine(json!({ "subdir": "o", "method": "overlay" }))
            ),
            entry(
                "/etc/x",
                device,
                mine(json!({ "subdir": "f", "kind": "file" }))
            ),
        ])
    };
    let mut kills = 0;
    for call in ["fchown"] {
        for n in 1..=12 {
            let device = ext4(16, &[]);
            if !killed(&bench, all(&device), call, n) {
                break;
            }
            kills += 1;
            let seen = bench.good(
                all(&device),
                "echo \"stat=$(stat -c '%a %u:%g' $root/srv $root/etc/app $root/etc/x | tr '\\n' ' ')\"",
            );
            let wanted = "700 1000:1001 700 1000:1001 700 1000:1001 ";
            assert_eq!(seen.fact("stat"), wanted, "{call} {n}");
            let left = inside(&device, "ls -A $m/.ironroot; ls -A $m");
            assert_eq!(
                left, "records\n.ironroot\na\nf\nlost+found\no\n",
                "{call} {n}"
            );
        }
    }
    assert!(kills >= 4, "{kills}");
}

#[test]
fn a_first_boot_is_one_until_a_session_starts() {
    let mut bench = Bench::new("echo uninitialized >etc/machine-id; rm sbin/init bin/busybox");
    let broken = bench.image.clone();
    let whole = build(&bench.lab, "whole", "echo uninitialized >etc/machine-id");
    let device = ext4(24, &[]);
    let preserve = json!([entry(
        "/etc/machine-id",
        &device,
        json!({ "kind": "file", "subdir": "machine-id" })
    )]);
    bench
        .play(preserve.clone(), "")
        .failed_with(17, &["no init"]);
    bench
        .play(preserve.clone(), "")
        .failed_with(17, &["no init"]);
    let id = inside(&device, "cat $m/machine-id");
    assert_eq!(id.len(), 33);
    let look = r#"echo "file=$(cat $root/etc/machine-id)"; echo "dbus=$(cat $root/var/lib/dbus/machine-id)""#;
    bench.image = whole;
    let first = bench.good(preserve.clone(), look);
    assert_eq!(first.fact("file"), "uninitialized");
    assert_eq!(first.fact("dbus"), id.trim());
    let second = bench.good(preserve.clone(), look);
    assert_eq!(second.fact("file"), id.trim());
    // It stays over, whatever fails later.
    bench.image = broken;
    bench
        .play(preserve.clone(), "")
        .failed_with(17, &["no init"]);
    assert!(!inside(&device, "cat $m/.ironroot/records/*").contains("firstBoot"));
}

/// What else is preserved, or forgotten, hides the id of the first boot from nobody.
#[test]
fn the_id_of_a_first_boot_is_seen_whatever_is_mounted_at_var() {
    let bench = Bench::new("echo uninitialized >etc/machine-id; mkdir -p var/lib");
    let look = r#"echo "file=$(cat $root/etc/machine-id)"; echo "dbus=$(cat $root/var/lib/dbus/machine-id)""#;
    for (path, options, first) in [
        ("/var/lib", json!([]), true),
        ("/var", json!([]), true),
        ("", json!([]), true),
        // Nothing can be written there.
        ("/var/lib", json!(["ro"]), false),
    ] {
        let device = ext4(24, &[]);
        inside(&device, "mkdir $m/var");
        let id = json!({ "kind": "file", "subdir": "machine-id" });
        let mut preserve = vec![entry("/etc/machine-id", &device, id)];
        if !path.is_empty() {
            preserve.push(entry(
                path,
                &device,
                json!({ "subdir": "var", "options": options }),
            ));
        }
        let mut config = bench.config(json!(preserve));
        if path.is_empty() {
            config["memory"] = json!({ "scratch": ["/var/lib"] });
        }
        let seen = bench.play_config(&config, look);
        assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        let id = inside(&device, "cat $m/machine-id");
        if first {
            assert_eq!(seen.fact("file"), "uninitialized", "{path}");
            assert_eq!(seen.fact("dbus"), id.trim(), "{path}");
        } else {
            assert_eq!(seen.fact("file"), id.trim(), "{path}");
        }
    }
}

#[test]
fn labels_of_the_image_are_on_what_is_made() {
    let bench = Bench::new("mkdir -p srv etc/app");
    let root = bench.lab.system("labelled");
    let script = format!(
        "cd {}; mkdir -p srv etc/app; for p in srv etc/app etc; do setfattr -n security.selinux -v system_u:object_r:${{p##*/}}_t:s0 $p; done",
        root.display()
    );
    tool("sh", &["-ec", &script]);
    let mut bench = bench;
    bench.image = bench.lab.squashfs(&root, "labelled.squashfs");
    let device = ext4(24, &[]);
    bench.good(
        json!([
            entry("/srv", &device, json!({ "subdir": "s" })),
            entry(
                "/etc/app",
                &device,
                json!({ "subdir": "o", "method": "overlay" })
            ),
            entry("/etc/x", &device, json!({ "subdir": "f", "kind": "file" })),
            entry("/etc/d/e", &device, json!({ "subdir": "d" })),
        ]),
        "",
    );
    for (path, wanted) in [("s", "srv"), ("o/upper", "app"), ("f", "etc"), ("d", "etc")] {
        let script = format!(
            "getfattr --absolute-names --only-values -n security.selinux $m/{path} | tr -d '\\0'"
        );
        assert_eq!(
            inside(&device, &script),
            format!("system_u:object_r:{wanted}_t:s0"),
            "{path}"
        );
    }
}

#[test]
fn nothing_is_erased_where_the_boot_is_refused() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(24, &[]);
    let with = |second: Value| {
        json!([
            entry(
                "/srv",
                &device,
                json!({ "subdir": "a", "claimBound": true, "otherClaim": "Erase" })
            ),
            entry("/var/lib/data", &device, second),
        ])
    };
    let refuse = json!({ "subdir": "b", "claimBound": true });
    let write = "echo mine >$root/srv/f; echo mine >$root/var/lib/data/f";
    let seen = play(&bench, "a", with(refuse.clone()), write);
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    play(&bench, "b", with(refuse.clone()), "").failed_with(16, &["b belongs to claim a"]);
    assert_eq!(inside(&device, "cat $m/a/f $m/b/f"), "mine\nmine\n");
    // An optional one stands in nobody's way.
    let mut optional = refuse;
    optional["required"] = json!(false);
    let seen = play(&bench, "b", with(optional), "ls -A $root/srv");
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(inside(&device, "ls -A $m/a; cat $m/b/f"), "mine\n");
}

/// Fills what is mounted at the directory to the last block and the last inode.
const FILL: &str = r#"fill() { dd if=/dev/zero of="$1/big" bs=64k 2>/dev/null; dd if=/dev/zero of="$1/small" bs=1k 2>/dev/null
    i=0; while mkdir "$1/d$i" 2>/dev/null || touch "$1/f$i" 2>/dev/null; do i=$((i + 1)); [ $i -lt 20000 ] || break; done; }"#;

#[test]
fn a_full_source_is_erased_for_another_claim() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(16, &["-m", "0", "-N", "128"]);
    let entries = json!([entry(
        "/srv",
        &device,
        json!({ "subdir": "t", "claimBound": true, "otherClaim": "Erase" })
    )]);
    let seen = play(
        &bench,
        "a",
        entries.clone(),
        &format!("{FILL}; fill $root/srv"),
    );
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    inside(&device, "! touch $m/.ironroot/records/x 2>/dev/null");
    // Cut off while it removes, it goes on: what is left is nobody's.
    let look = "echo \"list=$(ls -A $root/srv)\"";
    // The claim of a bench is another one than this.
    assert!(killed(&bench, entries, "unlinkat", 20));
    let records = inside(&device, "cat $m/.ironroot/records/*.json; ls $m/t | wc -l");
    assert!(records.contains("\"erasing\""), "{records}");
    assert!(!records.ends_with("\n0\n"), "{records}");
    let plain = json!([entry("/srv", &device, json!({ "subdir": "t" }))]);
    let seen = play(&bench, "a", plain, look);
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("list"), "");
}

#[test]
fn a_full_source_of_another_claim_starts_afresh() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(16, &["-m", "0", "-N", "128"]);
    let entries = json!([entry(
        "/srv",
        &device,
        json!({ "subdir": "t", "claimBound": true, "otherClaim": "Erase" })
    )]);
    let fill = format!("{FILL}; fill $root/srv");
    assert_eq!(
        play(&bench, "a", entries.clone(), &fill).ended.code,
        Some(0)
    );
    let seen = play(&bench, "b", entries, "echo \"list=$(ls -A $root/srv)\"");
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("list"), "");
}

#[test]
fn a_copy_that_does_not_fit_takes_no_room_from_others() {
    let bench = Bench::new("mkdir srv; head -c 30000000 /dev/urandom >var/lib/data/big");
    let device = ext4(24, &[]);
    // What another session left.
    inside(
        &device,
        "mkdir -p $m/.ironroot/seed/0123; head -c 8000000 /dev/zero >$m/.ironroot/seed/0123/x",
    );
    let entries = json!([
        entry("/srv", &device, json!({ "subdir": "k" })),
        entry(
            "/var/lib/data",
            &device,
            json!({ "subdir": "d", "seed": "FromImageOnce", "required": false })
        ),
    ]);
    let seen = bench.good(
        entries,
        "head -c 15000000 /dev/zero >$root/srv/f && echo wrote=yes",
    );
    let stderr = &seen.ended.stderr;
    assert!(stderr.contains("o space left"), "{stderr}");
    assert_eq!(seen.fact("wrote"), "yes");
    assert_eq!(inside(&device, "ls -A $m/.ironroot/seed"), "");
}
