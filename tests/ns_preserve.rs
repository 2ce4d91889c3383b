//! Preserved paths with real file systems on loop devices: several sessions over the same device, each in a mount
//! namespace of its own. Needs root.
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

use loop_device::LoopDevice;
use preserving::{Bench, COUNT, build, entry, ext4, inside, settle};
use serde_json::{Value, json};
use session::tool;

#[test]
fn what_is_preserved_is_there_in_every_session_and_under_another_image() {
    let mut bench =
        Bench::new("mkdir -p var/log etc/app; echo one >etc/app/version; echo old >etc/app/file");
    let device = LoopDevice::blank(48);
    let entries = json!([
        entry(
            "/var/lib/data",
            &device,
            json!({ "subdir": "data", "format": "IfBlank", "mode": "0750", "owner": "12:34" })
        ),
        entry(
            "/var/log",
            &device,
            json!({ "subdir": "logs", "options": ["noexec", "noatime"] })
        ),
        entry(
            "/etc/app",
            &device,
            json!({ "subdir": "app", "method": "overlay" })
        ),
        entry(
            "/etc/name",
            &device,
            json!({ "subdir": "name", "kind": "file", "mode": "0600" })
        ),
    ]);
    let look = format!(
        r#"{COUNT}
        echo "data=$(count "$root/var/lib/data/n")"
        echo "log=$(count "$root/var/log/n")"
        echo "app=$(count "$root/etc/app/n")"
        echo "name=$(count "$root/etc/name")"
        echo "version=$(cat "$root/etc/app/version")"
        echo changed >"$root/etc/app/file"; rm -f "$root/etc/app/gone"
        echo "mode=$(stat -c '%a %u %g' "$root/var/lib/data") $(stat -c %a "$root/etc/name")"
        flags() {{ sed -n "s|^[0-9 :]* [^ ]* $root$1 \([^ ]*\) .*|\1|p" /proc/self/mountinfo; }}
        echo "flags=$(flags /var/lib/data) $(flags /var/log)"
        echo "state=$(stat -c %a /run/ironroot/state)"
        echo "outside=$(ls /var/lib/data /etc/app 2>/dev/null)""#
    );
    for n in 1..=3 {
        let seen = bench.good(entries.clone(), &look);
        for path in ["data", "log", "app", "name"] {
            assert_eq!(seen.fact(path), n.to_string(), "{path}");
        }
        assert_eq!(seen.fact("version"), "one");
        assert_eq!(seen.fact("mode"), "750 12 34 600");
        assert_eq!(
            seen.fact("flags"),
            "rw,nosuid,nodev,relatime rw,nosuid,nodev,noexec,noatime"
        );
        assert_eq!(seen.fact("state"), "700");
        assert_eq!(seen.fact("outside"), "");
        assert_eq!(seen.ended.stderr.contains("ERASE: make ext4"), n == 1);
    }
    // Another image: what it brings is seen through, what the machine changed stays.
    bench.image = build(
        &bench.lab,
        "next",
        "mkdir -p var/log etc/app; echo two >etc/app/version; echo new >etc/app/file",
    );
    let seen = bench.good(
        entries,
        &format!("{look}\necho \"file=$(cat \"$root/etc/app/file\")\""),
    );
    assert_eq!((seen.fact("app"), seen.fact("version")), ("4", "two"));
    assert_eq!(seen.fact("file"), "changed");
    // In order when nobody has it mounted any more.
    let state = loop_device::tool("dumpe2fs", &["-h", device.arg()]);
    assert!(state.contains("Filesystem state:         clean"), "{state}");
}

#[test]
fn a_device_is_found_by_label_uuid_and_partition_without_udev() {
    let bench = Bench::new("");
    let uuid = "12345678-1234-4321-8765-123456789abc";
    let label = format!("st{}", std::process::id());
    let device = ext4(24, &["-L", &label, "-U", uuid]);
    inside(&device, "echo kept >$m/f");
    for source in [
        json!({ "label": label }),
        json!({ "uuid": uuid.to_uppercase() }),
    ] {
        let seen = bench.good(
            json!([{ "target": "/srv/x", "source": source }]),
            r#"echo "f=$(cat "$root/srv/x/f")""#,
        );
        assert_eq!(seen.fact("f"), "kept");
    }
    // The same label twice: neither.
    let second = ext4(24, &["-L", &label]);
    bench
        .play(
            json!([{ "target": "/srv/x", "source": { "label": label } }]),
            "",
        )
        .failed_with(
            16,
            &["2 devices have that name", device.name(), second.name()],
        );
    drop(second);

    // A partition by its name; the kernel of a test may know no GPT, and is told of it.
    let disk = LoopDevice::blank(32);
    tool("sgdisk", &["-n1:2048:+20M", "-c1:state", disk.arg()]);
    let _ = loop_device::try_tool("addpart", &[disk.arg(), "1", "2048", "40960"]);
    assert_eq!(disk.partitions(), [1]);
    let named = json!({ "partlabel": "state" });
    let entry = json!([{ "target": "/srv/x", "source": named, "format": "IfBlank" }]);
    for wanted in ["1", "2"] {
        let seen = bench.good(
            entry.clone(),
            &format!(r#"{COUNT}; echo "n=$(count "$root/srv/x/n")""#),
        );
        assert_eq!(seen.fact("n"), wanted);
    }
}

/// A disk of 32 MiB with one partition, of which the kernel is told: that of a test may know no GPT.
fn partitioned(tool: &str, args: &[&str]) -> LoopDevice {
    let disk = LoopDevice::blank(32);
    let script = format!("{tool} {}", disk.arg());
    let all = [&["-ec", &script, "sh"][..], args].concat();
    session::tool("sh", &all);
    let _ = loop_device::try_tool("addpart", &[disk.arg(), "1", "2048", "40960"]);
    assert_eq!(disk.partitions(), [1]);
    disk
}

#[test]
fn a_partition_is_found_by_its_partuuid_in_either_kind_of_table() {
    let bench = Bench::new("");
    let uuid = "a1b2c3d4-0000-4000-8000-00000000beef";
    let gpt = |uuid: &str| partitioned(r#"sgdisk -n1:2048:+20M "-u1:$1" -c1:uuid"#, &[uuid]);
    let (disk, _other) = (gpt(uuid), gpt("a1b2c3d4-0000-4000-8000-00000000bef0"));
    let mbr = partitioned(
        r"printf 'label: dos\nlabel-id: 0x00beef01\nstart=2048, size=40960\n' | sfdisk -q --no-reread",
        &[],
    );
    let look = format!(r#"{COUNT}; echo "n=$(count "$root/srv/x/n")""#);
    let by = |partuuid: &str| json!([{ "target": "/srv/x", "source": { "partuuid": partuuid }, "format": "IfBlank" }]);
    for (disk, partuuid) in [(&disk, uuid), (&mbr, "00beef01-01")] {
        for (n, name) in [("1", partuuid.to_owned()), ("2", partuuid.to_uppercase())] {
            let seen = bench.good(by(&name), &look);
            assert_eq!(seen.fact("n"), n, "{name}");
            let opened = format!(" /dev/{}p1 (", disk.name());
            assert!(seen.ended.stderr.contains(&opened), "{}", seen.ended.stderr);
        }
    }
    // By its file system's UUID nobody has that name, and another table's partition has another.
    for wrong in ["a1b2c3d4-0000-4000-8000-00000000dead", "00beef01-02"] {
        bench
            .play(by(wrong), "")
            .failed_with(16, &["no device has that name"]);
    }
    let as_uuid = json!([{ "target": "/srv/x", "source": { "uuid": uuid } }]);
    bench
        .play(as_uuid, "")
        .failed_with(16, &["no device has that name"]);
    // A copy of the whole disk: neither.
    let copy = gpt(uuid);
    let names = [disk.name(), copy.name()].map(|n| format!("{n}p1"));
    bench
        .play(by(uuid), "")
        .failed_with(16, &["2 devices have that name", &names[0], &names[1]]);
}

#[test]
fn a_place_is_filled_from_the_image_once() {
    let mut bench = Bench::new(
        "mkdir -p var/lib/app/sub; echo one >var/lib/app/f; ln var/lib/app/f var/lib/app/sub/same
        chown -R 5:6 var/lib/app; chmod 0711 var/lib/app; cp bin/busybox var/lib/app/suid; chmod 4755 var/lib/app/suid",
    );
    let look = r#"echo "f=$(cat "$root/var/lib/app/f")"
        echo "attributes=$(stat -c '%a %u %g %h' "$root/var/lib/app/f" "$root/var/lib/app" "$root/var/lib/app/suid" | tr '\n' ';')"
        echo "list=$(ls "$root/var/lib/app" | tr '\n' ' ')"
        rm -f "$root/var/lib/app/suid"; echo mine >"$root/var/lib/app/own""#;
    for root in [false, true] {
        let device = ext4(32, &[]);
        let mut more = json!({ "seed": "FromImageOnce" });
        if !root {
            more["subdir"] = json!("a/b");
        }
        let entries = json!([entry("/var/lib/app", &device, more)]);
        bench.image = build(&bench.lab, "one", "mkdir -p var/lib/app/sub; echo one >var/lib/app/f; ln var/lib/app/f var/lib/app/sub/same
            chown -R 5:6 var/lib/app; chmod 0711 var/lib/app; cp bin/busybox var/lib/app/suid; chmod 4755 var/lib/app/suid");
        let seen = bench.good(entries.clone(), look);
        assert_eq!(seen.fact("f"), "one");
        let attributes = seen.fact("attributes");
        assert!(attributes.starts_with("644 5 6 2;711 5 6 "), "{attributes}");
        assert!(attributes.contains(";4755 0 0 1;"), "{attributes}");
        // A later image adds nothing, and what the machine removed does not come back.
        bench.image = build(
            &bench.lab,
            "two",
            "mkdir -p var/lib/app; echo two >var/lib/app/f; echo x >var/lib/app/new",
        );
        let list = if root {
            "f lost+found own sub "
        } else {
            "f own sub "
        };
        let seen = bench.good(entries, look);
        assert_eq!((seen.fact("f"), seen.fact("list")), ("one", list));
    }
    // Content that is there already is the machine's own.
    let device = ext4(32, &[]);
    inside(&device, "mkdir $m/app; echo mine >$m/app/f");
    let entries = json!([entry(
        "/var/lib/app",
        &device,
        json!({ "subdir": "app", "seed": "FromImageOnce" })
    )]);
    assert_eq!(bench.good(entries, look).fact("list"), "f ");
}

#[test]
fn filling_that_was_cut_off_begins_again() {
    let bench = Bench::new("mkdir -p srv/d; echo one >srv/d/f; echo two >srv/g");
    let look = r#"echo "all=$(cat "$root/srv/d/f" "$root/srv/g" | tr '\n' ' ')$(ls "$root/srv" | tr '\n' ' ')""#;
    let device = ext4(32, &[]);
    let with = |subdir: Option<&str>| {
        let mut more = json!({ "seed": "FromImageOnce" });
        if let Some(subdir) = subdir {
            more["subdir"] = json!(subdir);
        }
        json!([entry("/srv", &device, more)])
    };
    let id = |path: &str| ironroot::run::preserve::record::id(Path::new(path));
    // Half a copy, and no record.
    inside(
        &device,
        &format!(
            "mkdir -p $m/.ironroot/seed/{}/d; echo half >$m/.ironroot/seed/{0}/d/f",
            id("x")
        ),
    );
    assert_eq!(
        bench.good(with(Some("x")), look).fact("all"),
        "one two d g "
    );
    // A whole copy, half of it moved into the root already: the move goes on, and nothing is copied again.
    let record = r#"{"format":1,"path":"","claim":null,"stage":"placing","seeded":false}"#;
    inside(
        &device,
        &format!(
            "rm -r $m/.ironroot $m/x; s=$m/.ironroot/seed/{}; mkdir -p $s/d $m/.ironroot/records
            echo kept >$s/d/f; echo moved >$m/g; echo '{record}' >$m/.ironroot/records/{0}.json",
            id("")
        ),
    );
    assert_eq!(
        bench.good(with(None), look).fact("all"),
        "kept moved d g lost+found "
    );
    let left = inside(
        &device,
        "ls -A $m/.ironroot/seed; cat $m/.ironroot/records/*.json",
    );
    assert!(
        left.contains("\"seeded\": true") && left.contains("\"ready\""),
        "{left}"
    );
    assert!(!left.contains(&format!("{}\n{{", id(""))), "{left}");
}

#[test]
fn another_claim_is_refused_or_starts_afresh() {
    let bench = Bench::new("");
    let device = ext4(32, &[]);
    let with = |claim: &str, more: Value| {
        let mut all = json!({ "subdir": "t", "claimBound": true });
        for (key, value) in more.as_object().unwrap() {
            all[key] = value.clone();
        }
        let mut config = bench.config(json!([entry("/srv", &device, all)]));
        config["metadata"]["claim"] = json!(claim);
        let seen = bench.play_config(
            &config,
            r#"echo "list=$(ls -A "$root/srv" | tr '\n' ' ')"; echo "mode=$(stat -c '%a %u' "$root/srv")"
            echo secret >"$root/srv/f"; chmod 0701 "$root/srv"; mkdir -p "$root/srv/a/b""#,
        );
        settle();
        seen
    };
    assert_eq!(with("a/1", json!({})).fact("list"), "");
    assert_eq!(with("a/1", json!({})).fact("list"), "a f ");
    let refused = ["belongs to claim a/1", "for b/2"];
    with("b/2", json!({})).failed_with(16, &refused);
    // Who does not ask for a place of its own, or asks for what is around it, does not get it either.
    with("b/2", json!({ "claimBound": false })).failed_with(16, &refused);
    with("b/2", json!({ "claimBound": false, "subdir": "t/a" })).failed_with(16, &refused);
    let mut whole = bench.config(json!([entry(
        "/srv",
        &device,
        json!({ "method": "mount" })
    )]));
    whole["metadata"]["claim"] = json!("b/2");
    bench.play_config(&whole, "").failed_with(16, &refused);
    settle();
    // Nothing was lost by that.
    assert_eq!(with("a/1", json!({})).fact("list"), "a f ");
    let seen = with("b/2", json!({ "otherClaim": "Erase", "mode": "0750" }));
    assert_eq!((seen.fact("list"), seen.fact("mode")), ("", "750 0"));
    assert_eq!(with("b/2", json!({})).fact("list"), "a f ");
    with("a/1", json!({})).failed_with(16, &["belongs to claim b/2"]);

    // Cut off in the middle: what is left is nobody's, and goes.
    inside(
        &device,
        "sed -i 's/\"ready\"/\"erasing\"/' $m/.ironroot/records/*.json; rm -r $m/t/a",
    );
    assert_eq!(with("b/2", json!({})).fact("list"), "");
    // A record that cannot be read may say anything.
    inside(
        &device,
        "for f in $m/.ironroot/records/*.json; do echo x >$f; done",
    );
    with("b/2", json!({})).failed_with(16, &["is damaged"]);
    // Content that was there before anybody asked.
    let other = ext4(32, &[]);
    inside(&other, "mkdir $m/t; echo x >$m/t/f");
    let entry = entry("/srv", &other, json!({ "subdir": "t", "claimBound": true }));
    bench
        .play(json!([entry]), "")
        .failed_with(16, &["belongs to no claim that is known"]);
}

#[test]
fn targets_are_nested_and_links_stay_in_the_root() {
    let bench = Bench::new(
        "mkdir -p tmp var/lib/data/sub; ln -s /var/lib/data inside; ln -s ../../../../../tmp up; ln -s /run link-to-run; ln -s /etc link-to-etc; ln -s /nowhere dangling",
    );
    let device = ext4(32, &[]);
    let seen = bench.good(
        json!([
            entry("/var/lib/data/sub/deep", &device, json!({ "subdir": "3" })),
            entry("/var", &device, json!({ "subdir": "1" })),
            entry("/var/lib/data", &device, json!({ "subdir": "2" })),
        ]),
        r#"for p in var var/lib/data var/lib/data/sub/deep; do touch "$root/$p/here"; done
        echo "order=$(sed -n "s|^[0-9 :]* [^ ]* $root\(/[^ ]*\) .*|\1|p" /proc/self/mountinfo | tr '\n' ' ')""#,
    );
    assert_eq!(
        seen.fact("order"),
        "/var /var/lib/data /var/lib/data/sub/deep "
    );
    let files = inside(&device, "(cd $m; find . -name here | sort)");
    assert_eq!(files, "./1/here\n./2/here\n./3/here\n");

    // A link is followed in the root; /tmp here and /var/lib/data of this machine stay as they are.
    let look = r#"echo x >"$root/var/lib/data/seen"; echo "host=$(ls /var/lib/data/seen /tmp/seen 2>/dev/null)""#;
    let seen = bench.good(
        json!([entry("/inside", &device, json!({ "subdir": "4" }))]),
        look,
    );
    assert_eq!(seen.fact("host"), "");
    assert_eq!(inside(&device, "ls $m/4"), "seen\n");
    bench.good(
        json!([entry("/up", &device, json!({ "subdir": "5" }))]),
        r#"touch "$root/tmp/seen""#,
    );
    assert_eq!(inside(&device, "ls $m/5"), "seen\n");
    for (target, part) in [
        ("/link-to-run", "leads to /run in the image"),
        ("/link-to-run/x", "leads to /run/x in the image"),
        ("/link-to-etc", "leads to /etc in the image"),
        ("/dangling", "/dangling"),
    ] {
        bench
            .play(
                json!([entry(target, &device, json!({ "subdir": "6" }))]),
                "",
            )
            .failed_with(16, &[part]);
    }
    // Two names of one place: the second would hide the first.
    bench
        .play(
            json!([
                entry("/inside", &device, json!({ "subdir": "7" })),
                entry("/var/lib/data", &device, json!({ "subdir": "8" })),
            ]),
            "",
        )
        .failed_with(16, &["something else is mounted there"]);
    bench
        .play(
            json!([entry("/etc/os-release", &device, json!({ "subdir": "9" }))]),
            "",
        )
        .failed_with(16, &["is no directory"]);
}

#[test]
fn a_link_on_the_source_leads_nowhere() {
    let bench = Bench::new("");
    let device = ext4(32, &[]);
    inside(
        &device,
        "ln -s / $m/out; mkdir $m/d; ln -s /etc $m/d/etc; ln -s d $m/in",
    );
    for subdir in ["out", "out/etc", "d/etc", "in", "in/x"] {
        bench
            .play(
                json!([entry("/srv", &device, json!({ "subdir": subdir }))]),
                "",
            )
            .failed_with(16, &["symbolic link"]);
    }
    // Nor does one that stands for what ironroot keeps there.
    inside(&device, "mkdir $m/real; ln -s real $m/.ironroot");
    let seeded = json!({ "subdir": "x", "seed": "FromImageOnce" });
    let seen = bench.play(json!([entry("/etc/app", &device, seeded)]), "");
    assert_eq!(seen.ended.code, Some(16), "{}", seen.ended.stderr);
    assert_eq!(inside(&device, "ls $m/real"), "");
}

#[test]
fn what_is_required_stops_the_boot_and_what_is_optional_shows_the_image() {
    let bench = Bench::new("mkdir -p srv/a srv/b srv/c; echo image >srv/a/f; echo image >srv/b/f");
    let device = ext4(24, &[]);
    inside(&device, "mkdir $m/b; echo kept >$m/b/f; ln -s /etc $m/c");
    let missing = json!({ "target": "/srv/a", "source": { "label": "nobody-has-this" } });
    bench.play(json!([missing]), "").failed_with(
        16,
        &["/srv/a cannot be preserved", "no device has that name"],
    );
    let mut optional = missing.clone();
    optional["required"] = json!(false);
    let entries = json!([
        optional,
        entry("/srv/b", &device, json!({ "subdir": "b" })),
        entry(
            "/srv/c",
            &device,
            json!({ "subdir": "c", "required": false })
        ),
    ]);
    let seen = bench.good(
        entries,
        r#"echo "f=$(cat "$root/srv/a/f" "$root/srv/b/f" | tr '\n' ' ')"; echo "c=$(ls "$root/srv/c")""#,
    );
    assert_eq!((seen.fact("f"), seen.fact("c")), ("image kept ", ""));
    for path in ["/srv/a", "/srv/c"] {
        let warning = format!("{path} is not preserved and shows the image's content");
        assert!(
            seen.ended.stderr.contains(&warning),
            "{}",
            seen.ended.stderr
        );
    }
}

#[test]
fn a_source_that_comes_late_is_waited_for() {
    let bench = Bench::new("");
    let device = LoopDevice::blank(32);
    tool("sgdisk", &["-n1:2048:+20M", device.arg()]);
    tool(
        "mke2fs",
        &[
            "-q",
            "-F",
            "-t",
            "ext4",
            "-E",
            "offset=1048576",
            device.arg(),
            "20M",
        ],
    );
    // The kernel of a test may know no GPT: it is told of the partition later.
    let source = json!({ "disk": { "path": device.arg() }, "partition": 1 });
    let mut config =
        bench.config(json!([{ "target": "/srv", "source": source, "required": false }]));
    config["wait"] = json!("60s");
    let arg = device.arg().to_owned();
    let late = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(4));
        loop_device::try_tool("addpart", &[&arg, "1", "2048", "40960"])
    });
    let seen = bench.play_config(&config, r#"echo "kind=$(stat -fc %T "$root/srv")""#);
    late.join().unwrap();
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("kind"), "ext2/ext3");
    let waiting = "waiting for source partition 1 of the disk";
    assert!(seen.ended.stderr.contains(waiting), "{}", seen.ended.stderr);
}

#[test]
fn nothing_that_holds_data_is_formatted() {
    let bench = Bench::new("");
    let play = |device: &LoopDevice, more: Value| {
        let mut all = json!({ "format": "IfBlank" });
        for (key, value) in more.as_object().unwrap() {
            all[key] = value.clone();
        }
        bench.play(json!([entry("/srv", device, all)]), "")
    };
    // Bytes of nobody's format, at either end.
    for at in [4000usize, (24 << 20) - 100] {
        let mut bytes = vec![0u8; 24 << 20];
        bytes[at] = 1;
        let device = LoopDevice::holding(&bytes);
        play(&device, json!({})).failed_with(16, &["unknown data"]);
        assert!(device.bytes() == bytes, "{at}");
    }
    for (script, part) in [
        ("mkswap", "swap on"),
        ("sgdisk -n1:0:0", "gpt on"),
        ("mkfs.btrfs -q", ""),
    ] {
        let device = LoopDevice::blank(128);
        tool(
            "sh",
            &["-c", &format!("{script} {} >/dev/null 2>&1", device.arg())],
        );
        let before = device.bytes();
        let seen = play(&device, json!({ "filesystem": "ext4" }));
        assert_eq!(seen.ended.code, Some(16), "{}", seen.ended.stderr);
        let part = if part.is_empty() { "btrfs on" } else { part };
        assert!(
            seen.ended.stderr.contains(part),
            "{part}: {}",
            seen.ended.stderr
        );
        assert!(device.bytes() == before, "{script}");
    }
    // A blank device is not formatted unasked, and neither by a look at the plan.
    let device = LoopDevice::blank(24);
    bench
        .play(json!([entry("/srv", &device, json!({}))]), "")
        .failed_with(16, &["is blank, and `format` is Never"]);
    let config = bench.lab.path("plan.json");
    let entries = json!([entry("/srv", &device, json!({ "format": "IfBlank" }))]);
    std::fs::write(&config, bench.config(entries).to_string()).unwrap();
    let before = device.written();
    let ended = program::ironroot(&["plan", "--config", config.to_str().unwrap()]);
    assert!(
        ended.stdout.contains("ERASE: make ext4"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    assert_eq!(device.written(), before);
    // And not when the image turns out to be bad.
    let mut config = bench.config(json!([entry(
        "/srv",
        &device,
        json!({ "format": "IfBlank" })
    )]));
    config["image"]["digest"] = json!(format!("sha256:{}", "0".repeat(64)));
    bench.play_config(&config, "").failed_with(12, &["digest"]);
    assert_eq!(device.written(), before);
}

#[test]
fn xfs_is_made_and_mounted_as_well() {
    let bench = Bench::new("");
    let device = LoopDevice::blank(320);
    let entries = json!([entry(
        "/srv",
        &device,
        json!({ "format": "IfBlank", "filesystem": "xfs", "method": "mount" })
    )]);
    let look = format!(r#"{COUNT}; echo "n=$(count "$root/srv/n") $(stat -fc %T "$root/srv")""#);
    assert_eq!(bench.good(entries.clone(), &look).fact("n"), "1 xfs");
    assert_eq!(bench.good(entries, &look).fact("n"), "2 xfs");
    let other = json!([entry("/srv", &device, json!({ "filesystem": "ext4" }))]);
    bench
        .play(other, "")
        .failed_with(16, &["xfs on", "`filesystem` is ext4"]);
}

#[test]
fn a_damaged_file_system_is_repaired_or_refused() {
    let bench = Bench::new("");
    let entries = |device: &LoopDevice| json!([entry("/srv", device, json!({ "subdir": "d" }))]);
    // Counts that are off: e2fsck -p corrects them.
    let device = ext4(24, &[]);
    inside(&device, "mkdir $m/d; echo kept >$m/d/f");
    tool(
        "debugfs",
        &["-w", "-R", "ssv free_blocks_count 1", device.arg()],
    );
    tool("debugfs", &["-w", "-R", "ssv state 2", device.arg()]);
    let seen = bench.good(
        entries(&device),
        r#"echo "f=$(cat "$root/srv/d/f" "$root/srv/f" 2>/dev/null)""#,
    );
    assert_eq!(seen.fact("f"), "kept");
    assert!(
        seen.ended
            .stderr
            .contains("had errors, which were corrected"),
        "{}",
        seen.ended.stderr
    );
    // An inode table of noise: nobody decides that by himself.
    let device = ext4(24, &[]);
    inside(&device, "mkdir $m/d; echo kept >$m/d/f");
    let groups = loop_device::tool("dumpe2fs", &[device.arg()]);
    let table = groups
        .lines()
        .find_map(|l| l.trim().strip_prefix("Inode table at ")?.split('-').next())
        .unwrap()
        .to_owned();
    let size = loop_device::tool("dumpe2fs", &["-h", device.arg()])
        .lines()
        .find_map(|l| l.strip_prefix("Block size:"))
        .unwrap()
        .trim()
        .to_owned();
    let script = format!(
        "head -c 16384 /dev/urandom | dd of={} bs={size} seek={table} conv=notrunc status=none; debugfs -w -R 'ssv state 2' {0}",
        device.arg()
    );
    tool("sh", &["-c", &script]);
    let before = device.bytes();
    bench.play(entries(&device), "").failed_with(
        16,
        &[
            "is damaged and cannot be repaired without a decision",
            "e2fsck",
        ],
    );
    let _ = before;
    // The same, optional: the machine starts.
    let mut optional = entries(&device);
    optional[0]["required"] = json!(false);
    bench.good(optional, "");
}

#[test]
fn a_source_that_is_full_or_read_only_gives_what_it_has() {
    let bench = Bench::new("mkdir -p srv; head -c 3000000 /dev/urandom >srv/big");
    let device = ext4(16, &[]);
    inside(
        &device,
        "mkdir $m/d; echo kept >$m/d/f; dd if=/dev/zero of=$m/fill bs=64k status=none 2>/dev/null || true; dd if=/dev/zero of=$m/fill2 bs=1k status=none 2>/dev/null || true",
    );
    let look = r#"echo "f=$(cat "$root/srv/f")""#;
    assert_eq!(
        bench
            .good(
                json!([entry("/srv", &device, json!({ "subdir": "d" }))]),
                look
            )
            .fact("f"),
        "kept"
    );
    let seeded = json!([entry(
        "/srv",
        &device,
        json!({ "subdir": "new", "seed": "FromImageOnce" })
    )]);
    bench
        .play(seeded, "")
        .failed_with(16, &["/srv cannot be preserved"]);
    assert_eq!(inside(&device, "ls -d $m/new 2>/dev/null || true"), "");

    let bytes = device.bytes();
    let write_protected = LoopDevice::attached(&bytes, &["--read-only"]);
    let at = |more: Value| json!([entry("/srv", &write_protected, more)]);
    bench
        .play(at(json!({ "subdir": "d" })), "")
        .failed_with(16, &["is read-only"]);
    let seen = bench.good(
        at(json!({ "subdir": "d", "options": ["ro"] })),
        &format!("{look}; touch \"$root/srv/x\" 2>/dev/null && echo wrote=yes || echo wrote=no"),
    );
    assert_eq!((seen.fact("f"), seen.fact("wrote")), ("kept", "no"));
    // What would have to be made there cannot be.
    bench
        .play(at(json!({ "subdir": "none", "options": ["ro"] })), "")
        .failed_with(16, &["/srv cannot be preserved"]);
}

#[test]
fn what_is_mounted_is_undone_when_a_later_step_fails() {
    let bench = Bench::new("rm sbin/init bin/busybox");
    let device = LoopDevice::blank(24);
    let entries = json!([entry("/srv", &device, json!({ "format": "IfBlank" }))]);
    // The path was attached before it showed that nothing can be started.
    bench.play(entries, "").failed_with(17, &["no init"]);
    assert!(inside(&device, "ls $m").contains("lost+found"));
}

#[test]
fn what_else_mounts_there_is_named_before_the_switch() {
    let bench = Bench::new(
        "mkdir -p srv usr/lib/systemd/system; echo '/dev/sdz1 /srv ext4 defaults 0 2' >etc/fstab
        printf '[Mount]\\nWhat=/dev/sdz2\\nWhere=/opt/x\\n' >usr/lib/systemd/system/opt-x.mount",
    );
    let device = ext4(24, &[]);
    let seen = bench.good(
        json!([
            entry("/srv", &device, json!({ "subdir": "a" })),
            entry("/opt/x", &device, json!({ "subdir": "b" })),
        ]),
        "echo fstab=$(wc -l <\"$root/etc/fstab\")",
    );
    for part in [
        "/etc/fstab of the image mounts something at /srv too",
        "opt-x.mount of the image mounts something at /opt/x too",
    ] {
        assert!(
            seen.ended.stderr.contains(part),
            "{part}: {}",
            seen.ended.stderr
        );
    }
    // Nothing is added to it.
    assert_eq!(seen.fact("fstab"), "1");
}

#[test]
fn the_machine_id_is_made_once_and_the_first_boot_stays_one() {
    for (script, first_boot) in [
        ("rm -f etc/machine-id", true),
        (
            "echo uninitialized >etc/machine-id; mkdir -p var/lib/dbus; ln -s /etc/machine-id var/lib/dbus/machine-id",
            true,
        ),
        (": >etc/machine-id", false),
    ] {
        let bench = Bench::new(script);
        let device = ext4(24, &[]);
        let entries = json!([entry(
            "/etc/machine-id",
            &device,
            json!({ "kind": "file", "subdir": "machine-id" })
        )]);
        // What the systemd of the image would do, done by the one of this machine.
        let look = r#"echo "before=$(cat "$root/etc/machine-id" 2>/dev/null)"
            echo "mounted=$(grep -c " $root/etc/machine-id " /proc/self/mountinfo)"
            systemd-machine-id-setup --root="$root" >/dev/null 2>&1; echo "id=$(cat "$root/etc/machine-id")""#;
        let mut ids = Vec::new();
        for n in 1..=10 {
            let seen = bench.good(entries.clone(), look);
            assert_eq!(seen.fact("mounted"), "0");
            let before = seen.fact("before");
            let is_first = before.is_empty() || before == "uninitialized";
            assert_eq!(
                is_first,
                first_boot && n == 1,
                "{script}: boot {n}: {before}"
            );
            ids.push(seen.fact("id").to_owned());
        }
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!(ids[0].len(), 32);
        assert_eq!(inside(&device, "cat $m/machine-id").trim(), ids[0]);
    }
}

#[test]
fn ssh_host_keys_live_in_an_overlay_through_image_upgrades() {
    let script = |port: u32| format!("mkdir -p etc/ssh; echo Port {port} >etc/ssh/sshd_config");
    let mut bench = Bench::new(&script(1));
    let device = ext4(24, &[]);
    let entries = json!([entry(
        "/etc/ssh",
        &device,
        json!({ "subdir": "ssh", "method": "overlay" })
    )]);
    let look = r#"ssh-keygen -A -f "$root" >/dev/null 2>&1
        echo "key=$(cut -d' ' -f2 "$root/etc/ssh/ssh_host_ed25519_key.pub")"; echo "config=$(cat "$root/etc/ssh/sshd_config")""#;
    let first = bench.good(entries.clone(), look);
    bench.image = build(&bench.lab, "next", &script(2));
    let second = bench.good(entries, look);
    assert_eq!(first.fact("key"), second.fact("key"));
    assert!(first.fact("key").len() > 60);
    assert_eq!(
        (first.fact("config"), second.fact("config")),
        ("Port 1", "Port 2")
    );
}

#[test]
fn scratch_and_preserved_paths_lie_in_each_other() {
    let bench = Bench::new("mkdir -p var/lib");
    let device = ext4(24, &[]);
    let mut config = bench.config(json!([
        entry("/var", &device, json!({ "subdir": "v" })),
        entry("/var/tmp/x/kept", &device, json!({ "subdir": "k" })),
    ]));
    config["memory"] = json!({ "scratch": ["/var/tmp/x"] });
    let seen = bench.play_config(
        &config,
        r#"echo "kinds=$(stat -fc %T "$root/var" "$root/var/tmp/x" "$root/var/tmp/x/kept" | tr '\n' ' ')""#,
    );
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("kinds"), "ext2/ext3 tmpfs ext2/ext3 ");
}

/// An unpacked image has no layer below: what it brought is seen beside what is mounted over it.
#[test]
fn an_unpacked_image_is_preserved_from_as_well() {
    let mut bench = Bench::new("");
    let root = bench.lab.system("tar-root");
    let tar = bench.lab.path("image.tar");
    let script = format!(
        "cd {}; mkdir -p srv/d etc/app; echo one >srv/d/f; echo v1 >etc/app/version; tar --format=pax -cf {} .",
        root.display(),
        tar.display()
    );
    tool("sh", &["-ec", &script]);
    bench.image = tar;
    let device = ext4(32, &[]);
    let entries = json!([
        entry(
            "/srv",
            &device,
            json!({ "subdir": "s", "seed": "FromImageOnce" })
        ),
        entry("/srv/d/below", &device, json!({ "subdir": "b" })),
        entry(
            "/etc/app",
            &device,
            json!({ "subdir": "app", "method": "overlay" })
        ),
    ]);
    let look = format!(
        r#"{COUNT}
        echo "n=$(count "$root/srv/d/n") $(count "$root/srv/d/below/n") $(count "$root/etc/app/n")"
        echo "image=$(cat "$root/srv/d/f" "$root/etc/app/version" | tr '\n' ' ')"
        touch /run/ironroot/state/image/x 2>/dev/null && echo wrote=yes || echo wrote=no"#
    );
    for n in 1..=2 {
        let seen = bench.good(entries.clone(), &look);
        assert_eq!(seen.fact("n"), format!("{n} {n} {n}"));
        assert_eq!(seen.fact("image"), "one v1 ");
        assert_eq!(seen.fact("wrote"), "no");
    }
}
