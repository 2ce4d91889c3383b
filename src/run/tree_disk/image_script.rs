//! The tree's own script installs the boot loader: it is run in the new root, with the disk's partitions but without
//! the disk. What shall stand in LBA 0 it leaves in a file.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use super::inside::{self, Inside};
use super::rooted::{self, Rooted};
use crate::config::wire::TableKind;
use crate::error::{Class, Context as _, Failure, Result, chain, printable};
use crate::image::boot::grub_core::{BootCode, Platform};
use crate::init::modules;
use crate::plan::tree_layout;
use crate::plan::tree_root::BootWish;
use crate::report::Reporter;
use crate::run::partitions::{Node, Shared};
use crate::sys::beneath::{Root, Walk};
use crate::sys::detached::{self, Flags};

/// The script.
pub const SCRIPT: &str = "usr/lib/ironroot/install-bootloader";

/// Where it leaves the code for LBA 0, in /run.
const BOOT_CODE: &str = "ironroot/boot-code";

/// Code in front of a table is no longer.
const LARGEST: u64 = 440;

/// The tables of a FAT of some hundred MiB are shorter.
const TABLES: u64 = 1 << 20;

/// A script that makes an initrd takes minutes.
const TIME: Duration = Duration::from_secs(15 * 60);

/// So many lines of what it says go into the log.
const LINES: usize = 100;

/// Runs it. `options` are the kernel's words.
pub fn run(
    rooted: &Rooted,
    shared: &Shared,
    wish: &BootWish,
    options: &str,
    reporter: &Reporter,
) -> Result<Option<BootCode>> {
    let root = shared.node(tree_layout::root(wish.table))?;
    let esp = match wish.esp {
        Some(_) => Some(shared.node(tree_layout::ESP)?),
        None => None,
    };
    let bios = wish.platform == Some(Platform::I386Pc);
    let mut env = vec![
        (
            "IRONROOT_FIRMWARE",
            if bios { "bios" } else { "uefi" }.to_owned(),
        ),
        ("IRONROOT_ROOT", inside::path(root)),
        ("IRONROOT_ROOT_PARTUUID", wish.root.clone()),
        ("IRONROOT_CMDLINE", options.to_owned()),
        ("IRONROOT_BOOT_CODE", format!("/run/{BOOT_CODE}")),
    ];
    if let (Some(node), Some(partuuid)) = (esp, &wish.esp) {
        env.push(("IRONROOT_ESP", inside::path(node)));
        env.push(("IRONROOT_ESP_PARTUUID", partuuid.clone()));
    }
    if bios && wish.table == TableKind::Gpt {
        let node = shared.node(tree_layout::BIOS_BOOT)?;
        env.push(("IRONROOT_BIOS_BOOT", inside::path(node)));
        let sector = node.place.start.0 / shared.disk()?.target().sector.get();
        env.push(("IRONROOT_BIOS_BOOT_SECTOR", sector.to_string()));
    }
    let before = esp.map(begin_of).transpose()?;
    // It may want to mount the EFI system partition.
    modules::want("vfat");
    let inside = Inside::of(rooted, root, shared)?;
    inside
        .run_directory()
        .make_directories(Path::new("ironroot"), 0o755, Walk::NoLinks)?;
    let (output, status, run) = inside.execute(&format!("/{SCRIPT}"), &[], &env, TIME)?;
    let said: Vec<&str> = output
        .stdout
        .lines()
        .chain(output.stderr.lines())
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = said.len().saturating_sub(LINES);
    for line in said.iter().skip(from) {
        reporter.info(format!("/{SCRIPT}: {}", printable(line)));
    }
    if !status.success() {
        let from = said.len().saturating_sub(3);
        let last = said.get(from..).unwrap_or_default().join("; ");
        return Err(Failure::new(
            Class::Media,
            format!(
                "/{SCRIPT} of the tree failed ({status}): {}",
                printable(&last)
            ),
        )
        .hint("mend the script in the image, then install again; the disk does not boot now"));
    }
    let code = match run.read(Path::new(BOOT_CODE), Walk::NoLinks, LARGEST) {
        Ok(bytes) => BootCode::read(&bytes),
        Err(error) if error.is_missing() => None,
        Err(error) => {
            return Err(Failure::from(error).hint(
                "the code in front of a table has at most 440 bytes; the disk does not boot now",
            ));
        }
    };
    if bios {
        return match code {
            Some(code) if code.bytes().iter().any(|b| *b != 0) => Ok(Some(code)),
            _ => Err(nothing(&format!(
                "no code for LBA 0 in /run/{BOOT_CODE}, and a BIOS boots nothing else"
            ))),
        };
    }
    let (Some(esp), Some(before)) = (esp, before) else {
        return Ok(code);
    };
    let after = begin_of(esp)?;
    if !has_got_a_file(&before, &after) {
        return Err(nothing(
            "no file on the EFI system partition ($IRONROOT_ESP)",
        ));
    }
    let fallback = wish.fallback.as_deref().unwrap_or_default();
    match has_file(esp, fallback) {
        Ok(true) => {}
        Ok(false) => reporter.warn(format!(
            "/{SCRIPT} left no {fallback} on the EFI system partition: firmware boots this disk only by an entry of its own"
        )),
        Err(why) => log::info!("looking for {fallback}: {}", chain(&why)),
    }
    Ok(code)
}

/// It said that all was well.
fn nothing(what: &str) -> Failure {
    Failure::new(
        Class::Integrity,
        format!("nothing bootable was found: /{SCRIPT} of the tree left {what}"),
    )
    .hint("mend the script in the image, or set `disk.bootloader` to None; the disk does not boot now")
}

/// The first sector, which ends with a signature whatever the sector size (Microsoft FAT specification, section 3.1),
/// and the allocation tables, or as much of them as tells whether there is a file.
fn begin_of(node: &Node) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(&node.path)
        .and_then(|file| file.take(TABLES).read_to_end(&mut bytes))
        .context(Class::Media, || format!("reading {}", node.path.display()))?;
    Ok(bytes)
}

/// Whether what was an empty FAT is one with something on it: any file changes its tables.
fn has_got_a_file(before: &[u8], after: &[u8]) -> bool {
    after != before && matches!(after.get(510..512), Some([0x55, 0xaa]))
}

/// Whether a FAT has a file with this name, as firmware writes it.
fn has_file(node: &Node, name: &str) -> Result<bool> {
    let mount = detached::Context::new("vfat", "the EFI system partition")?
        .set("source", node.path.as_os_str().as_bytes())?
        .mount(Flags {
            read_only: true,
            nosuid: true,
            nodev: true,
            noexec: true,
        })?;
    let root = Root::of(&mount.as_fd(), "the EFI system partition")?;
    let path = name.trim_start_matches('\\').replace('\\', "/");
    Ok(rooted::is_file(&root, Path::new(&path)))
}

/// Whether the tree has it.
pub fn is_there(rooted: &Rooted) -> bool {
    rooted::is_file(rooted.root(), Path::new(SCRIPT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::fat::{FatWriter, Volume};
    use crate::units::{Bytes, MIB, SectorSize};

    #[test]
    fn a_fat_with_one_file_is_told_from_an_empty_one() {
        let begin = |files: &[&str]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let volume = Volume {
                size: Bytes(64 * MIB),
                start: Bytes(MIB),
                sector: SectorSize::S512,
                label: "ESP",
                number: 1,
            };
            file.as_file().set_len(64 * MIB).unwrap();
            let mut fat = FatWriter::new(file.as_file(), volume).unwrap();
            for name in files {
                fat.add(name, &mut b"MZ".as_slice()).unwrap();
            }
            fat.finish().unwrap();
            let mut bytes = std::fs::read(file.path()).unwrap();
            bytes.truncate(usize::try_from(TABLES).unwrap());
            bytes
        };
        let empty = begin(&[]);
        assert!(!has_got_a_file(&empty, &begin(&[])));
        assert!(has_got_a_file(&empty, &begin(&["EFI/BOOT/BOOTX64.EFI"])));
        assert!(!has_got_a_file(&empty, &vec![0; empty.len()]));
    }
}
