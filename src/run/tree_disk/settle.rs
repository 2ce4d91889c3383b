//! The tree becomes this disk's: what it mounts, and who it is.

use std::path::Path;

use super::fstab::{self, Line};
use super::rooted::{self, Rooted};
use crate::error::{Result, printable};
use crate::report::Reporter;
use crate::run::partitions::Shared;
use crate::sys::beneath::{Root, Walk};
use crate::sys::xattr::{self, Of};
use std::os::fd::AsFd as _;

const FSTAB: &str = "etc/fstab";
const MACHINE_ID: &str = "etc/machine-id";
const SELINUX: &str = "etc/selinux/config";

/// Larger files of these names are none.
const LIMIT: u64 = 1 << 20;

/// Writes /etc/fstab and empties /etc/machine-id of the tree in `partition`.
pub fn settle(
    shared: &Shared,
    partition: u32,
    (root, esp): (&str, Option<&str>),
    reporter: &Reporter,
) -> Result<()> {
    let node = shared.node(partition)?;
    let kind = rooted::kind(node)?;
    let rooted = Rooted::mount(node)?;
    let tree = rooted.root();
    let mut lines = vec![Line {
        source: format!("PARTUUID={root}"),
        target: "/".to_owned(),
        kind,
        options: "defaults",
        // xfs needs no check before it is mounted (fsck.xfs(8)).
        pass: u8::from(kind != "xfs"),
    }];
    if let Some(esp) = esp {
        let place = esp_place(tree)?;
        tree.make_directories(
            Path::new(place.trim_start_matches('/')),
            0o755,
            Walk::InRoot,
        )?;
        lines.push(Line {
            source: format!("PARTUUID={esp}"),
            target: place.to_owned(),
            kind: "vfat",
            // A system starts without it.
            options: "umask=0077,nofail",
            pass: 2,
        });
    }
    let before = rooted::text(tree, Path::new(FSTAB), LIMIT)?.unwrap_or_default();
    let (after, gone) = fstab::edit(&before, &lines);
    for line in gone {
        reporter.warn(format!(
            "/etc/fstab of the tree: commented out {}",
            printable(&line)
        ));
    }
    for line in fstab::elsewhere(&after, &lines) {
        reporter.warn(format!(
            "/etc/fstab of the tree: {} is for another device. A machine that has none waits 90 seconds for it and stops: add nofail there, or leave it out",
            printable(&line)
        ));
    }
    rooted::write(tree, Path::new(FSTAB), after.as_bytes())?;
    // Empty, not absent: each machine gets an id of its own, and a system that is read-only for now can mount one
    // over it (machine-id(5)).
    rooted::write(tree, Path::new(MACHINE_ID), b"")?;
    // A copy of the same id, which the first boot would take over.
    let dbus = Path::new("var/lib/dbus/machine-id");
    let is_link = tree.read_link(dbus, Walk::InRoot).is_ok();
    if !is_link && rooted::is_file(tree, dbus) {
        rooted::write(tree, dbus, b"")?;
    }
    labels(tree, reporter)?;
    rooted.finish()
}

/// Where the EFI system partition is mounted.
fn esp_place(tree: &Root) -> Result<&'static str> {
    let is_there = tree.directory(Path::new("efi"), Walk::InRoot);
    Ok(match is_there {
        Ok(_) => "/efi",
        Err(error) if error.is_missing() => "/boot/efi",
        Err(error) => return Err(error.into()),
    })
}

/// Warns of a tree that enforces SELinux and has no labels: whether it relabels itself is not ours to guess.
fn labels(tree: &Root, reporter: &Reporter) -> Result<()> {
    let text = rooted::text(tree, Path::new(SELINUX), LIMIT)?.unwrap_or_default();
    let enforcing = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("SELINUX="))
        .next_back()
        .is_some_and(|mode| mode.trim() == "enforcing");
    if !enforcing {
        return Ok(());
    }
    let etc = tree.directory(Path::new("etc"), Walk::InRoot)?;
    let label = xattr::get(Of::Open(etc.as_fd()), b"security.selinux");
    if !matches!(label, Ok(Some(_))) {
        reporter.warn("the tree enforces SELinux and its files have no labels: make it with `tar --xattrs --xattrs-include='*'`, or let it relabel itself at its first boot (/.autorelabel)");
    }
    Ok(())
}
