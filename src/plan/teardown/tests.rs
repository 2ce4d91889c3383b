//! Stacks as facts: what is taken down, in which order, and what stays.

use super::*;
use proptest::prelude::*;

fn device(name: &str, kind: DiskKind, minor: u32) -> Disk {
    Disk {
        name: name.to_owned(),
        path: format!("/dev/{name}").into(),
        kind,
        dev: DevNum { major: 9, minor },
        ..Disk::default()
    }
}

fn map(name: &str, uuid: &str, mapper: &str) -> Disk {
    Disk {
        map_uuid: Some(uuid.to_owned()),
        links: vec![format!("/dev/mapper/{mapper}").into()],
        ..device(name, DiskKind::DeviceMapper, 1)
    }
}

fn array(name: &str, level: &str, members: u32, missing: u32, metadata: &str) -> Disk {
    Disk {
        md: Some(MdArray {
            level: level.to_owned(),
            members,
            missing,
            metadata: metadata.to_owned(),
        }),
        ..device(name, DiskKind::Md, 0)
    }
}

fn on(below: &str, above: &str) -> Holder {
    Holder::Device {
        device: below.to_owned(),
        holder: above.to_owned(),
        what: format!("thing {above}"),
    }
}

fn mounted(device: &str) -> Holder {
    Holder::Mount {
        device: device.to_owned(),
        target: "/srv".to_owned(),
    }
}

/// A machine whose disk sda has `holders`.
fn machine(holders: Vec<Holder>, others: Vec<Disk>) -> Facts {
    let mut disks = vec![Disk {
        holders,
        ..device("sda", DiskKind::Disk, 8)
    }];
    disks.extend(others);
    Facts {
        disks,
        ..Facts::default()
    }
}

fn names(facts: &Facts) -> Result<Vec<String>, Why> {
    let teardown = decide(&facts.disks[0], facts)?;
    Ok(teardown.devices.into_iter().map(|d| d.device).collect())
}

#[test]
fn lvm_on_luks_on_md_goes_from_the_top() {
    let facts = machine(
        vec![
            on("sda1", "md0"),
            on("sda2", "md0"),
            on("md0", "dm-0"),
            on("dm-0", "dm-1"),
            on("dm-0", "dm-2"),
            on("dm-1", "dm-2"),
        ],
        vec![
            array("md0", "raid1", 2, 0, "1.2"),
            map("dm-0", "CRYPT-LUKS2-ab-c", "c"),
            map("dm-1", "LVM-pool", "vg-pool"),
            map("dm-2", "LVM-thin", "vg-thin"),
        ],
    );
    assert_eq!(names(&facts).unwrap(), ["dm-2", "dm-1", "dm-0", "md0"]);
    let teardown = plan(&facts.disks[0], &facts).unwrap();
    assert_eq!(
        teardown.devices[0].layer,
        Layer::Mapped {
            uuid: "LVM-thin".to_owned()
        }
    );
    assert_eq!(teardown.devices[0].below, ["dm-0", "dm-1"]);
    assert_eq!(teardown.devices[3].below, ["sda1", "sda2"]);
    assert!(teardown.notes.is_empty());
}

#[test]
fn a_mount_or_swap_anywhere_in_the_stack_refuses() {
    let stack = || vec![map("dm-0", "LVM-a", "a")];
    for holder in [
        mounted("dm-0"),
        Holder::Swap {
            device: "dm-0".to_owned(),
        },
        mounted("sda3"),
    ] {
        let facts = machine(vec![on("sda2", "dm-0"), holder], stack());
        assert_eq!(names(&facts), Err(Why::InUse));
    }
    let facts = machine(vec![on("sda2", "dm-0")], stack());
    assert_eq!(names(&facts).unwrap(), ["dm-0"]);
    assert_eq!(obstacle(&facts.disks[0], &facts), Why::NotAllowed);
}

#[test]
fn a_path_of_multipath_and_a_member_of_a_firmware_raid_offer_their_parent() {
    let parent = |facts: &Facts| match names(facts) {
        Err(Why::PartOf { parent }) => parent,
        other => panic!("{other:?}"),
    };
    let facts = machine(
        vec![on("sda", "dm-0"), on("dm-0", "dm-1"), mounted("dm-1")],
        vec![
            map("dm-0", "mpath-3600", "mpatha"),
            map("dm-1", "part1-mpath-3600", "mpatha-part1"),
        ],
    );
    assert_eq!(parent(&facts), "/dev/mapper/mpatha");
    let facts = machine(
        vec![on("sda", "md126"), on("sda", "md127")],
        vec![
            array("md126", "raid1", 2, 0, "external:/md127/0"),
            array("md127", "container", 2, 0, "external:imsm"),
        ],
    );
    assert_eq!(parent(&facts), "/dev/md126");
}

#[test]
fn the_partitions_of_a_multipath_map_that_was_selected_go() {
    let mut facts = machine(vec![], vec![]);
    facts.disks[0] = Disk {
        holders: vec![on("dm-0", "dm-1")],
        ..map("dm-0", "mpath-3600", "mpatha")
    };
    facts
        .disks
        .push(map("dm-1", "part1-mpath-3600", "mpatha-part1"));
    assert_eq!(names(&facts).unwrap(), ["dm-1"]);
}

#[test]
fn what_nobody_here_knows_stays() {
    let unknown = |others: Vec<Disk>| {
        let name = others[0].name.clone();
        assert_eq!(
            names(&machine(vec![on("sda", &name)], others)),
            Err(Why::Unknown { device: name })
        );
    };
    unknown(vec![map("dm-0", "stratis-1-private-ab", "x")]);
    unknown(vec![map("dm-0", "partly-", "x")]);
    unknown(vec![device("dm-0", DiskKind::DeviceMapper, 0)]);
    unknown(vec![device("drbd0", DiskKind::Other, 0)]);
    assert_eq!(
        names(&machine(vec![on("sda", "gone")], vec![])),
        Err(Why::Unknown {
            device: "gone".to_owned()
        })
    );
    let circle = machine(
        vec![on("sda", "dm-0"), on("dm-0", "dm-1"), on("dm-1", "dm-0")],
        vec![map("dm-0", "LVM-a", "a"), map("dm-1", "LVM-b", "b")],
    );
    assert_eq!(
        names(&circle),
        Err(Why::Unknown {
            device: "dm-0".to_owned()
        })
    );
}

#[test]
fn what_stands_on_a_partition_of_an_array_goes_before_the_array() {
    let mut md = array("amd0", "raid1", 1, 0, "1.2");
    md.partitions = vec![crate::host::Partition {
        name: "amd0p1".to_owned(),
        ..Default::default()
    }];
    let facts = machine(
        vec![on("sda", "amd0"), on("amd0p1", "dm-0")],
        vec![md, map("dm-0", "LVM-a", "a")],
    );
    assert_eq!(names(&facts).unwrap(), ["dm-0", "amd0"]);
    let teardown = plan(&facts.disks[0], &facts).unwrap();
    assert_eq!(teardown.devices[0].below, ["amd0", "amd0p1"]);
}

#[test]
fn a_loop_device_over_a_disk_goes_and_one_over_a_file_stays() {
    let mut facts = machine(
        vec![on("sda", "loop0")],
        vec![device("loop0", DiskKind::Loop, 0)],
    );
    assert_eq!(names(&facts).unwrap(), ["loop0"]);
    facts.disks[0].dev = DevNum::default();
    assert_eq!(
        names(&facts),
        Err(Why::Unknown {
            device: "loop0".to_owned()
        })
    );
}

#[test]
fn bcache_goes_before_its_set() {
    let facts = machine(
        vec![
            on("sda1", "bcache0"),
            on("sda2", "bcache/11-22"),
            on("bcache/11-22", "bcache0"),
        ],
        vec![device("bcache0", DiskKind::Other, 0)],
    );
    assert_eq!(names(&facts).unwrap(), ["bcache0", "bcache/11-22"]);
    let teardown = plan(&facts.disks[0], &facts).unwrap();
    assert_eq!(
        teardown.devices[1].layer,
        Layer::CacheSet {
            uuid: "11-22".to_owned()
        }
    );
}

#[test]
fn what_other_disks_share_is_said_and_only_this_disk_s_stack_goes() {
    let with = |md: Disk| {
        let other = Disk {
            holders: vec![on("sdb1", "md0"), on("sdb2", "dm-7")],
            ..device("sdb", DiskKind::Disk, 16)
        };
        let own = map("dm-7", "LVM-other", "other");
        machine(vec![on("sda1", "md0")], vec![other, md, own])
    };
    for (level, members, missing, complete) in [
        ("raid1", 2, 0, true),
        ("raid1", 2, 1, false),
        ("raid5", 3, 0, true),
        ("raid6", 4, 1, true),
        ("raid0", 2, 0, false),
        ("", 0, 0, false),
    ] {
        let facts = with(array("md0", level, members, missing, "1.2"));
        let teardown = plan(&facts.disks[0], &facts).unwrap();
        assert_eq!(teardown.devices.len(), 1, "dm-7 is another disk's");
        assert_eq!(teardown.devices[0].below, ["sda1", "sdb1"]);
        let [note] = teardown.notes.as_slice() else {
            panic!()
        };
        assert!(
            note.contains("sdb") && note.contains("not written"),
            "{note}"
        );
        assert_eq!(
            note.contains("complete enough"),
            complete,
            "{level}: {note}"
        );
    }
}

proptest! {
    #[test]
    fn nothing_goes_before_what_stands_on_it(
        pairs in proptest::collection::vec((0usize..8, 0usize..8), 1..20),
    ) {
        // Upwards only, so that there is no circle.
        let name = |n: usize| if n == 0 { "sda".to_owned() } else { format!("dm-{n}") };
        let holders: Vec<Holder> = pairs
            .iter()
            .filter(|(a, b)| a != b)
            .map(|(a, b)| on(&name(*a.min(b)), &name(*a.max(b))))
            .collect();
        let others = (1..8).map(|n| map(&name(n), "LVM-x", "x")).collect();
        let facts = machine(holders.clone(), others);
        let order = names(&facts).unwrap();
        let place = |wanted: &str| order.iter().position(|n| n == wanted);
        for holder in &holders {
            let Holder::Device { device, holder, .. } = holder else { unreachable!() };
            prop_assert!(place(holder).is_some());
            if let Some(below) = place(device) {
                prop_assert!(place(holder).unwrap() < below, "{order:?}");
            }
        }
    }
}
