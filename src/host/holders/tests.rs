//! Stacks of devices as fixtures.

use super::*;
use crate::host::disks;
use crate::host::fixture::Fixture;

fn held(f: &Fixture) -> BTreeMap<String, Vec<String>> {
    let mut disks = disks::list(f.root()).unwrap();
    attach(f.root(), &mut disks);
    disks
        .into_iter()
        .map(|d| (d.name, d.holders.iter().map(ToString::to_string).collect()))
        .collect()
}

fn mountinfo(f: &Fixture, lines: &[&str]) {
    f.file("proc/self/mountinfo", lines.join("\n"));
}

#[test]
fn a_mounted_partition_holds_its_disk_and_no_other() {
    let f = Fixture::new();
    let sda = f.disk("sda", "pci/host0/0:0:0:0", "8:0", 4096);
    f.partition(&sda, 1, "8:1", 1, 100);
    f.disk("sdaa", "pci/host0/0:0:26:0", "65:160", 4096);
    mountinfo(
        &f,
        &[
            "22 1 0:21 / /proc rw - proc proc rw",
            "36 35 8:1 / /mnt/a\\040b rw,noatime master:1 - ext4 /dev/root rw",
        ],
    );
    let held = held(&f);
    assert_eq!(held["sda"], ["sda1 is mounted on /mnt/a b"]);
    assert!(held["sdaa"].is_empty());
}

#[test]
fn lvm_on_luks_on_a_partition_is_followed_to_the_mount_and_the_swap() {
    let f = Fixture::new();
    let sda = f.disk("sda", "pci/host0/0:0:0:0", "8:0", 4096);
    let part = f.partition(&sda, 2, "8:2", 1, 100);
    let crypt = f.disk("dm-0", "", "253:0", 100);
    f.attributes(
        &crypt,
        &[("dm/name", "data"), ("dm/uuid", "CRYPT-LUKS2-ab-data")],
    );
    f.link(&format!("{part}/holders/dm-0"), &crypt);
    for (name, dev, lv) in [("dm-1", "253:1", "vg0-root"), ("dm-2", "253:2", "vg0-swap")] {
        let dir = f.disk(name, "", dev, 50);
        f.attributes(&dir, &[("dm/name", lv), ("dm/uuid", "LVM-abcdef")]);
        f.link(&format!("{crypt}/holders/{name}"), &dir);
    }
    f.link("dev/mapper/vg0-swap", "dev/dm-2");
    mountinfo(&f, &["36 35 253:1 / / rw - ext4 /dev/mapper/vg0-root rw"]);
    f.file(
        "proc/swaps",
        "Filename Type Size Used Priority\n/dev/mapper/vg0-swap partition 1 0 -2\n/f file 1 0 -3\n",
    );
    let held = held(&f);
    assert_eq!(
        held["sda"],
        [
            "sda2 is part of encrypted volume data (dm-0)",
            "dm-0 is part of LVM volume vg0-root (dm-1)",
            "dm-0 is part of LVM volume vg0-swap (dm-2)",
            "dm-1 is mounted on /",
            "dm-2 is active swap",
        ]
    );
    assert_eq!(held["dm-2"], ["dm-2 is active swap"]);
}

#[test]
fn swap_on_a_map_whose_node_is_no_link() {
    let f = Fixture::new();
    let sda = f.disk("sda", "pci/host0/0:0:0:0", "8:0", 4096);
    let map = f.disk("dm-0", "", "253:0", 100);
    f.attributes(&map, &[("dm/name", "vg0-swap"), ("dm/uuid", "LVM-ab")]);
    f.link(&format!("{sda}/holders/dm-0"), &map);
    // LVM without udev makes a node of this name.
    f.file("dev/mapper/vg0-swap", "");
    f.file(
        "proc/swaps",
        "Filename Type Size Used Priority\n/dev/mapper/vg0-swap partition 1 0 -2\n",
    );
    assert_eq!(held(&f)["sda"].last().unwrap(), "dm-0 is active swap");
}

#[test]
fn a_disk_that_is_a_cache_of_bcache_is_held_by_its_set() {
    let f = Fixture::new();
    let sda = f.disk("sda", "pci/host0/0:0:0:0", "8:0", 4096);
    let part = f.partition(&sda, 1, "8:1", 1, 100);
    let bcache = f.disk("bcache0", "", "251:0", 100);
    f.link(&format!("{part}/bcache/set"), "sys/fs/bcache/11-22");
    f.link(&format!("{part}/holders/bcache0"), &bcache);
    f.disk("sdb", "pci/host0/0:0:1:0", "8:16", 4096);
    f.link("sys/block/sdb/holders/bcache0", &bcache);
    mountinfo(&f, &["36 35 251:0 / /mnt rw - ext4 /dev/bcache0 rw"]);
    let mut disks = disks::list(f.root()).unwrap();
    attach(f.root(), &mut disks);
    let sda = disks.iter().find(|d| d.name == "sda").unwrap();
    assert_eq!(
        tree("sda", &sda.holders),
        [
            "sda1",
            "  cache of bcache (bcache/11-22)",
            "    bcache device bcache0 (bcache0)",
            "      mounted on /mnt",
            "  bcache device bcache0 (bcache0)",
            "    mounted on /mnt",
        ]
    );
    assert_eq!(
        held(&f)["sdb"],
        [
            "sdb is part of bcache device bcache0 (bcache0)",
            "bcache0 is mounted on /mnt"
        ]
    );
}

#[test]
fn a_circle_and_a_wide_stack_make_a_tree_that_ends() {
    let on = |device: &str, holder: &str| Holder::Device {
        device: device.to_owned(),
        holder: holder.to_owned(),
        what: "x".to_owned(),
    };
    assert_eq!(
        tree("sda", &[on("sda", "a"), on("a", "b"), on("b", "a")]),
        ["x (a)", "  x (b)", "    x (a)"]
    );
    // Each of thirty layers stands twice on the one below: shown in full it would have a thousand million lines.
    let mut wide = Vec::new();
    for n in 0..30 {
        let below = if n == 0 {
            "sda".to_owned()
        } else {
            format!("d{n}")
        };
        wide.push(on(&below, &format!("d{}", n + 1)));
        wide.push(on(&below, &format!("d{}", n + 1)));
    }
    assert!(tree("sda", &wide).len() <= 201);
}

#[test]
fn members_of_md_and_paths_of_multipath() {
    let f = Fixture::new();
    let md = f.disk("md0", "", "9:0", 100);
    f.attributes(&md, &[("md/level", "raid1")]);
    let map = f.disk("dm-0", "", "253:0", 100);
    f.attributes(&map, &[("dm/name", "mpatha"), ("dm/uuid", "mpath-3600")]);
    for (name, dev) in [("sda", "8:0"), ("sdb", "8:16")] {
        let dir = f.disk(name, &format!("pci/host0/{name}"), dev, 100);
        f.link(&format!("{dir}/holders/md0"), &md);
    }
    for (name, dev) in [("sdc", "8:32"), ("sdd", "8:48")] {
        let dir = f.disk(name, &format!("pci/host0/{name}"), dev, 100);
        f.link(&format!("{dir}/holders/dm-0"), &map);
    }
    let held = held(&f);
    assert_eq!(held["sdb"], ["sdb is part of md array md0 (md0)"]);
    assert_eq!(
        held["sdd"],
        ["sdd is part of multipath device mpatha (dm-0)"]
    );
}

#[test]
fn a_partition_of_an_array_is_a_part_of_the_stack() {
    let f = Fixture::new();
    let md = f.disk("md0", "", "9:0", 100);
    f.partition(&md, 1, "259:7", 1, 50);
    let sda = f.disk("sda", "pci/host0/sda", "8:0", 100);
    f.link(&format!("{sda}/holders/md0"), &md);
    mountinfo(&f, &["36 35 259:7 / /srv rw - ext4 /dev/md0p1 rw"]);
    assert_eq!(
        held(&f)["sda"],
        [
            "sda is part of md array md0 (md0)",
            "md0p1 is mounted on /srv"
        ]
    );
}

#[test]
fn a_btrfs_over_two_disks_holds_both() {
    let f = Fixture::new();
    for (name, dev) in [("sda", "8:0"), ("sdb", "8:16"), ("sdc", "8:32")] {
        f.disk(name, &format!("pci/host0/{name}"), dev, 100);
    }
    for name in ["sda", "sdb"] {
        let target = format!("sys/devices/pci/host0/{name}/block/{name}");
        f.link(&format!("sys/fs/btrfs/6c2a/devices/{name}"), &target);
    }
    std::fs::create_dir_all(f.root().join("sys/fs/btrfs/features")).unwrap();
    mountinfo(&f, &["36 35 0:45 / /srv rw - btrfs /dev/sda rw"]);
    let held = held(&f);
    assert_eq!(held["sda"], ["sda is mounted on /srv"]);
    assert_eq!(held["sdb"], ["sdb is mounted on /srv"]);
    assert!(held["sdc"].is_empty());
}

#[test]
fn a_mount_that_only_another_namespace_sees() {
    let f = Fixture::new();
    let sda = f.disk("sda", "pci/host0/0:0:0:0", "8:0", 4096);
    f.partition(&sda, 1, "8:1", 1, 100);
    std::fs::create_dir_all(f.root().join("sys/fs/ext4/sda1")).unwrap();
    mountinfo(&f, &[]);
    assert_eq!(
        held(&f)["sda"],
        ["sda1 is mounted on (another mount namespace)"]
    );
}

#[test]
fn a_loop_device_over_a_disk_holds_it() {
    let f = Fixture::new();
    f.disk("sda", "pci/host0/0:0:0:0", "8:0", 4096);
    let looped = f.disk("loop0", "", "7:0", 4096);
    f.link("dev/disk/by-id/x", "dev/sda");
    f.attributes(&looped, &[("loop/backing_file", "/dev/disk/by-id/x")]);
    mountinfo(&f, &["36 35 7:0 / /mnt rw - ext4 /dev/loop0 rw"]);
    assert_eq!(
        held(&f)["sda"],
        [
            "sda is part of loop device loop0 (loop0)",
            "loop0 is mounted on /mnt"
        ]
    );
}

#[test]
fn holders_that_form_a_circle_end() {
    let f = Fixture::new();
    let a = f.disk("dm-0", "", "253:0", 100);
    let b = f.disk("dm-1", "", "253:1", 100);
    f.link(&format!("{a}/holders/dm-1"), &b);
    f.link(&format!("{b}/holders/dm-0"), &a);
    assert_eq!(held(&f)["dm-0"].len(), 2);
}

#[test]
fn lines_that_are_no_mounts() {
    for line in [
        "",
        "a b c",
        "1 2 x:y / / rw - ext4 /dev/a rw",
        "1 2 8:1 / /mnt rw ext4",
        "1 2 8:1 - ",
    ] {
        assert_eq!(Mount::parse(line), None, "{line:?}");
    }
    assert_eq!(unescape("a\\040b\\134c\\9"), "a b\\c\\9");
}
