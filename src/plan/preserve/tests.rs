use super::*;
use crate::config::parse;
use crate::config::request::interpret;
use crate::host::tables::{PartitionKind, Table, TablePartition};
use crate::host::{Content, Disk, DiskKind, Partition};
use crate::units::MIB;

fn request(entries: &str) -> Request {
    let text = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","metadata":{{"claim":"a/b"}},
        "image":{{"url":"https://h/x"}},"memory":{{}},"preserve":[{entries}]}}"#
    );
    interpret(&parse::parse(text.as_bytes()).unwrap()).unwrap()
}

fn content(device: &str, what: &str, label: &str) -> Content {
    Content {
        device: device.to_owned(),
        what: what.to_owned(),
        label: Some(label.to_owned()),
        uuid: Some(format!("uuid-of-{device}")),
    }
}

fn disk(name: &str, minor: u32) -> Disk {
    Disk {
        name: name.to_owned(),
        path: format!("/dev/{name}").into(),
        dev: DevNum { major: 8, minor },
        size: Bytes(1 << 30),
        ..Disk::default()
    }
}

fn gpt(entries: Vec<TablePartition>) -> Table {
    let Table::Gpt(mut gpt) = serde_json::from_str(
        r#"{"kind":"gpt","table":{"sector":512,"diskGuid":"d","protective":true,"primary":{"state":"valid"},
        "backup":{"state":"valid"},"copiesAgree":true,"backupAtEnd":true,"usable":[34,100],"entries":128,
        "partitions":[],"flaws":[]}}"#,
    )
    .unwrap() else {
        panic!("no gpt");
    };
    gpt.partitions = entries;
    Table::Gpt(gpt)
}

fn entry(number: u32, name: &str) -> TablePartition {
    TablePartition {
        number,
        start: Bytes(u64::from(number) * MIB),
        size: Bytes(MIB),
        kind: PartitionKind::Guid("x".to_owned()),
        partuuid: format!("0000-{number}"),
        name: Some(name.to_owned()),
        attributes: 0,
    }
}

fn partition(disk: &str, minor: u32, number: u32) -> Partition {
    Partition {
        name: format!("{disk}{number}"),
        number,
        dev: DevNum {
            major: 8,
            minor: minor + number,
        },
        start: Bytes(u64::from(number) * MIB),
        size: Bytes(MIB),
        blank: true,
    }
}

fn device_above(device: &str, holder: &str) -> Holder {
    Holder::Device {
        device: device.to_owned(),
        holder: holder.to_owned(),
        what: "x".to_owned(),
    }
}

/// The kernel name that the source comes to, or what is wrong with it.
fn found(disks: Vec<Disk>, source: &str) -> Result<String, Trouble> {
    let facts = Facts {
        disks,
        waited: true,
        ..Facts::default()
    };
    let request = request(&format!(r#"{{"target":"/a","source":{source}}}"#));
    match decide(&request, &facts) {
        Ok(decided) => match decided.sources.first() {
            Some(Step::OpenSource { source }) => Ok(source.name.clone()),
            other => panic!("{other:?}"),
        },
        Err(Refusal::Preserve { trouble, .. }) => Err(trouble),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_disk_by_a_name_that_only_udev_makes_is_not_waited_for_without_it() {
    let facts = |no_udev| Facts {
        disks: vec![disk("sda", 0)],
        no_udev,
        ..Facts::default()
    };
    let trouble = |path: &str, no_udev| {
        let source = format!(r#"{{"disk":{{"path":"/dev/disk/{path}"}},"partition":1}}"#);
        let request = request(&format!(r#"{{"target":"/a","source":{source}}}"#));
        match decide(&request, &facts(no_udev)) {
            Err(Refusal::Preserve { trouble, .. }) => trouble.may_heal(),
            other => panic!("{other:?}"),
        }
    };
    assert!(!trouble("by-path/pci-0000:03:00.0-sas-phy0-lun-0", true));
    assert!(trouble("by-path/pci-0000:03:00.0-sas-phy0-lun-0", false));
    assert!(trouble("by-path/pci-0000:03:00.0-nvme-1", true));
}

#[test]
fn the_paths_of_a_multipath_device_are_passed_over() {
    let table = || gpt(vec![entry(1, "state")]);
    let part_content = |name: &str| content(name, "ext4", "S");
    let path = |name: &str, minor| Disk {
        partitions: vec![partition(name, minor, 1)],
        table: table(),
        contents: vec![content(name, "gpt", ""), part_content(&format!("{name}1"))],
        holders: vec![
            device_above(name, "dm-0"),
            device_above("dm-0", "dm-1"),
            device_above(&format!("{name}1"), "dm-1"),
        ],
        ..disk(name, minor)
    };
    let map = |name: &str, minor, uuid: &str| Disk {
        kind: DiskKind::DeviceMapper,
        map_uuid: Some(uuid.to_owned()),
        ..disk(name, minor)
    };
    let whole = Disk {
        table: table(),
        contents: vec![content("dm-0", "gpt", ""), part_content("dm-0p1")],
        holders: vec![device_above("dm-0", "dm-1")],
        ..map("dm-0", 100, "mpath-36001")
    };
    let part = Disk {
        size: Bytes(MIB),
        contents: vec![part_content("dm-1")],
        ..map("dm-1", 101, "part1-mpath-36001")
    };
    let disks = || vec![path("sda", 0), path("sdb", 16), whole.clone(), part.clone()];
    for source in [
        r#"{"label":"S"}"#,
        r#"{"uuid":"UUID-OF-DM-1"}"#,
        r#"{"partlabel":"state"}"#,
        r#"{"partuuid":"0000-1"}"#,
    ] {
        assert_eq!(found(disks(), source), Ok("dm-1".to_owned()), "{source}");
    }
    // What the paths alone have names the whole.
    let Err(Trouble::PartOf(how)) = found(disks(), r#"{"disk":{"path":"/dev/sda"}}"#) else {
        panic!("a path of a multipath device is a source");
    };
    assert_eq!(how, "sda is part of x (dm-0)");
    // Without the map there are two of each.
    let mut bare = disks();
    bare.truncate(2);
    for disk in &mut bare {
        disk.holders.clear();
    }
    let two = Trouble::Several(vec!["sda1".to_owned(), "sdb1".to_owned()]);
    for source in [r#"{"label":"S"}"#, r#"{"partlabel":"state"}"#] {
        assert_eq!(found(bare.clone(), source), Err(two.clone()), "{source}");
    }
}

#[test]
fn a_disk_of_an_array_is_no_source_even_before_the_array_is_there() {
    let member = |name: &str, minor| Disk {
        contents: vec![
            content(name, "ext4", "S"),
            content(name, "linux_raid_member", "host:0"),
        ],
        ..disk(name, minor)
    };
    let source = r#"{"label":"S"}"#;
    let missing = Err(Trouble::Missing { unreadable: vec![] });
    assert_eq!(
        found(vec![member("sda", 0), member("sdb", 16)], source),
        missing
    );
    let array = Disk {
        kind: DiskKind::Md,
        contents: vec![content("md0", "ext4", "S")],
        ..disk("md0", 90)
    };
    let held = |name: &str, minor| Disk {
        holders: vec![device_above(name, "md0")],
        ..member(name, minor)
    };
    let disks = vec![held("sda", 0), held("sdb", 16), array];
    assert_eq!(found(disks, source), Ok("md0".to_owned()));
    // Neither is a partition of one: what stands at the end of the disk makes all of it a member.
    for what in ["linux_raid_member", "isw_raid_member", "ddf_raid_member"] {
        let parted = |holders: Vec<Holder>, own: Content| Disk {
            partitions: vec![partition("sda", 0, 1)],
            table: gpt(vec![entry(1, "state")]),
            contents: vec![own, content("sda1", "ext4", "S")],
            holders,
            ..disk("sda", 0)
        };
        for source in [
            source,
            r#"{"partlabel":"state"}"#,
            r#"{"partuuid":"0000-1"}"#,
            r#"{"disk":{"path":"/dev/sda1"}}"#,
        ] {
            let member = content("sda", what, "host:0");
            let Err(Trouble::PartOf(how)) = found(vec![parted(vec![], member)], source) else {
                panic!("{what}: a partition of a member is a source: {source}");
            };
            assert_eq!(how, format!("{what} on sda (host:0)"));
            // A table is no such thing.
            let table = content("sda", "gpt", "");
            let name = found(vec![parted(vec![], table)], source);
            assert_eq!(name, Ok("sda1".to_owned()));
        }
    }
    // A partition that is a member itself, and reaches to the end of the disk.
    let raid = |device: &str| Content {
        uuid: Some("u".to_owned()),
        ..content(device, "linux_raid_member", "host:0")
    };
    let last = Disk {
        partitions: vec![partition("sda", 0, 1), partition("sda", 0, 2)],
        table: gpt(vec![entry(1, "state"), entry(2, "raid")]),
        contents: vec![raid("sda"), content("sda1", "ext4", "S"), raid("sda2")],
        ..disk("sda", 0)
    };
    assert_eq!(
        found(vec![last], r#"{"partlabel":"state"}"#),
        Ok("sda1".to_owned())
    );
    // Swap with that label is none either.
    let swap = Disk {
        contents: vec![content("sda", "swap", "S")],
        ..disk("sda", 0)
    };
    assert!(matches!(
        found(vec![swap], source),
        Err(Trouble::Missing { .. })
    ));
}

#[test]
fn a_table_that_the_kernel_has_not_read_names_nothing() {
    let mut moved = entry(1, "state");
    moved.start = Bytes(7 * MIB);
    let with = |entry: TablePartition| Disk {
        partitions: vec![partition("sda", 0, 1)],
        table: gpt(vec![entry]),
        contents: vec![content("sda", "gpt", ""), content("sda1", "xfs", "")],
        ..disk("sda", 0)
    };
    let source = r#"{"partlabel":"state"}"#;
    assert_eq!(
        found(vec![with(moved)], source),
        Err(Trouble::NotInKernel(
            "the table of sda lists it as partition 1".to_owned()
        ))
    );
    assert_eq!(
        found(vec![with(entry(1, "state"))], source),
        Ok("sda1".to_owned())
    );
    for (source, name) in [
        (r#"{"disk":{"path":"/dev/sda"},"partition":1}"#, "sda1"),
        (r#"{"disk":{"path":"/dev/sda1"}}"#, "sda1"),
    ] {
        assert_eq!(
            found(vec![with(entry(1, "x"))], source),
            Ok(name.to_owned())
        );
    }
    let whole = found(vec![with(entry(1, "x"))], r#"{"disk":{"path":"/dev/sda"}}"#);
    assert!(matches!(whole, Err(Trouble::Occupied(_))), "{whole:?}");
}

#[test]
fn what_is_no_fixed_disk_has_to_be_named_by_its_node() {
    for kind in [DiskKind::Loop, DiskKind::Zram, DiskKind::DeviceMapper] {
        let other = || Disk {
            kind,
            contents: vec![content("x0", "ext4", "S")],
            ..disk("x0", 0)
        };
        let by_size = r#"{"disk":{"size":">1MiB"}}"#;
        assert!(matches!(
            found(vec![other()], by_size),
            Err(Trouble::Missing { .. })
        ));
        let by_node = r#"{"disk":{"path":"/dev/x0"}}"#;
        assert_eq!(found(vec![other()], by_node), Ok("x0".to_owned()));
    }
}

#[test]
fn what_is_optional_is_waited_for_and_then_done_without() {
    let request = request(
        r#"{"target":"/a","source":{"label":"none"},"required":false},
           {"target":"/b","source":{"label":"S"}}"#,
    );
    let mut facts = Facts {
        disks: vec![Disk {
            contents: vec![content("sda", "ext4", "S")],
            ..disk("sda", 0)
        }],
        ..Facts::default()
    };
    let refusal = decide(&request, &facts).unwrap_err();
    assert!(refusal.may_heal());
    facts.waited = true;
    let decided = decide(&request, &facts).unwrap();
    assert_eq!((decided.sources.len(), decided.bindings.len()), (1, 1));
    assert!(
        decided.notes[0].starts_with("/a is not preserved"),
        "{:?}",
        decided.notes
    );
}

/// What a new partition may be beside: nothing of its name, wherever, but for what nobody ever used.
#[test]
fn a_partition_that_is_added_is_the_only_one_of_its_name() {
    use crate::config::quantity::{Amount, SizeText};
    use crate::config::request::Addition;
    use crate::host::{RecordFound, RecordIdentity};
    let text = r#"{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig",
        "image":{"url":"https://h/x"},"disk":{"select":{"serial":"S"},"partitions":[{"label":"state","size":"8MiB"}]},
        "preserve":[{"target":"/a","source":{"partlabel":"state"},"format":"IfBlank"}]}"#;
    let named_by_serial = interpret(&parse::parse(text.as_bytes()).unwrap()).unwrap();
    let text = text.replace(r#"{"serial":"S"}"#, r#"{"size":">1MiB"}"#);
    let by_size = interpret(&parse::parse(text.as_bytes()).unwrap()).unwrap();
    let added = [Addition {
        label: "state".to_owned(),
        size: SizeText::Amount(Amount::Bytes(Bytes(8 * MIB))),
        kind: "0fc63daf-8483-4772-8e79-3d69d8477de4".to_owned(),
        filesystem: None,
    }];
    let decide = |request: &Request, disks: Vec<Disk>, kept: &[TablePartition], waited| {
        let facts = Facts {
            disks,
            waited,
            ..Facts::default()
        };
        let lasting = lasting::decide(request, &facts, &facts.disks[0], kept, &added);
        lasting.map(|l| l.bindings.len()).map_err(|refusal| {
            let Refusal::Preserve { trouble, .. } = refusal else {
                panic!("{refusal:?}");
            };
            trouble
        })
    };
    let bare = || disk("sda", 0);
    let parted = |name: &str, minor, blank| Disk {
        table: gpt(vec![entry(1, "state")]),
        partitions: vec![Partition {
            blank,
            ..partition(name, minor, 1)
        }],
        ..disk(name, minor)
    };
    let request = &named_by_serial;
    assert_eq!(decide(request, vec![bare()], &[], false), Ok(1));
    // On another disk, blank or not.
    for blank in [true, false] {
        let other = parted("sdb", 16, blank);
        let found = decide(request, vec![bare(), other], &[], true);
        let Err(Trouble::Conflict(how)) = found else {
            panic!("{found:?}");
        };
        assert!(how.starts_with("sdb1 has that name already"), "{how}");
    }
    let listed = Disk {
        partitions: vec![],
        ..parted("sdb", 16, false)
    };
    let found = decide(request, vec![bare(), listed], &[], true);
    assert!(matches!(found, Err(Trouble::NotInKernel(_))), "{found:?}");
    // On the target.
    let there = parted("sda", 0, false);
    let found = decide(request, vec![there.clone()], &[], true);
    let Err(Trouble::Conflict(how)) = found else {
        panic!("{found:?}");
    };
    assert!(how.contains("name it in `disk.keep`"), "{how}");
    assert_eq!(
        decide(request, vec![parted("sda", 0, true)], &[], true),
        Ok(1)
    );
    let marked = |kept: Vec<u32>| Disk {
        record: RecordFound::Mark(RecordIdentity {
            kept,
            ..RecordIdentity::default()
        }),
        ..there.clone()
    };
    assert_eq!(decide(request, vec![marked(vec![])], &[], true), Ok(1));
    let found = decide(request, vec![marked(vec![1])], &[], true);
    assert!(matches!(found, Err(Trouble::Conflict(_))), "{found:?}");
    // Where a disk may still come that has it, it is waited for.
    let found = decide(&by_size, vec![bare()], &[], false);
    assert!(found.as_ref().is_err_and(Trouble::may_heal), "{found:?}");
    assert_eq!(decide(&by_size, vec![bare()], &[], true), Ok(1));
}

/// Of a partition that is made, no entry is dropped in favour of the first.
#[test]
fn entries_on_a_partition_that_is_added_add_up() {
    use crate::config::quantity::{Amount, SizeText};
    use crate::config::request::Addition;
    let added = [Addition {
        label: "state".to_owned(),
        size: SizeText::Amount(Amount::Bytes(Bytes(8 * MIB))),
        kind: "0fc63daf-8483-4772-8e79-3d69d8477de4".to_owned(),
        filesystem: None,
    }];
    let decide = |second: &str| {
        let text = format!(
            r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{{"url":"https://h/x"}},
            "disk":{{"select":{{"serial":"S"}},"partitions":[{{"label":"state","size":"8MiB"}}]}},
            "preserve":[{{"target":"/a","source":{{"partlabel":"state"}},"subdir":"a","options":["discard"]}},
            {{"target":"/b","source":{{"partlabel":"state"}},"subdir":"b","format":"IfBlank","filesystem":"ext4",
            "options":["discard","lazytime"]}}{second}]}}"#
        );
        let request = interpret(&parse::parse(text.as_bytes()).unwrap()).unwrap();
        let facts = Facts {
            disks: vec![disk("sda", 0)],
            ..Facts::default()
        };
        lasting::decide(&request, &facts, &facts.disks[0], &[], &added)
    };
    let lasting = decide("").unwrap();
    assert_eq!(lasting.sources.len(), 1);
    assert_eq!(lasting.sources[0].options, ["discard", "lazytime"]);
    assert_eq!(lasting.sources[0].format, Some(NewFileSystem::Ext4));
    let other =
        r#",{"target":"/c","source":{"partlabel":"state"},"subdir":"c","filesystem":"xfs"}"#;
    assert!(decide(other).is_err());
}
