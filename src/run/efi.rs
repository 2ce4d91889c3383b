//! Boot entries of UEFI firmware: one of ours per EFI system partition, in the place that the policy gives
//! it, and everybody else's left alone.
//!
//! No failure here undoes an install: the caller warns. Firmware that lost its entries, or never had room
//! for one, still finds `\EFI\BOOT` on the disk.

use std::path::Path;

pub use crate::host::load_option::{EntryKind, EspLocation, LoadOption};
pub use crate::plan::disk_root::default_loader;

use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::host::boot_entries::entry_number;
use crate::host::load_option;
use crate::sys::efivar::{self, BOOT_ATTRIBUTES, GLOBAL, Variable};

/// What the description of every entry of ours begins with.
pub const PREFIX: &str = "ironroot";

/// What happens to `BootOrder`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootOrder {
    /// What stands there stays in place; our entry goes to the end, where firmware falls back to it. (Some
    /// firmware forgets an entry that is in no order, and a few offer nothing else in their menu.)
    Unchanged,
    /// Our entry goes first.
    DiskFirst,
    /// Network entries go first, in their order, then ours, then the rest.
    NetworkFirst,
}

/// A boot entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number in `Boot####`.
    pub number: u16,
    /// What it starts; `None` where the value makes no sense.
    pub option: Option<LoadOption>,
}

impl Entry {
    /// What the entry starts; one that makes no sense is [`EntryKind::Other`].
    pub fn kind(&self) -> EntryKind {
        self.option
            .as_ref()
            .map_or(EntryKind::Other, LoadOption::kind)
    }

    fn is_ours(&self, partuuid: &str, description: Option<&str>) -> bool {
        self.option.as_ref().is_some_and(|option| {
            (option.description.starts_with(PREFIX)
                || Some(option.description.as_str()) == description)
                && option
                    .partuuid()
                    .is_some_and(|p| p.eq_ignore_ascii_case(partuuid))
        })
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&name(self.number))?;
        match &self.option {
            Some(option) => write!(f, " {:?}", printable(&option.description)),
            None => Ok(()),
        }
    }
}

/// An entry that is there now, and what was done to others or to an earlier one in its place, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// The number in `Boot####`.
    pub number: u16,
    /// What was taken over or removed, a line each.
    pub changes: Vec<String>,
}

/// Every boot entry, by number.
pub fn entries(root: &Path) -> Result<Vec<Entry>> {
    let names = efivar::names(root, GLOBAL).context(
        Class::Handover,
        || "listing the UEFI variables of the firmware",
    )?;
    let mut entries = Vec::new();
    for number in names.iter().filter_map(|name| entry_number(name)) {
        // A name without a value is a leftover of a refused write.
        let Some(variable) = read(root, &name(number))? else {
            continue;
        };
        entries.push(Entry {
            number,
            option: load_option::decode(&variable.data),
        });
    }
    Ok(entries)
}

/// `BootOrder`; empty where there is none.
pub fn boot_order(root: &Path) -> Result<Vec<u16>> {
    let data = read(root, "BootOrder")?.map(|v| v.data).unwrap_or_default();
    Ok(data
        .chunks_exact(2)
        .filter_map(|pair| pair.first_chunk::<2>())
        .map(|pair| u16::from_le_bytes(*pair))
        .collect())
}

/// Makes sure that there is exactly one entry of ours for `esp`, which starts `loader`, and that `BootOrder`
/// is as `order` says. Ours is what names this very partition and has the same
/// description or one that begins with [`PREFIX`]. An entry that is right already is not written again:
/// the memory behind it wears out.
pub fn ensure_entry(
    root: &Path,
    esp: &EspLocation,
    description: &str,
    loader: &str,
    order: BootOrder,
) -> Result<Ensured> {
    let wanted = load_option::encode(esp, description, loader).ok_or_else(|| {
        Failure::new(
            Class::Handover,
            format!(
                "a boot entry cannot name {} on partition {}",
                printable(loader),
                printable(&esp.partuuid)
            ),
        )
    })?;
    let decoded = load_option::decode(&wanted);
    let before = entries(root)?;
    let ours: Vec<&Entry> = before
        .iter()
        .filter(|e| e.is_ours(&esp.partuuid, Some(description)))
        .collect();
    let kept = ours
        .iter()
        .find(|e| e.option == decoded)
        .or(ours.first())
        .copied();
    let duplicates: Vec<&Entry> = ours
        .iter()
        .filter(|e| Some(e.number) != kept.map(|k| k.number))
        .copied()
        .collect();
    let mut changes = remove(root, &duplicates, "names the same partition")?;
    let number = match kept {
        Some(entry) => entry.number,
        None => free_number(&before)?,
    };
    if kept.is_none_or(|entry| entry.option != decoded) {
        write(root, &name(number), wanted)?;
        changes.extend(kept.map(|entry| format!("{entry} was taken over: it is ours now")));
    }
    place(root, number, order, &before)?;
    Ok(Ensured { number, changes })
}

/// Removes our entries for partitions that are about to be, or have been, replaced. Returns what was removed, a line
/// each, for people.
pub fn remove_ours(root: &Path, partuuids: &[String]) -> Result<Vec<String>> {
    let all = entries(root)?;
    let gone: Vec<&Entry> = all
        .iter()
        .filter(|entry| partuuids.iter().any(|p| entry.is_ours(p, None)))
        .collect();
    remove(root, &gone, "named a partition that is gone")
}

fn remove(root: &Path, gone: &[&Entry], why: &str) -> Result<Vec<String>> {
    let numbers: Vec<u16> = gone.iter().map(|entry| entry.number).collect();
    // Out of the order first: firmware that loses power here has no order that names what is gone.
    leave_order(root, &numbers)?;
    let mut changes = Vec::new();
    for entry in gone {
        delete(root, entry.number)?;
        changes.push(format!("{entry} was removed: it {why}"));
    }
    Ok(changes)
}

/// Has the firmware start entry `number` at the next boot, once.
pub fn set_boot_next(root: &Path, number: u16) -> Result<()> {
    if read(root, &name(number))?.is_none() {
        return Err(Failure::new(
            Class::Handover,
            format!("the firmware has no boot entry {}", name(number)),
        ));
    }
    write(root, "BootNext", number.to_le_bytes().to_vec())
}

fn place(root: &Path, number: u16, order: BootOrder, entries: &[Entry]) -> Result<()> {
    let now = boot_order(root)?;
    let others = || now.iter().copied().filter(|n| *n != number);
    let is_network = |n: &u16| {
        entries
            .iter()
            .any(|e| e.number == *n && e.kind() == EntryKind::Network)
    };
    let wanted: Vec<u16> = match order {
        BootOrder::Unchanged if now.contains(&number) => now.clone(),
        BootOrder::Unchanged => others().chain([number]).collect(),
        BootOrder::DiskFirst => [number].into_iter().chain(others()).collect(),
        BootOrder::NetworkFirst => others()
            .filter(is_network)
            .chain([number])
            .chain(others().filter(|n| !is_network(n)))
            .collect(),
    };
    write_order(root, &now, &wanted)
}

fn leave_order(root: &Path, gone: &[u16]) -> Result<()> {
    let now = boot_order(root)?;
    let wanted: Vec<u16> = now.iter().copied().filter(|n| !gone.contains(n)).collect();
    write_order(root, &now, &wanted)
}

fn write_order(root: &Path, now: &[u16], wanted: &[u16]) -> Result<()> {
    if now == wanted {
        return Ok(());
    }
    write(
        root,
        "BootOrder",
        wanted.iter().flat_map(|n| n.to_le_bytes()).collect(),
    )
}

fn free_number(entries: &[Entry]) -> Result<u16> {
    (0..=u16::MAX)
        .find(|n| !entries.iter().any(|e| e.number == *n))
        .ok_or_else(|| {
            Failure::new(Class::Handover, "the firmware has no free boot entry")
                .hint("remove stale entries, for example with efibootmgr -b NUMBER -B")
        })
}

fn name(number: u16) -> String {
    format!("Boot{number:04X}")
}

fn read(root: &Path, name: &str) -> Result<Option<Variable>> {
    efivar::read(root, name, GLOBAL).context(Class::Handover, || {
        format!("reading the UEFI variable {name}")
    })
}

fn write(root: &Path, name: &str, data: Vec<u8>) -> Result<()> {
    let variable = Variable {
        attributes: BOOT_ATTRIBUTES,
        data,
    };
    efivar::write(root, name, GLOBAL, &variable)
        .map_err(|error| refused(name, variable.data.len(), error))
}

/// The failure to write a variable of so many bytes, with what can be done about it.
pub fn refused(name: &str, bytes: usize, error: std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::StorageFull => {
            "the firmware's memory is full: remove stale boot entries and crash dumps (dump-type0-*)"
        }
        std::io::ErrorKind::ReadOnlyFilesystem => "mount efivarfs writable",
        _ => "set the boot order in the firmware setup; the disk has a loader in \\EFI\\BOOT",
    };
    let writing = format!("writing the UEFI variable {name} ({bytes} bytes)");
    Failure::new(Class::Handover, writing)
        .caused_by(error)
        .hint(hint)
}

fn delete(root: &Path, number: u16) -> Result<()> {
    let name = name(number);
    efivar::delete(root, &name, GLOBAL).context(Class::Handover, || {
        format!("deleting the UEFI variable {name}")
    })
}

#[cfg(test)]
mod tests;
