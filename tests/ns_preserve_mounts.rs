//! What a preserved path is once it is there: attributes of the image's content on the source, the options of each
//! mount as the kernel tells them, and what becomes of a source whose program is not in the initrd. Needs root.
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

use loop_device::LoopDevice;
use preserving::{Bench, entry, ext4, inside, settle};
use serde_json::{Value, json};
use session::{Seen, tool};

/// What is told of everything below $1, in one order and without the place itself.
const ALL: &str = r#"all() { (cd "$1" && find . -name lost+found -prune -o -name .ironroot -prune -o -print | sort | while read -r f; do
    stat -c '%n %a %u:%g' "$f"; getfacl -np "$f" 2>/dev/null; getcap "$f"; getfattr -h -d -m - -e hex "$f"; done); }"#;

const CONTENT: &str = r"mkdir -p srv/app/d; echo one >srv/app/d/f; echo two >srv/app/g; cp bin/busybox srv/app/ping
    ln -s d srv/app/link; mkfifo srv/app/fifo; cp -a srv/app/g single
    chown 1000:1001 srv/app/d; chown 5:6 srv/app/g single; chmod 2750 srv/app/d
    setfacl -m u:1234:rwx,g:77:r srv/app/d; setfacl -d -m u:55:rx,m::rwx srv/app/d; setfacl -m u:77:rw srv/app/g single
    setcap cap_net_raw,cap_net_admin+ep srv/app/ping
    setfattr -n user.note -v text srv/app/g; setfattr -n trusted.note -v 'of root' srv/app/d; setfattr -n user.bytes -v 0x00ff0a single
    setfattr -h -n security.link -v l srv/app/link; setfattr -n user.top -v top srv/app";

/// ACLs, capabilities and all other attributes: the same in the image, on the source and in the session, by a tree
/// that is unpacked and by one that is mounted, in a directory, the root of a file system and a single file.
#[test]
fn attributes_of_the_image_are_on_the_source() {
    let mut bench = Bench::new("");
    let root = bench.lab.system("root");
    let text = root.to_str().unwrap();
    let told = |place: &str| loop_device::tool("sh", &["-ec", &format!("{ALL}; all {place}")]);
    tool("sh", &["-ec", &format!("cd {text}\n{CONTENT}")]);
    let wanted = told(&format!("{text}/srv/app"));
    for part in [
        "user:1234:rwx",
        "default:user:55:r-x",
        "cap_net_admin,cap_net_raw=ep",
        "user.note=0x74657874",
        "trusted.note=",
        "security.link=",
        "user.top=",
    ] {
        assert!(wanted.contains(part), "{part}: {wanted}");
    }
    // An overlay obeys these: they are left out, and that is said.
    let of_root = |line: &&str| !line.starts_with("trusted.");
    let wanted: Vec<&str> = wanted.lines().filter(of_root).collect();
    let wanted = wanted.join("\n") + "\n";
    let single = loop_device::tool(
        "getfacl",
        &["-np", "--omit-header", &format!("{text}/single")],
    );
    assert!(single.contains("user:77:rw-"), "{single}");

    let tar = bench.lab.path("image.tar");
    let archive = format!(
        "tar -C {text} --format=pax --acls --xattrs --xattrs-include='*' -cf {} .",
        tar.display()
    );
    tool("sh", &["-ec", &archive]);
    for image in [tar, bench.lab.erofs(&root, "image.erofs")] {
        bench.image = image;
        for whole in [false, true] {
            let device = ext4(24, &["-I", "256"]);
            let mut more = json!({ "seed": "FromImageOnce" });
            if !whole {
                more["subdir"] = json!("a/b");
            }
            let mut entries = vec![entry("/srv/app", &device, more)];
            if !whole {
                let file = json!({ "seed": "FromImageOnce", "kind": "file", "subdir": "one" });
                entries.push(entry("/single", &device, file));
            }
            let look = format!(
                r#"{ALL}; all "$root/srv/app" >{}"#,
                bench.lab.path("seen").display()
            );
            for session in 1..=2 {
                let seen = bench.good(json!(entries), &look);
                let filled = seen.ended.stderr.contains(": filled from the image, ");
                assert_eq!(filled, session == 1, "{}", seen.ended.stderr);
                let dropped = "attributes of the namespace trusted were left out";
                assert!(
                    session == 2 || seen.ended.stderr.contains(dropped),
                    "{}",
                    seen.ended.stderr
                );
                let of_the_session = std::fs::read_to_string(bench.lab.path("seen")).unwrap();
                assert_eq!(of_the_session, wanted, "{:?} {whole}", bench.image);
                let at = if whole { "$m" } else { "$m/a/b" };
                let on_the_source = inside(&device, &format!("{ALL}; all {at}"));
                assert_eq!(on_the_source, wanted, "{:?} {whole}", bench.image);
            }
            if !whole {
                let script = "getfacl -np --omit-header $m/one; stat -c %u:%g $m/one; getfattr -d -m user -e hex --absolute-names $m/one";
                let one = inside(&device, script);
                assert!(one.starts_with(&single), "{one}");
                assert!(
                    one.contains("\n5:6\n") && one.contains("user.bytes=0x00ff0a"),
                    "{one}"
                );
            }
        }
    }
}

/// The root of a file system cannot be made anew for another claim: what its last owner left on it goes as well, and
/// what a check of the file system put into lost+found.
#[test]
fn a_whole_file_system_comes_to_another_claim_without_its_attributes() {
    let bench = Bench::new("mkdir srv");
    let device = ext4(24, &[]);
    let play = |claim: &str, more: Value, look: &str| {
        let mut all = json!({ "claimBound": true });
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let mut config = bench.config(json!([entry("/srv", &device, all)]));
        config["metadata"]["claim"] = json!(claim);
        bench.play_config(&config, look)
    };
    let owns = r#"cd "$root/srv"; echo mine >f; chown 1000:1001 .; chmod 1777 .; setfacl -m u:1234:rwx .
        setfacl -d -m u:1234:rwx .; setfattr -n user.note -v secret .; setfattr -n trusted.note -v secret ."#;
    assert_eq!(play("a", json!({}), owns).ended.code, Some(0));
    inside(
        &device,
        "mkdir $m/lost+found/d; echo mine >$m/lost+found/d/f",
    );
    let refused = play("b", json!({}), "");
    refused.failed_with(16, &["belongs to claim a"]);
    let look = r#"echo "list=$(ls -A "$root/srv" | tr '\n' ' ') $(ls -A "$root/srv/lost+found")"; cd "$root/srv"
        echo "told=$(stat -c '%a %u:%g' .) $(getfacl -cpnE . | tr '\n' ' ')$(getfattr -d -m '^(user|trusted|system)' .)""#;
    let seen = play("b", json!({ "otherClaim": "Erase" }), look);
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("list"), ".ironroot lost+found  ");
    assert_eq!(
        seen.fact("told"),
        "755 0:0 user::rwx group::r-x other::r-x  "
    );

    // Nobody knows whose it is that a check has put there.
    inside(
        &device,
        "rm -r $m/.ironroot; echo whose >$m/lost+found/'#12'",
    );
    play("c", json!({}), "")
        .failed_with(16, &["has content and belongs to no claim that is known"]);
    let seen = play("c", json!({ "otherClaim": "Erase" }), look);
    assert_eq!(seen.fact("list"), ".ironroot lost+found  ");
}

/// What mountinfo has of the mount at a path of the session: the options of the mount, and those of its file system.
const MOUNTS: &str = r#"mounts() { sed -n "s|^[0-9 :]* [^ ]* $root$1 \([^ ]*\) .*- [^ ]* [^ ]* \(.*\)|\1 \2|p" /proc/self/mountinfo; }"#;

fn words(text: &str) -> Vec<&str> {
    text.split(',').collect()
}

/// The features of an overlay that is mounted: the kernel tells only what differs from its defaults (Linux:
/// fs/overlayfs/params.c, `ovl_show_options`).
fn feature(options: &str, key: &str, parameter: &str) -> String {
    let shown = words(options)
        .into_iter()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    if let Some(value) = shown {
        return value.to_owned();
    }
    let path = format!("/sys/module/overlay/parameters/{parameter}");
    let value = std::fs::read_to_string(path).unwrap();
    if value.trim() == "Y" { "on" } else { "off" }.to_owned()
}

#[test]
fn an_overlay_has_none_of_the_features_that_bind_it_to_one_image() {
    let bench = Bench::new("mkdir -p etc/app/d; echo image >etc/app/d/f; echo image >etc/app/f");
    let device = ext4(24, &[]);
    let entries = json!([entry(
        "/etc/app",
        &device,
        json!({ "subdir": "o", "method": "overlay" })
    )]);
    // A directory of the image that is renamed would be a redirect, and a change of mode alone a file without content.
    let look = format!(
        r#"{MOUNTS}
        echo "app=$(mounts /etc/app)"; echo "root=$(mounts "")"
        mv "$root/etc/app/d" "$root/etc/app/e" 2>/dev/null; chmod 0600 "$root/etc/app/f"; ln "$root/etc/app/f" "$root/etc/app/g""#
    );
    let seen = bench.good(entries, &look);
    for mount in ["app", "root"] {
        let (_, options) = seen.fact(mount).split_once(' ').unwrap();
        assert!(options.contains("upperdir="), "{mount}: {options}");
        for (key, parameter) in [
            ("index", "index"),
            ("metacopy", "metacopy"),
            ("xino", "xino_auto"),
        ] {
            assert_eq!(
                feature(options, key, parameter),
                "off",
                "{mount}: {options}"
            );
        }
        let redirect = feature(options, "redirect_dir", "redirect_dir");
        let none = ["off", "follow", "nofollow"].contains(&redirect.as_str());
        assert!(none, "{mount}: {options}");
    }
    // Nothing of the sort is on the source.
    let left = inside(
        &device,
        "ls -A $m/o/work; getfattr -R -h -d -m overlay --absolute-names $m/o/upper; cat $m/o/upper/f $m/o/upper/e/f",
    );
    for word in ["redirect", "metacopy", "index"] {
        assert!(!left.contains(word), "{word}: {left}");
    }
    assert!(left.ends_with("image\nimage\n"), "{left}");
}

#[test]
fn each_mount_has_the_flags_that_were_asked_for_and_no_others() {
    let bench = Bench::new("mkdir -p srv etc/app; echo image >etc/app/f");
    let device = ext4(24, &[]);
    let look = format!(
        r#"{MOUNTS}
        echo "one=$(mounts /srv)"; echo "state=$(sed -n 's|^[0-9 :]* [^ ]* /run/ironroot/state/0 \([^ ]*\) .*|\1|p' /proc/self/mountinfo)"
        cp /bin/true "$root/srv/true" 2>/dev/null; "$root/srv/true" 2>/dev/null && echo run=yes || echo run=no
        mknod "$root/srv/null" c 1 3 2>/dev/null; echo x 2>/dev/null >"$root/srv/null" && echo dev=yes || echo dev=no"#
    );
    // Options; the flags of the mount; whether a program runs, and a device opens.
    for (options, flags, run, dev) in [
        (json!([]), "rw,nosuid,nodev,relatime", "yes", "no"),
        (json!(["suid", "dev"]), "rw,relatime", "yes", "yes"),
        (json!(["suid"]), "rw,nodev,relatime", "yes", "no"),
        (json!(["dev"]), "rw,nosuid,relatime", "yes", "yes"),
        (
            json!(["noexec"]),
            "rw,nosuid,nodev,noexec,relatime",
            "no",
            "no",
        ),
        (
            json!(["nodiratime"]),
            "rw,nosuid,nodev,nodiratime,relatime",
            "yes",
            "no",
        ),
        (json!(["strictatime"]), "rw,nosuid,nodev", "yes", "no"),
        (
            json!(["strictatime", "nodiratime"]),
            "rw,nosuid,nodev,nodiratime",
            "yes",
            "no",
        ),
        (json!(["noatime"]), "rw,nosuid,nodev,noatime", "yes", "no"),
        // What was said last counts.
        (
            json!(["noexec", "exec", "dev", "nodev"]),
            "rw,nosuid,nodev,relatime",
            "yes",
            "no",
        ),
    ] {
        for method in ["bind", "overlay"] {
            let more = json!({ "subdir": method, "method": method, "options": options });
            let seen = bench.good(json!([entry("/srv", &device, more)]), &look);
            let what = format!("{method} {options}");
            assert_eq!(seen.fact("one").split(' ').next(), Some(flags), "{what}");
            assert_eq!((seen.fact("run"), seen.fact("dev")), (run, dev), "{what}");
            // The mount behind it is ironroot's own, and lends nobody anything.
            assert_eq!(seen.fact("state"), "rw,nosuid,nodev,relatime", "{what}");
        }
    }
    let whole = LoopDevice::blank(16);
    tool("mke2fs", &["-q", "-F", "-t", "ext4", whole.arg()]);
    let mounted = json!({ "method": "mount", "options": ["ro", "noexec", "noatime"] });
    let file =
        json!({ "kind": "file", "subdir": "one", "options": ["suid", "noexec", "strictatime"] });
    let entries = json!([
        entry("/srv", &whole, mounted),
        entry("/etc/one", &device, file)
    ]);
    let seen = bench.good(
        entries,
        &format!("{look}; echo \"file=$(mounts /etc/one)\""),
    );
    assert!(
        seen.fact("one")
            .starts_with("ro,nosuid,nodev,noexec,noatime "),
        "{}",
        seen.text
    );
    assert!(
        seen.fact("file").starts_with("rw,nodev,noexec "),
        "{}",
        seen.text
    );
}

#[test]
fn options_of_the_file_system_are_those_of_all_its_paths() {
    let bench = Bench::new("mkdir -p srv opt");
    let look = format!(r#"{MOUNTS}; echo "one=$(mounts /srv)"; echo "two=$(mounts /opt)""#);
    let names = ["sync", "dirsync", "lazytime", "discard"];
    for (first, second) in [
        (json!([]), json!([])),
        (json!(["sync"]), json!([])),
        (json!(["lazytime", "discard"]), json!(["noatime"])),
        (json!(["dirsync"]), json!(["lazytime"])),
        (
            json!([
                "sync",
                "async",
                "discard",
                "nodiscard",
                "lazytime",
                "nolazytime"
            ]),
            json!([]),
        ),
    ] {
        let device = ext4(24, &[]);
        let with = |target: &str, subdir: &str, options: &Value| {
            entry(
                target,
                &device,
                json!({ "subdir": subdir, "options": options }),
            )
        };
        let entries = json!([with("/srv", "a", &first), with("/opt", "b", &second)]);
        let seen = bench.good(entries, &look);
        let taken_back = first.as_array().unwrap().contains(&json!("async"));
        let wanted: Vec<&str> = names
            .into_iter()
            .filter(|n| {
                !taken_back
                    && [&first, &second]
                        .iter()
                        .any(|o| o.as_array().unwrap().contains(&json!(n)))
            })
            .collect();
        for path in ["one", "two"] {
            let (_, options) = seen.fact(path).split_once(' ').unwrap();
            let has: Vec<&str> = names
                .into_iter()
                .filter(|n| words(options).contains(n))
                .collect();
            assert_eq!(has, wanted, "{path} of {first} {second}: {options}");
        }
    }
}

/// Plays where a program is not installed.
fn without(bench: &Bench, program: &str, config: &Value, look: &str) -> Seen {
    // What stands there is no program any more.
    let before = format!(
        "for d in /usr/sbin /usr/bin; do [ ! -e $d/{program} ] || mount --bind /dev/null $d/{program}; done"
    );
    let look = format!("[ $code = 0 ] || exit $code\n{look}");
    let seen = bench.lab.play_where(&before, config, &look);
    settle();
    seen
}

#[test]
fn a_program_that_is_not_in_the_initrd_is_named_before_the_image_is_fetched() {
    let bench = Bench::new("mkdir -p srv; echo image >srv/f");
    let config = |device: &LoopDevice, more: Value| {
        let mut config = bench.config(json!([entry("/srv", device, more)]));
        // Nothing can be fetched from there, which would be another code.
        config["image"] = json!({ "url": "http://127.0.0.1:9/image.squashfs", "digest": format!("sha256:{}", "0".repeat(64)) });
        config["onFailure"] = json!({ "retryFor": "1s" });
        config
    };
    let full = ext4(24, &[]);
    inside(&full, "mkdir $m/d; echo kept >$m/d/f");
    let blank = LoopDevice::blank(24);
    let large = LoopDevice::sparse(320, &[]);
    let format = |kind: &str| json!({ "format": "IfBlank", "filesystem": kind });
    for (program, device, more, package) in [
        ("e2fsck", &full, json!({ "subdir": "d" }), "e2fsprogs"),
        // The next boot could not check what this one makes.
        ("e2fsck", &blank, format("ext4"), "e2fsprogs"),
        ("mke2fs", &blank, format("ext4"), "e2fsprogs"),
        ("mkfs.xfs", &large, format("xfs"), "xfsprogs"),
    ] {
        let before = device.written();
        let seen = without(&bench, program, &config(device, more.clone()), "");
        let source = format!("source the disk path={} cannot be made ready", device.arg());
        let missing = format!("{program} is needed and not installed");
        let where_from = format!("({program} is in Debian's {package})");
        seen.failed_with(
            16,
            &[
                &source,
                &missing,
                "next: add the programs that `ironroot tools` prints",
                &where_from,
            ],
        );
        assert_eq!(device.written(), before, "{program}");
    }

    // An optional path is warned of, and nothing is changed; where nothing is written nothing is checked either.
    let with =
        |device: &LoopDevice, more: Value| bench.config(json!([entry("/srv", device, more)]));
    let look = r#"echo "f=$(cat "$root/srv/f" 2>/dev/null)""#;
    for (program, device, more) in [
        ("e2fsck", &full, json!({ "subdir": "d", "required": false })),
        (
            "mke2fs",
            &blank,
            json!({ "format": "IfBlank", "required": false }),
        ),
    ] {
        let before = device.written();
        let seen = without(&bench, program, &with(device, more), look);
        assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        assert_eq!(seen.fact("f"), "image");
        let missing = format!("{program} is needed and not installed");
        for part in ["shows the image's content", &missing] {
            assert!(
                seen.ended.stderr.contains(part),
                "{part}: {}",
                seen.ended.stderr
            );
        }
        assert_eq!(device.written(), before, "{program}");
    }
    let seen = without(
        &bench,
        "e2fsck",
        &with(&full, json!({ "subdir": "d", "options": ["ro"] })),
        look,
    );
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("f"), "kept");
    // mke2fs is not needed for what is there.
    let seen = without(
        &bench,
        "mke2fs",
        &with(&full, json!({ "subdir": "d", "format": "IfBlank" })),
        look,
    );
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("f"), "kept");
}
