//! Which disk: selectors to exactly one device, or a refusal that lists the candidates.

mod ours;

use super::refusal::{Candidate, MISSING, Refusal};
use super::teardown::{self, Why};
use crate::config::request::DiskInstall;
use crate::config::wire::{Overwrite, Pick, Select};
use crate::host::signatures::UNKNOWN;
use crate::host::tables::Table;
use crate::host::{Disk, DiskKind, Facts, NamedKind, RecordFound, Transport, links, wwn};

pub use ours::{Owner, first_unread, installed, notes};

/// Whether `disk` has every attribute that `select` asks for.
pub fn matches(select: &Select, disk: &Disk) -> bool {
    let Select {
        serial,
        wwn: wwn_wanted,
        model,
        vendor,
        size,
        rotational,
        transport,
        path,
        hctl,
    } = select;
    let exact = |wanted: &Option<String>, have: &Option<String>| {
        wanted
            .as_ref()
            .is_none_or(|w| have.as_deref().is_some_and(|h| h.trim() == w.trim()))
    };
    exact(serial, &disk.serial)
        && wwn_wanted.as_ref().is_none_or(|w| {
            let have = disk.wwn.as_deref().map(wwn::bare);
            have.is_some_and(|have| have == wwn::bare(w))
        })
        && exact(vendor, &disk.vendor)
        && exact(hctl, &disk.hctl)
        && model
            .as_ref()
            .is_none_or(|m| disk.model.as_deref().is_some_and(|have| glob(m, have)))
        && size.is_none_or(|s| s.allows(disk.size))
        && rotational.is_none_or(|r| r == disk.rotational)
        && transport.is_none_or(|t| disk.transport == Some(t))
        && path.as_ref().is_none_or(|p| {
            std::iter::once(&disk.path)
                .chain(&disk.links)
                .any(|have| glob(p, &have.to_string_lossy()))
        })
}

/// `*` and `?` as in a shell.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    wildmatch::WildMatch::new(pattern).matches(text)
}

/// The path of a selector that names one node, not a pattern.
pub fn named_path(select: &Select) -> Option<&str> {
    select.path.as_deref().filter(|p| !p.contains(['*', '?']))
}

/// The selector, for people.
pub fn describe(select: &Select) -> String {
    let Ok(serde_json::Value::Object(map)) = serde_json::to_value(select) else {
        return String::new();
    };
    let parts: Vec<String> = map
        .iter()
        .filter(|(_, v)| !v.is_null())
        .map(|(k, v)| {
            format!(
                "{k}={}",
                v.as_str().map_or_else(|| v.to_string(), str::to_owned)
            )
        })
        .collect();
    if parts.is_empty() {
        "an empty selector (any disk)".to_owned()
    } else {
        parts.join(",")
    }
}

/// Why a disk is chosen only where the config names it by path, whatever state it is in; `None` where any
/// selector may mean it. `booted_from` is the PARTUUID that the firmware started this kernel from.
pub fn only_by_path(disk: &Disk, booted_from: Option<&str>) -> Option<String> {
    match disk.kind {
        DiskKind::Disk => {}
        DiskKind::Loop
        | DiskKind::Ram
        | DiskKind::Zram
        | DiskKind::Floppy
        | DiskKind::Optical
        | DiskKind::DeviceMapper
        | DiskKind::Md
        | DiskKind::Other => {
            return Some(format!("{:?}: only when named by path", disk.kind).to_lowercase());
        }
    }
    if disk.removable {
        return Some("removable: only when named by path".to_owned());
    }
    if booted_from.is_some_and(|partuuid| disk.has_partition(partuuid)) {
        return Some("this machine was booted from it: only when named by path".to_owned());
    }
    None
}

/// A USB disk may be the medium that a BIOS started this kernel from, which does not say so: it is meant where the
/// selector names that one disk, or asks for USB disks.
fn is_unasked_usb(select: &Select, disk: &Disk) -> bool {
    disk.transport == Some(Transport::Usb)
        && select.transport != Some(Transport::Usb)
        && !names_one(select)
}

/// Whether the selector is meant for one disk. Only a path without a pattern cannot be another's as well: serial numbers
/// are used twice by cheap makers, and a disk on two paths is there twice.
pub fn names_one(select: &Select) -> bool {
    select.serial.is_some()
        || select.wwn.is_some()
        || select.hctl.is_some()
        || named_path(select).is_some()
}

/// Why a disk that was not named by path is passed over.
fn passed_over(
    select: &Select,
    disk: &Disk,
    overwrite: Overwrite,
    facts: &Facts,
) -> Option<String> {
    if let Some(why) = only_by_path(disk, facts.machine.booted_from.as_deref()) {
        return Some(why);
    }
    if is_unasked_usb(select, disk) {
        return Some(
            "USB: only when named by path, serial or wwn, or with transport usb".to_owned(),
        );
    }
    if disk.size.0 == 0 {
        return Some("no medium".to_owned());
    }
    if disk.read_only {
        return Some("read-only".to_owned());
    }
    let first = disk.holders.first()?;
    match held(disk, overwrite, facts)? {
        Why::PartOf { parent } => Some(format!("a part of {parent}: select that by its path")),
        Why::InUse | Why::NotAllowed | Why::Unknown { .. } => Some(format!("in use: {first}")),
    }
}

/// Whether the firmware started this kernel from a partition of `disk`.
pub(super) fn is_boot_medium(disk: &Disk, facts: &Facts) -> bool {
    let partuuid = facts.machine.booted_from.as_deref();
    partuuid.is_some_and(|wanted| disk.has_partition(wanted))
}

/// Why what stands on `disk` keeps it from being used; `None` where nothing does, or where it may go.
fn held(disk: &Disk, overwrite: Overwrite, facts: &Facts) -> Option<Why> {
    if disk.holders.is_empty() {
        return None;
    }
    match overwrite {
        Overwrite::Always => teardown::forbids(disk, facts),
        Overwrite::IfBlank | Overwrite::IfOurs => Some(teardown::obstacle(disk, facts)),
    }
}

/// Every disk that `select` allows. A path names its device, however it is spelled.
pub fn allowed<'a>(select: &Select, facts: &'a Facts) -> Vec<&'a Disk> {
    match named_path(select) {
        Some(path) => named(path, select, facts).into_iter().collect(),
        None => facts.disks.iter().filter(|d| matches(select, d)).collect(),
    }
}

/// Whether the installation `identity` was cut off on `disk`, and the disk is as that left it: somebody may
/// have given it a table or a file system since, without touching the mark.
pub fn is_cut_off(disk: &Disk, identity: &str) -> bool {
    let marked = matches!(&disk.record, RecordFound::Mark(found) if found.identity == identity);
    let table = match &disk.table {
        Table::None => true,
        Table::Gpt(gpt) => !gpt.protective,
        Table::Mbr(_) | Table::Damaged { .. } => false,
    };
    // A piece of the image, or of its backup table, at the disk's end is no signature of somebody else's.
    let ours = |what: &str| what == "gpt" || what == UNKNOWN;
    marked
        && table
        && disk
            .contents
            .iter()
            .all(|c| c.device != disk.name || ours(&c.what))
}

/// Chooses the disk: the one that holds this installation, else one of the same claim, else what `pick` says.
pub fn choose<'a>(
    install: &DiskInstall,
    facts: &'a Facts,
    owner: Owner<'_>,
) -> Result<&'a Disk, Refusal> {
    let select = &install.select;
    let wanted = describe(select);
    if let Some(path) = named_path(select) {
        return named(path, select, facts);
    }
    let matching = allowed(select, facts);
    if let Some(disk) = ours::find(install, &matching, facts, owner)? {
        return Ok(disk);
    }
    let (serving, passed): (Vec<&Disk>, Vec<&Disk>) = matching
        .iter()
        .partition(|d| passed_over(select, d, install.overwrite, facts).is_none());
    // `Facts` has the disks in natural order, so that ties go to the first name.
    let picked = match (install.pick, serving.as_slice()) {
        (Pick::Only, several @ [_, _, ..]) => {
            return Err(ambiguous(wanted, several, NARROW));
        }
        // Which of them has which name is another thing at the next start.
        (Pick::First | Pick::Smallest | Pick::Largest, several @ [_, _, ..])
            if names_one(select) && ours::apart(several).len() > 1 =>
        {
            return Err(ambiguous(wanted, several, ONE_NAME));
        }
        (Pick::Only | Pick::First, disks) => disks.first(),
        (Pick::Smallest, disks) => disks.iter().min_by_key(|d| d.size),
        (Pick::Largest, disks) => disks.iter().rev().max_by_key(|d| d.size),
    };
    let picked = picked
        .copied()
        .ok_or_else(|| nothing_serves(&passed, (select, install.overwrite), facts, wanted))?;
    ours::must_not_be_elsewhere(picked, install, facts, owner)?;
    Ok(picked)
}

const NARROW: &str = "narrow the selector down (serial and wwn name one disk), or set `pick`";
const ONE_NAME: &str = "what names one disk names several here, and `pick` would take whichever the kernel named first: select one of them by its wwn as well, or by `hctl`";
const PATHS: &str = "put these paths together by multipath and select the map by its path (/dev/mapper/…), or select one of them by `hctl`";

/// Several disks serve. Those with one world wide name are one disk on several paths.
fn ambiguous(wanted: String, several: &[&Disk], next: &'static str) -> Refusal {
    let earlier = |i: usize, disk: &Disk| {
        let mut before = several.iter().take(i);
        before.find(|d| ours::is_one_disk(d, disk))
    };
    let candidates: Vec<Candidate> = several
        .iter()
        .enumerate()
        .map(|(i, disk)| match earlier(i, disk) {
            Some(first) => Candidate::new(disk, format!("another path to {}", first.name)),
            None => Candidate::new(disk, ""),
        })
        .collect();
    let paths = candidates.iter().any(|c| !c.why.is_empty());
    Refusal::Ambiguous {
        next: if paths { PATHS } else { next },
        wanted,
        candidates,
    }
}

fn nothing_serves(
    passed: &[&Disk],
    (select, overwrite): (&Select, Overwrite),
    facts: &Facts,
    wanted: String,
) -> Refusal {
    // One disk was meant and cannot be had: its own reason says more than a table.
    if let [only] = passed {
        if only.read_only {
            return Refusal::ReadOnly {
                disk: only.name.clone(),
            };
        }
        if let Some(why) = held(only, overwrite, facts) {
            return teardown::busy(only, why);
        }
    }
    // All of them are parts of one: that one was meant.
    let whole = |disk: &&Disk| match held(disk, overwrite, facts) {
        Some(Why::PartOf { parent }) => Some(parent),
        Some(Why::InUse | Why::NotAllowed | Why::Unknown { .. }) | None => None,
    };
    if let Some((first, parent)) = passed.first().and_then(|d| Some((*d, whole(d)?)))
        && passed.iter().all(|d| whole(d).as_ref() == Some(&parent))
    {
        return teardown::busy(first, Why::PartOf { parent });
    }
    let candidates = facts
        .disks
        .iter()
        .filter(|d| d.size.0 > 0)
        .map(|d| {
            let matched = passed.iter().any(|p| p.name == d.name);
            let why = if matched {
                passed_over(select, d, overwrite, facts).unwrap_or_default()
            } else {
                "does not match".to_owned()
            };
            Candidate::new(d, why)
        })
        .collect();
    Refusal::NoDisk { wanted, candidates }
}

/// A disk that was named by its path: anything that is a whole disk serves, if the other keys match too.
fn named<'a>(path: &str, select: &Select, facts: &'a Facts) -> Result<&'a Disk, Refusal> {
    let found = facts
        .named
        .as_ref()
        .filter(|n| n.path.to_string_lossy() == path)
        .map(|n| &n.what);
    // The node may be known to sysfs under another name: its device number decides.
    let is_it = |disk: &&Disk| match found {
        Some(NamedKind::WholeDisk { dev }) => disk.dev == *dev,
        _ => {
            disk.path.to_string_lossy() == path
                || disk.links.iter().any(|l| l.to_string_lossy() == path)
        }
    };
    if let Some(disk) = facts.disks.iter().find(is_it) {
        let rest = Select {
            path: None,
            ..select.clone()
        };
        return if matches(&rest, disk) {
            Ok(disk)
        } else {
            Err(Refusal::NoDisk {
                wanted: describe(select),
                candidates: vec![Candidate::new(disk, "the path matches, the rest does not")],
            })
        };
    }
    let (what, next) = match found {
        Some(NamedKind::WholeDisk { .. }) => (
            "is a disk that /sys/block does not list".to_owned(),
            "name a disk of `ironroot disks`".to_owned(),
        ),
        Some(NamedKind::Partition { disk, number }) => (
            format!("is partition {number} of {disk}, not a whole disk"),
            format!("name the whole disk: /dev/{disk}"),
        ),
        Some(NamedKind::RegularFile { .. }) => (
            "is a regular file".to_owned(),
            "a file is written only with --allow-file".to_owned(),
        ),
        Some(NamedKind::Other { what }) => (
            format!("is {what}, not a disk"),
            "name a disk of `ironroot disks`".to_owned(),
        ),
        Some(NamedKind::Missing) | None if facts.no_udev && links::is_only_udevs(path) => (
            "is a name that only udev makes, and no udev runs here".to_owned(),
            "select the disk by `serial`, `wwn` or `hctl`, which `ironroot disks` lists".to_owned(),
        ),
        Some(NamedKind::Missing) | None => (
            MISSING.to_owned(),
            "compare it with `ironroot disks`; nothing was created".to_owned(),
        ),
    };
    Err(Refusal::NotADisk {
        path: path.to_owned(),
        what,
        next,
    })
}

/// What keeps a chosen disk from being written.
pub fn obstacle(disk: &Disk, overwrite: Overwrite, facts: &Facts) -> Option<Refusal> {
    if let Some(why) = held(disk, overwrite, facts) {
        return Some(teardown::busy(disk, why));
    }
    disk.read_only.then(|| Refusal::ReadOnly {
        disk: disk.name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_wide_name_in_any_spelling() {
        let disk = |wwn: &str| Disk {
            wwn: Some(wwn.to_owned()),
            ..Disk::default()
        };
        let select = |wwn: &str| Select {
            wwn: Some(wwn.to_owned()),
            ..Select::default()
        };
        for (have, wanted, right) in [
            ("naa.5000c500a1b2c3d4", "naa.5000c500a1b2c3d4", true),
            ("naa.5000c500a1b2c3d4", "0x5000C500A1B2C3D4", true),
            ("naa.5000c500a1b2c3d4", "wwn-0x5000c500a1b2c3d4", true),
            ("naa.5000c500a1b2c3d4", "5000c500a1b2c3d4", true),
            ("naa.5000c500a1b2c3d4", "0x5000c500a1b2c3d", false),
            ("eui.002538a121b0a3f1", "nvme-eui.002538a121b0a3f1", true),
            ("eui.002538a121b0a3f1", "eui.002538a121b0a3f2", false),
            ("t10.ATA x y", "t10.ATA x y", true),
        ] {
            assert_eq!(matches(&select(wanted), &disk(have)), right, "{wanted}");
        }
        assert!(!matches(&select("0x1"), &Disk::default()));
        assert!(!matches(&select(""), &Disk::default()));
    }
}
