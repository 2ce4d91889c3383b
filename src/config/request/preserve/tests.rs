use proptest::prelude::*;

use super::*;
use crate::config::parse;
use crate::config::request::interpret;

fn request(entries: &str) -> Result<Vec<Preserved>, Vec<String>> {
    let text = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","metadata":{{"claim":"a/b"}},
        "image":{{"url":"https://h/x"}},"memory":{{"scratch":["/scratch"]}},"preserve":[{entries}]}}"#
    );
    let config = parse::parse(text.as_bytes()).unwrap();
    interpret(&config)
        .map(|request| request.preserve)
        .map_err(|all| all.iter().map(ToString::to_string).collect())
}

/// One good entry with more keys.
fn with(more: &str) -> Result<Preserved, Vec<String>> {
    request(&format!(
        r#"{{"target":"/var/lib/x","source":{{"partlabel":"state"}}{more}}}"#
    ))
    .map(|mut all| all.remove(0))
}

#[track_caller]
fn refused(result: Result<impl std::fmt::Debug, Vec<String>>, part: &str) {
    let all = result.unwrap_err();
    assert!(
        all.iter().any(|line| line.contains(part)),
        "{part}: {all:?}"
    );
}

#[test]
fn defaults_are_the_careful_ones() {
    let entry = with("").unwrap();
    assert!(entry.required && !entry.format && entry.claim.is_none());
    assert_eq!(entry.subdir, Path::new(""));
    assert_eq!(entry.options.flags.to_string(), "rw,nosuid,nodev");
    let file = r#","kind":"file","target":"/etc/a"}"#;
    let file = request(&format!(r#"{{"source":{{"label":"l"}}{file}"#)).unwrap();
    assert_eq!(file[0].subdir, Path::new("etc/a"));
    let bound = with(r#","claimBound":true,"otherClaim":"Erase""#).unwrap();
    assert_eq!(bound.claim.as_deref(), Some("a/b"));
}

#[test]
fn a_source_is_named_in_exactly_one_way() {
    let with = |source: &str| request(&format!(r#"{{"target":"/a","source":{source}}}"#));
    for (source, text) in [
        (r#"{"partlabel":"s"}"#, "partlabel=s"),
        (r#"{"partuuid":"ABC"}"#, "partuuid=abc"),
        (r#"{"label":"S s"}"#, "label=S s"),
        (r#"{"uuid":"ABCD-12"}"#, "uuid=abcd-12"),
        (r#"{"disk":{"serial":"S"}}"#, "the disk serial=S"),
        (
            r#"{"disk":{"wwn":"w"},"partition":2}"#,
            "partition 2 of the disk wwn=w",
        ),
    ] {
        assert_eq!(with(source).unwrap()[0].source.to_string(), text);
    }
    for (source, part) in [
        ("{}", "source: exactly one"),
        (r#"{"label":"a","uuid":"b"}"#, "source: exactly one"),
        (r#"{"label":""}"#, "source: names nothing"),
        (r#"{"disk":{}}"#, "source: names nothing"),
        (r#"{"label":"a","partition":1}"#, "source.partition: only"),
        (r#"{"disk":{"serial":"S"},"partition":0}"#, "count from 1"),
    ] {
        refused(with(source), part);
    }
}

#[test]
fn what_makes_the_system_is_not_preserved() {
    for target in [
        "/",
        "/proc",
        "/proc/sys",
        "/sys",
        "/dev/shm",
        "/run",
        "/run/x",
        "/etc",
        "/usr",
        "/usr/bin",
        "/bin",
        "/sbin/x",
        "/lib",
        "/lib64",
        "/lib/modules",
        "/boot",
        "/boot/efi",
    ] {
        let entry = format!(r#"{{"target":"{target}","source":{{"label":"l"}}}}"#);
        refused(request(&entry), "preserve[0].target: the system itself");
    }
    for target in ["etc", "/a/../b", "/a/./b", ""] {
        let entry = format!(r#"{{"target":"{target}","source":{{"label":"l"}}}}"#);
        refused(request(&entry), "preserve[0].target: ");
    }
    for target in ["/etc/ssh", "/usr/local", "/library", "/boot/x", "/devices"] {
        let entry = format!(r#"{{"target":"{target}","source":{{"label":"l"}}}}"#);
        assert!(request(&entry).is_ok(), "{target}");
    }
}

#[test]
fn parents_come_first_and_nothing_is_given_twice() {
    let entry = |target: &str, subdir: &str| {
        format!(r#"{{"target":"{target}","source":{{"label":"l"}},"subdir":"{subdir}"}}"#)
    };
    let all = |entries: &[String]| request(&entries.join(","));
    let sorted = all(&[
        entry("/var/lib/a/b", "4"),
        entry("/var/lib", "2"),
        entry("/srv", "0"),
        entry("/var", "1"),
        entry("/var/lib-a", "3"),
    ])
    .unwrap();
    let targets: Vec<&Path> = sorted.iter().map(|e| e.target.as_path()).collect();
    assert_eq!(
        targets,
        ["/srv", "/var", "/var/lib", "/var/lib-a", "/var/lib/a/b"].map(Path::new)
    );
    refused(
        all(&[entry("/a", "x"), entry("/a/", "y")]),
        "preserve[1].target: the same as preserve[0].target",
    );
    for (one, other) in [("x", "x"), ("x", "x/y"), ("x/y", "/x/"), ("", "x")] {
        refused(
            all(&[entry("/a", one), entry("/b", other)]),
            "preserve[1].subdir: the same place",
        );
    }
    assert!(all(&[entry("/a", "x"), entry("/b", "xy")]).is_ok());
    refused(all(&[entry("/scratch", "")]), "`memory.scratch` names it");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    for (more, part) in [
        (
            r#","create":"10GiB""#,
            "create: only with a source that is named by `partlabel`",
        ),
        (r#","luks":{"keyFile":"k"}"#, "luks.keyFile: "),
        (r#","luks":{"keyFile":"/../k"}"#, "luks.keyFile: "),
        (
            r#","kind":"file","method":"overlay""#,
            "method: a file can only",
        ),
        (
            r#","kind":"file","method":"mount""#,
            "method: a file can only",
        ),
        (
            r#","method":"mount","subdir":"x""#,
            "subdir: `method` mount",
        ),
        (
            r#","method":"overlay","seed":"FromImageOnce""#,
            "seed: an overlay",
        ),
        (r#","otherClaim":"Erase""#, "otherClaim: only"),
        (r#","filesystem":"zfs""#, "filesystem: one of"),
        (r#","subdir":"../x""#, "subdir: "),
        (r#","subdir":".ironroot/x""#, "subdir: this name"),
        (r#","mode":"999""#, "mode: "),
        (r#","mode":"17777""#, "mode: "),
        (r#","owner":"root""#, "owner: "),
        (r#","owner":"0:-1""#, "owner: "),
        (r#","owner":"4294967295:0""#, "owner: "),
        (
            r#","options":["noatime","x-systemd.makefs"]"#,
            "options[1]: not a mount option",
        ),
    ] {
        refused(with(more), &format!("preserve[0].{part}"));
    }
    let blank = r#"{"target":"/a","source":{"label":"l"},"format":"IfBlank"}"#;
    refused(request(blank), "format: a blank source has neither");
    // Without a claim, nobody could say to whom it belongs.
    let text = r#"{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{"url":"https://h/x"},
        "memory":{},"preserve":[{"target":"/a","source":{"label":"l"},"claimBound":true}]}"#;
    let config = parse::parse(text.as_bytes()).unwrap();
    let all = interpret(&config).unwrap_err();
    assert!(all[0].to_string().contains("claimBound"), "{all:?}");
}

#[test]
fn what_is_made_has_a_name_a_size_and_at_most_a_disk() {
    let create = |source: &str, more: &str| {
        request(&format!(
            r#"{{"target":"/a","source":{source},"create":"1GiB"{more}}}"#
        ))
    };
    let blank = r#","format":"IfBlank""#;
    let made = create(r#"{"partlabel":"state"}"#, blank).unwrap().remove(0);
    let creation = made.create.unwrap();
    assert_eq!(creation.size, Bytes(1 << 30));
    assert_eq!(*creation.disk, wire::Select::default());
    let on = r#"{"partlabel":"state","disk":{"serial":"S"}}"#;
    let made = create(on, blank).unwrap().remove(0);
    assert_eq!(made.source, Source::Partlabel("state".to_owned()));
    assert_eq!(made.create.unwrap().disk.serial.as_deref(), Some("S"));
    for (source, more, part) in [
        (
            r#"{"disk":{"serial":"S"}}"#,
            blank,
            "create: only with a source",
        ),
        (r#"{"partlabel":"state"}"#, "", "format: IfBlank is needed"),
        (r#"{"partlabel":"12"}"#, blank, "source.partlabel: a label"),
        (
            r#"{"partlabel":"state","disk":{"serial":"S"},"partition":2}"#,
            blank,
            "source.partition: ",
        ),
        (
            r#"{"partlabel":"state","label":"x"}"#,
            blank,
            "source: exactly one",
        ),
    ] {
        refused(create(source, more), &format!("preserve[0].{part}"));
    }
    let small = r#"{"target":"/a","source":{"partlabel":"s"},"format":"IfBlank","create":"1MiB"}"#;
    refused(request(small), "preserve[0].create: at least 8");
    let percent = small.replace("1MiB", "50%");
    assert!(parse::parse(percent.as_bytes()).is_err());
    // Without `create`, a label on one disk only is no way of naming a device.
    let two = r#"{"target":"/a","source":{"partlabel":"s","disk":{"serial":"S"}}}"#;
    refused(request(two), "preserve[0].source: exactly one");
}

#[test]
fn an_installed_system_neither_opens_nor_makes() {
    let text = r#"{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{"url":"https://h/x"},"disk":{},
        "preserve":[{"target":"/a","source":{"partlabel":"l"},"format":"IfBlank","create":"1GiB","luks":{"keyFile":"/k"}}]}"#;
    let config = parse::parse(text.as_bytes()).unwrap();
    let all: Vec<String> = interpret(&config)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        all.iter()
            .any(|p| p.starts_with("preserve[0].luks: only with `memory`")),
        "{all:?}"
    );
    assert!(
        all.iter()
            .any(|p| p.starts_with("preserve[0].create: only with `memory`")),
        "{all:?}"
    );
}

#[test]
fn entries_of_one_source_open_it_with_one_key() {
    let entry = |target: &str, luks: &str| {
        format!(r#"{{"target":"{target}","source":{{"partlabel":"l"}},"subdir":"{target}"{luks}}}"#)
    };
    let key = r#","luks":{"keyFile":"/k"}"#;
    let two = |a: &str, b: &str| request(&[entry("/a", a), entry("/b", b)].join(","));
    assert!(two(key, key).is_ok());
    refused(
        two(key, ""),
        "preserve[1].luks: preserve[0] names the same source",
    );
    refused(
        two(key, r#","luks":{"keyFile":"/other"}"#),
        "preserve[1].luks: ",
    );
}

#[test]
fn options_mode_and_owner_are_read() {
    let entry = with(
        r#","mode":"0750","owner":"12:34","options":["noatime","nodiratime","ro","suid","dev","noexec","sync","async","discard"]"#,
    )
    .unwrap();
    assert_eq!((entry.mode, entry.owner), (Some(0o750), Some((12, 34))));
    assert_eq!(
        entry.options.flags.to_string(),
        "ro,noexec,noatime,nodiratime"
    );
    assert_eq!(entry.options.file_system, ["discard"]);
}

proptest! {
    #[test]
    fn a_path_on_a_source_stays_in_it(text in "[a-z./\\\\ \\n]{0,24}") {
        if let Ok(path) = inner_path(&text) {
            prop_assert!(path.components().all(|c| matches!(c, std::path::Component::Normal(_))), "{path:?}");
        }
    }

    #[test]
    fn any_text_is_a_mode_or_not(text in "\\PC{0,6}") {
        if let Ok(mode) = octal_mode(&text) {
            prop_assert!(mode <= 0o7777);
            prop_assert_eq!(octal_mode(&format!("{mode:04o}")), Ok(mode));
        }
    }

    #[test]
    fn an_owner_that_is_read_is_written_the_same(user in 0..u32::MAX, group in 0..u32::MAX, junk in "\\PC{0,12}") {
        prop_assert_eq!(numeric_owner(&format!("{user}:{group}")), Ok((user, group)));
        let _ = numeric_owner(&junk);
    }

    #[test]
    fn any_words_are_options_or_are_named(words in proptest::collection::vec("[a-z=]{0,10}", 0..6)) {
        if let Err(wrong) = options::parse(&words) {
            for (i, _) in wrong {
                prop_assert!(i < words.len());
            }
        }
    }
}
