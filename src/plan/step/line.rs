//! A step as one line of a plan, for people.

use std::fmt;

use super::super::keep;
use super::{Handoff, Start, Step, total};
use crate::config::wire::Wipe;
use crate::error::printable;
use crate::host::DevNum;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::LockDisk { target, .. } => write!(f, "lock disk {target}"),
            Step::LockStack {
                target, devices, ..
            } => write!(
                f,
                "lock disk {target}, and see that nobody uses the {} that stand on it",
                devices.len()
            ),
            Step::TakeDown { device } => {
                let (what, name) = (printable(&device.what), printable(&device.device));
                if device.dev == DevNum::default() {
                    return write!(f, "take down {what} ({name})");
                }
                write!(f, "take down {what} ({name}, {})", device.dev)
            }
            Step::ClaimDisk => f.write_str("claim the disk, on which nothing stands any more"),
            Step::WipeDisk { method, spans } => write!(
                f,
                "ERASE {} of the disk by {}",
                total(spans).short(),
                match method {
                    Wipe::Discard => "discarding",
                    Wipe::Zero => "zeroing",
                    Wipe::Signatures => "its signatures",
                }
            ),
            Step::OpenImage {
                locations,
                digest,
                content_digest,
                ..
            }
            | Step::OpenRoot {
                locations,
                digest,
                content_digest,
                ..
            }
            | Step::OpenTree {
                locations,
                digest,
                content_digest,
                ..
            } => {
                if let Step::OpenTree {
                    running: Some(_), ..
                } = self
                {
                    f.write_str("open the root that is running")
                } else {
                    write!(f, "open image {}", locations.join(", then "))
                }?;
                match (digest, content_digest) {
                    (Some(digest), _) => write!(f, " ({digest})"),
                    (None, Some(digest)) => write!(f, " (content {digest})"),
                    (None, None) => f.write_str(" (no digest)"),
                }?;
                let changes = match self {
                    Step::OpenImage { shape, .. } | Step::OpenTree { shape, .. } => shape.changes(),
                    _ => Vec::new(),
                };
                match changes.as_slice() {
                    [] => Ok(()),
                    all => write!(f, "; in its table: {}", all.join(", ")),
                }
            }
            Step::WriteMark { .. } => f.write_str("ERASE begins: mark the disk as being installed"),
            Step::ReplaceTable { kept, .. } => {
                let kept: Vec<String> = kept.iter().map(keep::describe).collect();
                write!(
                    f,
                    "ERASE the partition table but for what is kept: {}",
                    kept.join("; ")
                )
            }
            Step::ClearDisk { spans } => {
                write!(
                    f,
                    "ERASE {} old boot structures and signatures ({})",
                    spans.len(),
                    total(spans).short()
                )
            }
            Step::WriteBody { .. } => {
                f.write_str("ERASE the disk with the image, its first MiB held back")
            }
            Step::ReadBack => f.write_str("read back what was written and compare"),
            Step::OpenPartitions { kept } => {
                f.write_str("open the partitions that were written")?;
                for (i, number) in kept.iter().enumerate() {
                    write!(
                        f,
                        "{}{number}",
                        if i == 0 {
                            ", and of those that are kept "
                        } else {
                            ", "
                        }
                    )?;
                }
                Ok(())
            }
            Step::MakePartitions { table, kept } => {
                f.write_str("partitions of a new table, in memory only:")?;
                for (i, p) in table.partitions.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma} {} {} ({})", p.number, p.label, p.size.short())?;
                }
                for (i, number) in kept.iter().enumerate() {
                    let before = if i == 0 {
                        ", and of those that are kept "
                    } else {
                        ", "
                    };
                    write!(f, "{before}{number}")?;
                }
                Ok(())
            }
            Step::MakeFileSystems { filesystems } => {
                let all: Vec<String> = filesystems.iter().map(ToString::to_string).collect();
                write!(f, "ERASE: make {}", all.join(", "))
            }
            Step::UnpackTree {
                partition,
                running: true,
                ..
            } => write!(
                f,
                "copy the root that is running, without other file systems that are mounted in it, into partition {partition}"
            ),
            Step::UnpackTree { partition, .. } => write!(
                f,
                "unpack the tree into partition {partition} and check every proof"
            ),
            Step::SettleTree { .. } => f.write_str("write /etc/fstab and empty /etc/machine-id"),
            Step::InstallBootloader { wish } => write!(f, "{wish}"),
            Step::ChangeSystem { changes } => write!(f, "{changes}"),
            Step::MakeFilesystem { label, filesystem } => write!(
                f,
                "make {} on the added partition {label:?}",
                filesystem.name()
            ),
            Step::GrowFilesystem { partition } => {
                write!(f, "grow the file system of partition {partition}")
            }
            Step::LookAtSources { sources, bindings } => {
                let devices: Vec<&str> = sources.iter().map(|s| s.name.as_str()).collect();
                let paths: Vec<String> = bindings
                    .iter()
                    .map(|b| b.target.display().to_string())
                    .collect();
                write!(
                    f,
                    "look, without a write, whether {} can be provided from {}",
                    paths.join(", "),
                    devices.join(", ")
                )
            }
            Step::KeepPaths { sources, bindings } => {
                f.write_str("in the installed system and its fstab:")?;
                for source in sources {
                    match (source.format, &source.on_target) {
                        (Some(fs), _) => write!(f, " ERASE: make {} on ", fs.name())?,
                        (None, _) => f.write_str(" open ")?,
                    }
                    match &source.on_target {
                        Some(_) => write!(f, "{}", source.name)?,
                        None => write!(f, "{source}")?,
                    }
                    write!(f, ", as source {} ({});", source.number, source.wanted)?;
                }
                for (i, binding) in bindings.iter().enumerate() {
                    write!(f, "{} {binding}", if i == 0 { "" } else { ";" })?;
                }
                Ok(())
            }
            Step::ClosePartitions => f.write_str("close the partitions and flush them"),
            Step::CommitHead { record } => write!(
                f,
                "check every proof; then write the backup table, the table{} and LBA 0",
                if record.is_some() {
                    " with the record"
                } else {
                    ""
                }
            ),
            Step::BeginFirstBoot { sources, .. } => {
                let devices: Vec<&str> = sources.iter().map(|s| s.name.as_str()).collect();
                write!(
                    f,
                    "write on {} that the first boot of the machine id there begins",
                    devices.join(", ")
                )
            }
            Step::RereadPartitions => f.write_str("make the kernel see the new partitions"),
            Step::BootEntry {
                efi,
                description,
                otherwise,
                ..
            } => {
                write!(
                    f,
                    "UEFI:{}",
                    if efi.entry {
                        format!(" entry {description:?}")
                    } else {
                        String::new()
                    }
                )?;
                f.write_str(if efi.boot_next { ", boot it next" } else { "" })?;
                match otherwise {
                    Some(step) => write!(f, "; where the firmware does not take that, {step}"),
                    None => Ok(()),
                }
            }
            Step::BootDisk {
                number,
                description,
                ..
            } => write!(
                f,
                "UEFI: boot entry Boot{number:04X} {:?} next, once",
                printable(description)
            ),
            Step::CountStart { tries } => write!(
                f,
                "UEFI: note that this is start {} of the installed system within a day",
                tries.count
            ),
            Step::GiveUp { reason } => write!(f, "give up: {reason}"),
            Step::ForgetDiskBoot => f.write_str("UEFI: forget that the disk was tried"),
            Step::LoadRoot => f.write_str("bring it into memory and check every proof"),
            Step::MountRoot {
                place,
                verity,
                upper,
            } => {
                write!(f, "make it the root at {}", place.display())?;
                if verity.is_some() {
                    f.write_str(", every block proven when it is read")?;
                }
                match upper {
                    Some(upper) => write!(f, ", what is written on {upper}"),
                    None => Ok(()),
                }
            }
            Step::AddPartitions { partitions } => write!(f, "{partitions}"),
            Step::OpenSource { source } => {
                let place: &dyn fmt::Display = match &source.made {
                    Some(_) => &source.name,
                    None => source.as_ref(),
                };
                let blank = match (&source.made, &source.luks) {
                    (Some(_), _) => "",
                    (None, None) => ", which is blank",
                    // Or has a header that was left unfinished.
                    (None, Some(_)) => ", which holds nothing",
                };
                match (source.format, &source.luks) {
                    (Some(fs), None) => write!(f, "ERASE: make {} on {place}{blank}", fs.name())?,
                    (Some(fs), Some(_)) => {
                        write!(
                            f,
                            "ERASE: make {} inside LUKS2 on {place}{blank}",
                            fs.name()
                        )?;
                    }
                    (None, _) => write!(f, "open {place}, {}", source.filesystem)?,
                }
                if let Some(luks) = &source.luks {
                    write!(f, ", with the key file {}", luks.key_file.display())?;
                }
                write!(f, ", as source {} ({})", source.number, source.wanted)
            }
            Step::Preserve { binding } => write!(f, "{binding}"),
            Step::Scratch { path, size, .. } => {
                write!(f, "a tmpfs at {} ({})", path.display(), size.short())
            }
            Step::Volatile { path, size, .. } => write!(
                f,
                "what is written below {} stays in memory ({})",
                path.display(),
                size.short()
            ),
            Step::ZramSwap { size } => write!(f, "swap in compressed memory ({})", size.short()),
            Step::CheckRoot { init, .. } => write!(
                f,
                "check that the root can be started{}",
                init.as_ref()
                    .map(|i| format!(" with {}", printable(i)))
                    .unwrap_or_default()
            ),
            Step::StartInstalled { target, start, .. } => write!(
                f,
                "start the system on {} {}",
                target.path.display(),
                match start {
                    Start::Root =>
                        "in this kernel, or by its own where it has no modules for this one",
                    Start::Kexec => "by its own kernel",
                }
            ),
            Step::Handoff(Handoff::Kexec) => f.write_str("start the kernel that was loaded"),
            Step::Handoff(Handoff::Reboot) => f.write_str("reboot"),
            Step::Handoff(Handoff::PowerOff) => f.write_str("power off"),
            Step::Handoff(Handoff::Sysroot { root }) => {
                write!(f, "leave the root at {} to the initrd", root.display())
            }
            Step::Handoff(Handoff::Park { reason }) => write!(f, "park: {reason}"),
            Step::Handoff(Handoff::SwitchRoot { root, init }) => {
                write!(f, "start the system in {}", root.display())?;
                match init {
                    Some(init) => write!(f, ", init {}", printable(init)),
                    None => Ok(()),
                }
            }
        }
    }
}
